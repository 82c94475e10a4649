// Reports of runs, from files that runs leave and from damaged ones; the records that TensorBoard reads;
// configurations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "onnx_passes/ir/error.h"
#include "tests/support/error_of.h"
#include "tools/config.h"
#include "tools/report/tensorboard_log.h"
#include "tools/run_report/report_page.h"
#include "tools/run_report/report_tables.h"
#include "tools/run_report/text_chart.h"

namespace onnx_train::run_report_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

std::string text_in(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class RunReport : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  void append(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name, std::ios::app) << text;
  }

  const std::string folder_ = testing::TempDir() + "a run <&>";
};

constexpr const char* kHeader = "step,epoch,loss,lr,grad_norm,ms,samples,accuracy,loss_scale\n";

TEST_F(RunReport, MetricsAreReadAsTheyGrow) {
  MetricsTable table(folder_ + "/metrics.csv");
  EXPECT_FALSE(table.update());
  write("metrics.csv", std::string(kHeader) + "1,1,0.5,0.1,2,10,4,,\n2,1,null,0.1,2,10,4");
  EXPECT_TRUE(table.update());
  EXPECT_EQ(table.rows(), 1u);
  append("metrics.csv", ",,\nrubbish\n3,1,0.25,0.1,2,10,4,1,\n4,1,0.25\n");
  EXPECT_TRUE(table.update());
  EXPECT_FALSE(table.update());
  EXPECT_EQ(table.rows(), 3u);
  EXPECT_EQ(table.damaged(), 2u);
  EXPECT_THAT(*table.column("step"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*table.column("loss"), ElementsAre(0.5, testing::NanSensitiveDoubleEq(NAN), 0.25));
  EXPECT_EQ(table.column("nothing"), nullptr);
  fs::remove(folder_ + "/metrics.csv");  // as a run that is resumed replaces it
  write("other", std::string(kHeader) + "1,1,0.125,0.1,2,10,4,,\n");
  fs::rename(folder_ + "/other", folder_ + "/metrics.csv");
  table.update();
  EXPECT_THAT(*table.column("loss"), ElementsAre(0.125));
}

TEST_F(RunReport, ThinningKeepsTheExtremesAndWhatIsNotFinite) {
  Series series;
  for (int i = 0; i < 100'000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 70'001 ? 50 : i == 123 ? -50 : i == 5'000 ? NAN : std::sin(i));
  }
  const Series thin = thinned(series, 2000);
  EXPECT_LE(thin.size(), 2010u);
  EXPECT_EQ(thin.x.front(), 0);
  EXPECT_EQ(thin.x.back(), 99'999);
  EXPECT_TRUE(std::is_sorted(thin.x.begin(), thin.x.end()));
  for (double wanted : {70'001.0, 123.0, 5'000.0})
    EXPECT_TRUE(std::count(thin.x.begin(), thin.x.end(), wanted)) << wanted;
  EXPECT_EQ(thinned({{1}, {2}}, 2000).size(), 1u);
  EXPECT_EQ(thinned({}, 2000).size(), 0u);
}

TEST_F(RunReport, SmoothingIsAMeanOfTheNeighboursThatAHugeOneSpoilsOnlyNearby) {
  const Series series = {{1, 2, 3, 4, 5, 6, 7}, {1, 2, NAN, 4, 1e30, 6, 8}};
  EXPECT_THAT(smoothed(series, 2).y, ElementsAre(1.5, 1.5, 3, 1e30 / 2 + 2, testing::DoubleNear(1e30 / 3, 1e16),
                                                 testing::DoubleNear(1e30 / 3, 1e16), 7));
  EXPECT_THAT(smoothed(series, 0).y, ElementsAre(1, 2, testing::NanSensitiveDoubleEq(NAN), 4, 1e30, 6, 8));
  EXPECT_THAT(smoothed({{1, 2}, {3, 5}}, 100).y, ElementsAre(4, 4));
  EXPECT_TRUE(smoothed({}, 3).y.empty());
}

TEST_F(RunReport, APageHoldsTheNumbersAndNamesAsText) {
  write("metrics.csv", std::string(kHeader) + "1,1,0.5,0.1,2,10,4,0.25,\n2,1,null,0.1,2,10,4,0.5,\n");
  write("epochs.jsonl", "{\"step\":2,\"epoch\":1,\"train_loss\":0.5,\"eval_loss\":0.375,\"best\":true}\n{\"step\":");
  write(
      "options.json",
      R"({"MODEL": "<script>alert(1)</script>", "lr": 0.1, "derived": {"steps": 9, "memory": {"data": 512, "total": 1024}}})");
  const std::string page = report_page({read_run(folder_)});
  EXPECT_THAT(page, HasSubstr("<title>a run &lt;&amp;&gt;</title>"));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, HasSubstr("\"name\":\"a run \\u003c\\u0026\\u003e\""));
  EXPECT_THAT(page, HasSubstr("\"x\":[1,2],\"y\":[0.5,null]"));
  EXPECT_THAT(page, HasSubstr("\"x\":[2],\"y\":[0.375]"));
  EXPECT_THAT(page, HasSubstr("<strong>0.375</strong><span>at step 2"));
  EXPECT_THAT(page, HasSubstr("2 of 9"));
  EXPECT_THAT(page, HasSubstr("1.0 KiB"));
  for (const char* elsewhere : {"http:", "https:", "src=", "url(", "@import", "<link"}) {
    EXPECT_THAT(page, Not(HasSubstr(elsewhere)));
  }
}

TEST_F(RunReport, DamagedFilesAreNotesAndOtherFoldersErrors) {
  write("metrics.csv", std::string(kHeader) + "1,1,0.5\nx\n\n");
  write("options.json", "{\"MODEL\":");
  write("epochs.jsonl", "[]\n5\n{\"step\":\"x\"}\n");
  const std::string page = report_page({read_run(folder_)});
  EXPECT_THAT(page, HasSubstr("3 lines of metrics.csv cannot be read"));
  EXPECT_THAT(page, HasSubstr("3 lines of epochs.jsonl cannot be read"));
  EXPECT_THAT(page, HasSubstr("options.json is damaged"));
  EXPECT_THAT(page, HasSubstr("No step has been recorded yet"));
  EXPECT_THAT(error_of([&] { read_run(folder_ + "/none"); }), HasSubstr("give the folder of a run"));
  fs::remove(folder_ + "/metrics.csv");
  fs::remove(folder_ + "/options.json");
  EXPECT_THAT(error_of([&] { read_run(folder_); }), HasSubstr("holds no run"));
}

TEST_F(RunReport, TextIsEscapedWhateverItsBytes) {
  EXPECT_EQ(escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escaped("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x99\x82"), "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x99\x82");
  const std::string unknown = "\xef\xbf\xbd";
  EXPECT_EQ(escaped("\x01\xff\xc0\x80" + std::string(1, '\0')), unknown + unknown + unknown + unknown + unknown);
  EXPECT_EQ(escaped("\xe2\x82"), unknown + unknown);
}

TEST_F(RunReport, ATextChartIsAsWideAsItIsAllowed) {
  Series line;
  for (int i = 1; i <= 50; ++i) {
    line.x.push_back(i);
    line.y.push_back(i == 20 ? NAN : 1.0 / i);
  }
  std::istringstream lines(text_chart("loss", line, 40, 4));
  std::vector<std::string> all;
  for (std::string text; std::getline(lines, text);) all.push_back(text);
  ASSERT_EQ(all.size(), 6u);
  EXPECT_THAT(all[1], testing::StartsWith("   1 "));
  EXPECT_THAT(all[4], testing::StartsWith("0.02 "));
  EXPECT_THAT(all[5], testing::EndsWith("50"));
  EXPECT_EQ(text_chart("loss", {{1}, {NAN}}, 40, 4), "");
  EXPECT_EQ(text_chart("loss", line, 5, 4), "");
  EXPECT_NE(text_chart("loss", {{1}, {3}}, 40, 4), "");
}

// ---- TensorBoard

// The checksum of RFC 3720, B.4: 32 bytes of zeros, and of ones.
TEST_F(RunReport, ChecksumsAreCastagnolis) {
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283U);
}

