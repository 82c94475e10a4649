// The dashboard fits a terminal of any size, whatever the run's files hold.
#include "tools/dashboard/dashboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/support/report_text.h"
#include "tools/run_report/text_chart.h"

namespace onnx_train::dashboard_test {
namespace {

using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

std::string without_colours(const std::string& line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
    } else {
      text += line[i];
    }
  }
  return text;
}

class Dashboards : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  void write_steps(int steps) {
    std::string rows = "step,epoch,loss,lr,grad_norm,ms,samples,accuracy\n";
    for (int i = 1; i <= steps; ++i) {
      rows += std::to_string(i) + ",1," + (i == 7 ? "null" : std::to_string(2.0 / i)) + ",0.1,1,10,8,0.5\n";
    }
    write("metrics.csv", rows);
  }
  std::string shown(const DashboardSettings& settings, size_t columns, size_t rows) {
    std::string text;
    for (const std::string& line : dashboard(read_run(folder_), settings, columns, rows)) {
      text += without_colours(line) + "\n";
    }
    return text;
  }

  const std::string folder_ = testing::TempDir() + "a \x1b[31m run \xe6\xbc\xa2";
};

TEST_F(Dashboards, EveryLineFitsEverySize) {
  DashboardSettings settings;
  settings.state = "running";
  settings.keys = "q leaves";
  settings.messages = {"one line", std::string(300, 'x'), "\xe6\xbc\xa2\x1b[2J"};
  settings.colour = true;
  for (const int steps : {0, 1, 3, 500}) {
    write_steps(steps);
    write("options.json",
          R"({"MODEL": "a/\u6f22\u001b.onnx", "epochs": 2, "best": "loss", "derived": {"steps": 1000, "device": "cpu",
             "threads": 2, "memory": {"total": 1e9}}})");
    write("epochs.jsonl", steps < 3 ? "" : "{\"step\":2,\"train_loss\":1,\"eval_loss\":0.5,\"best\":true}\n");
    const RunFiles run = read_run(folder_);
    for (size_t columns = 1; columns < 250; columns += columns < 100 ? 3 : 30) {
      for (size_t rows = 1; rows < 70; rows += 4) {
        const std::vector<std::string> lines = dashboard(run, settings, columns, rows);
        ASSERT_LE(lines.size(), rows);
        for (const std::string& line : lines) {
          const std::string text = without_colours(line);
          ASSERT_LE(text_columns(text), columns) << columns << " x " << rows << ": " << text;
          ASSERT_EQ(text.find('\x1b'), std::string::npos);
        }
      }
    }
  }
}

TEST_F(Dashboards, SaysWhereTheRunStandsAndWhatIsBest) {
  write_steps(20);
  write("options.json", R"({"best": "loss", "derived": {"steps": 40, "device": "cpu", "threads": 2}})");
  write("epochs.jsonl",
        "{\"step\":5,\"train_loss\":1,\"eval_loss\":0.5,\"best\":true}\n"
        "{\"step\":9,\"train_loss\":1,\"eval_loss\":0.75,\"best\":false}\n");
  DashboardSettings settings;
  settings.state = "ended";
  const std::string text = shown(settings, 100, 40);
  for (const char* part : {"step 20/40", " 50%", "eval loss 0.75", "best loss 0.5 at step 5", "800 samples/s",
                           "10 ms a step", "cpu, threads 2", "o evaluation"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("ETA")));  // the run has ended
  settings.metric = "eval_loss";
  EXPECT_THAT(shown(settings, 100, 40), HasSubstr("eval_loss"));
}

TEST_F(Dashboards, ALaterCurveIsDrawnOverAnEarlierOneInItsColour) {
  const Series level{{1, 2, 3}, {1, 1, 1}}, rising{{1, 3}, {0.5, 2}};
  const std::vector<std::string> lines =
      chart_lines("both", {{"a", rising, "36", false}, {"b", level, "33", true}}, 40, 4);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_THAT(lines[0], HasSubstr("\x1b[36ma\x1b[0m  \x1b[33mb\x1b[0m"));
  std::string all;
  for (const std::string& line : lines) {
    EXPECT_LE(text_columns(without_colours(line)), 40u);
    all += line;
  }
  EXPECT_THAT(all, HasSubstr("\x1b[33mo"));
  EXPECT_THAT(all, HasSubstr("\x1b[36m"));
}

// Two values at the ends of the chart make one line without gaps, however steep.
TEST_F(Dashboards, ValuesAreConnected) {
  const std::vector<std::string> lines = chart_lines("", {{"", {{0, 1}, {0, 1}}, "", false}}, 12, 40);
  ASSERT_EQ(lines.size(), 42u);
  for (size_t row = 1; row <= 40; ++row) {
    std::string dots = lines[row].substr(2);
    for (size_t at; (at = dots.find("\xe2\xa0\x80")) != std::string::npos;) dots.erase(at, 3);
    EXPECT_NE(dots, "") << "row " << row;
  }
}

// Means of a constant rate: 0.001, and what is next to it.
TEST_F(Dashboards, WhatDiffersByRoundingIsLevel) {
  const Series rate{{1, 2, 3, 4}, {0.001, std::nextafter(0.001, 1), 0.001, 0.001}};
  const Series level{{1, 2, 3, 4}, {0.001, 0.001, 0.001, 0.001}};
  EXPECT_EQ(chart_lines("rate", {{"", rate, "", false}}, 40, 4), chart_lines("rate", {{"", level, "", false}}, 40, 4));
}

}  // namespace
}  // namespace onnx_train::dashboard_test