TEST_F(RunReport, RecordsOfTensorBoardAreWholeAndStartAnewOrGoOn) {
  const auto files = [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_ + "/tensorboard")) found.push_back(entry.path());
    return found;
  };
  const StepReport step{.step = 1,
                        .epoch = 1,
                        .samples = 4,
                        .loss = 0.5,
                        .learning_rate = 0.1,
                        .accuracy = {},
                        .grad_norm = 1,
                        .milliseconds = 2};
  for (int run = 0; run < 2; ++run) TensorBoardLog(folder_, 0).add(step);
  ASSERT_EQ(files().size(), 1u);
  { TensorBoardLog(folder_, 1).add(step); }
  EXPECT_EQ(files().size(), 2u);
  for (const std::string& path : files()) {
    const std::string bytes = text_in(path);
    size_t at = 0, records = 0;
    while (at + 12 <= bytes.size()) {
      uint64_t length = 0;
      uint32_t checksum = 0;
      std::memcpy(&length, &bytes[at], 8);
      std::memcpy(&checksum, &bytes[at + 8], 4);
      EXPECT_EQ(checksum, masked_crc32c(&bytes[at], 8));
      ASSERT_LE(at + 16 + length, bytes.size());
      std::memcpy(&checksum, &bytes[at + 12 + length], 4);
      EXPECT_EQ(checksum, masked_crc32c(&bytes[at + 12], length));
      at += 16 + length;
      ++records;
    }
    EXPECT_EQ(at, bytes.size());
    EXPECT_GE(records, 2u);
    EXPECT_THAT(bytes, HasSubstr("brain.Event:2"));
    EXPECT_THAT(bytes, HasSubstr("train/loss"));
  }
}

// ---- Configurations

struct Settings {
  double rate = 0;
  int64_t batch = 0;
  bool resume = false;
  std::string model;
  std::vector<std::string> scales;
  std::vector<CommandOption> options() {
    return {{"MODEL", &model, ""},
            {"--lr", &rate, ""},
            {"--batch-size", &batch, ""},
            {"--resume", &resume, ""},
            {"--scale", &scales, ""}};
  }
};

TEST_F(RunReport, ConfigurationsSetWhatTheCommandLineDoesNot) {
  write("a.yaml", "model: a b.onnx\nlr: 1e-3   # a comment\nbatch_size: 7\nresume: true\nscale: [x=1/255, y=2]\n");
  write(
      "a.json",
      R"({"MODEL": "a b.onnx", "lr": 0.001, "batch-size": 7, "resume": true, "scale": ["x=1/255", "y=2"], "derived": {"x": 1}})");
  write("b.json", R"({"lr": null, "batch-size": 9})");
  for (const char* name : {"a.yaml", "a.json"}) {
    Settings s;
    s.rate = 5;
    std::set<std::string> given = {"lr"};
    read_config(folder_ + "/" + name, s.options(), &given);
    EXPECT_EQ(s.rate, 5);
    EXPECT_EQ(s.batch, 7);
    EXPECT_EQ(s.model, "a b.onnx");
    EXPECT_TRUE(s.resume);
    EXPECT_THAT(s.scales, ElementsAre("x=1/255", "y=2"));
    EXPECT_THAT(given, ElementsAre("MODEL", "batch-size", "lr", "resume", "scale"));
  }
  Settings s;
  std::set<std::string> given;
  read_config(folder_ + "/b.json", s.options(), &given);
  EXPECT_THAT(given, ElementsAre("batch-size"));
}

TEST_F(RunReport, ConfigurationsThatAreWrongNameTheFileAndTheOption) {
  const auto error = [&](const std::string& name, const std::string& text) {
    write(name, text);
    Settings s;
    std::set<std::string> given;
    return error_of([&] { read_config(folder_ + "/" + name, s.options(), &given); });
  };
  EXPECT_THAT(error("x.json", "[1]"), HasSubstr("x.json is no JSON object"));
  EXPECT_THAT(error("x.json", R"({"batchsize": 3})"),
              HasSubstr("x.json: there is no option 'batchsize'; did you mean 'batch-size'?"));
  EXPECT_THAT(error("x.json", R"({"lr": "fast"})"), HasSubstr("x.json: --lr: 'fast' is no number"));
  EXPECT_THAT(error("x.json", R"({"lr": [1, 2]})"), HasSubstr("'lr' takes one value"));
  EXPECT_THAT(error("x.json", R"({"lr": {"a": 1}})"), HasSubstr("'lr' is neither a value nor a list"));
  EXPECT_THAT(error("x.json", R"({"resume": "yes"})"), HasSubstr("'resume' is true or false"));
  EXPECT_THAT(error("x.json", R"({"batch-size": 3, "batch_size": 4})"), HasSubstr("given twice"));
  EXPECT_THAT(error("x.yaml", "lr: [1"), HasSubstr("x.yaml, line"));
  EXPECT_THAT(error("x.yaml", "- lr"), HasSubstr("is no YAML mapping"));
  EXPECT_THAT(error("x.yaml", "lr: {a: 1}"), HasSubstr("neither a value nor a list"));
  EXPECT_THAT(error("x.yaml", std::string(100'000, '[')), HasSubstr("x.yaml"));
  Settings s;
  std::set<std::string> given;
  EXPECT_THAT(error_of([&] { read_config(folder_ + "/none.json", s.options(), &given); }),
              HasSubstr("is no file of options"));
}

}  // namespace
}  // namespace onnx_train::run_report_test
