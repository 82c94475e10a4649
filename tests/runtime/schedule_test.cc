#include "runtime/training/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "onnx_passes/ir/error.h"
#include "tests/support/error_of.h"

namespace onnx_train::schedule_test {
namespace {

using testing::HasSubstr;

TEST(Schedule, WarmsUpToThePeak) {
  const Schedule s{.peak = 0.1, .warmup = 4};
  EXPECT_DOUBLE_EQ(s.rate(0), 0.025);
  EXPECT_DOUBLE_EQ(s.rate(3), 0.1);
  EXPECT_DOUBLE_EQ(s.rate(1000), 0.1);
}

TEST(Schedule, AWarmUpMayBeAShareOfAllSteps) {
  const auto warmup_of = [](const char* text, int64_t steps) {
    ScheduleSettings settings;
    settings.warmup = text;
    Schedule schedule = resolve(settings, 1);
    schedule.end_at(steps);
    return schedule.warmup;
  };
  EXPECT_EQ(warmup_of("10%", 30), 3);
  EXPECT_EQ(warmup_of("10%", 31), 4);
  EXPECT_EQ(warmup_of("2.5%", 200), 5);
  EXPECT_EQ(warmup_of("100%", 7), 7);
  EXPECT_EQ(warmup_of("0%", 7), 0);
  EXPECT_EQ(warmup_of("12", 7), 12);
  for (const char* wrong : {"", "%", "-1", "101%", "-1%", "nan%", "3.5", "10 %", "9223372036854775808"}) {
    ScheduleSettings settings;
    settings.warmup = wrong;
    EXPECT_THROW(resolve(settings, 1), UsageError) << wrong;
  }
}

TEST(Schedule, LinearAndCosineEndAtTheEnd) {
  for (const char* curve : {"linear(final_lr=0.2)", "cosine(final_lr=0.2)"}) {
    const Schedule s{.peak = 1, .curve = parse_curve(curve), .warmup = 10, .total = 110};
    EXPECT_DOUBLE_EQ(s.rate(9), 1);
    EXPECT_DOUBLE_EQ(s.rate(10), 1);
    EXPECT_DOUBLE_EQ(s.rate(60), 0.6);
    EXPECT_DOUBLE_EQ(s.rate(110), 0.2);
    EXPECT_DOUBLE_EQ(s.rate(1000), 0.2);
  }
}

TEST(Schedule, StepsDown) {
  const Schedule s{.peak = 1, .curve = parse_curve("step(step_every=30, step_factor=0.5)")};
  EXPECT_DOUBLE_EQ(s.rate(29), 1);
  EXPECT_DOUBLE_EQ(s.rate(30), 0.5);
  EXPECT_DOUBLE_EQ(s.rate(60), 0.25);
}

// Every curve at the shortest trainings, where a span is zero or one step.
TEST(Schedule, RatesAreFiniteForAnyNumberOfSteps) {
  for (const char* curve : {"linear", "cosine", "polynomial(power=0)", "one_cycle", "one_cycle(pct_start=0)",
                            "one_cycle(pct_start=1)", "one_cycle(pct_start=0.5)", "wsd", "wsd(decay=1, shape=sqrt)",
                            "restarts(T_0=1)", "restarts(T_0=1, T_mult=3)", "plateau", "exponential(gamma=0.5)"}) {
    for (int64_t total : {1, 2, 3, 7}) {
      for (int64_t warmup : {int64_t{0}, int64_t{1}, total}) {
        const Schedule s{.peak = 1, .curve = parse_curve(curve), .warmup = warmup, .total = total};
        for (int64_t step = 0; step < total + 2; ++step) {
          EXPECT_TRUE(s.rate(step) >= 0 && s.rate(step) <= 1) << curve << " " << total << " " << warmup << " " << step;
        }
      }
    }
  }
}

TEST(Schedule, PlateauWaitsForPatienceAndCoolsDown) {
  const Schedule s{.peak = 1, .curve = parse_curve("plateau(factor=0.5, patience=1, cooldown=1, final_lr=0.3)")};
  ScheduleState state;
  std::vector<double> rates;
  for (double loss : {1.0, 0.5, std::numeric_limits<double>::infinity(), std::nan(""), 0.5, 0.5, 0.5, 0.5}) {
    s.observe(loss, &state);
    rates.push_back(s.rate(100, state));
  }
  EXPECT_THAT(rates, testing::ElementsAre(1, 1, 1, 0.5, 0.5, 0.5, 0.3, 0.3));
}

TEST(Schedule, TextsHoldAllOptionsAndAreReadAgain) {
  for (const char* text :
       {"constant", "cosine(final_lr=0)", "one_cycle(pct_start=0.3, div_factor=25, final_div_factor=10000)",
        "wsd(decay=0.2, shape=cosine, final_lr=0)"}) {
    EXPECT_EQ(to_string(parse_curve(text)), text);
  }
}

TEST(Schedule, WrongOnesAreErrorsThatNameTheColumn) {
  const auto error = [](const std::string& text) { return error_of([&] { parse_curve(text); }); };
  EXPECT_THAT(error("cosinus"), HasSubstr("column 1: there is no schedule 'cosinus'"));
  EXPECT_THAT(error("cosinus"), HasSubstr("did you mean 'cosine'?"));
  EXPECT_THAT(error("one_cycle(pct=1)"), HasSubstr("has no option 'pct'; it has pct_start"));
  EXPECT_THAT(error("one_cycle(pct_start=2)"),
              HasSubstr("'pct_start' is 2; it must be a number of at least 0 and at most 1"));
  EXPECT_THAT(error("restarts(T_0=1.5)"), HasSubstr("a whole number"));
  EXPECT_THAT(error("wsd(shape=round)"), HasSubstr("one of linear, cosine, sqrt"));
  EXPECT_THAT(error("cosine(1)"), HasSubstr("column 8"));
  EXPECT_THAT(error("constant x"), HasSubstr("expected the end"));
  EXPECT_THAT(error("table"), HasSubstr("expected a file"));
  EXPECT_THAT(error("table('no such file')"), HasSubstr("no such file"));
  ScheduleSettings settings;
  settings.curve = "exponential";
  EXPECT_THAT(error_of([&] { resolve(settings, 1); }), HasSubstr("schedule exponential needs gamma"));
  settings.curve = "step";
  EXPECT_THAT(error_of([&] { resolve(settings, 1); }), HasSubstr("--step-every"));
  settings.step_every = 5;
  EXPECT_EQ(to_string(resolve(settings, 1).curve), "step(step_every=5, step_factor=0.1)");
}

std::string written(const std::string& text) {
  const std::string path = testing::TempDir() + "rates.csv";
  std::ofstream(path) << text;
  return path;
}

TEST(Schedule, ATableIsLinearBetweenItsPoints) {
  const std::string path = written("step,lr\n0, 0.1\r\n# a comment\n10,0.3\n\n20,0\n");
  const Schedule s{.peak = 5, .curve = parse_curve("table('" + path + "')")};
  EXPECT_DOUBLE_EQ(s.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(s.rate(5), 0.2);
  EXPECT_DOUBLE_EQ(s.rate(10), 0.3);
  EXPECT_DOUBLE_EQ(s.rate(15), 0.15);
  EXPECT_DOUBLE_EQ(s.rate(1000), 0);
}

TEST(Schedule, ATableThatIsWrongNamesItsLine) {
  const auto error = [](const std::string& text) {
    const std::string path = written(text);
    return error_of([&] { parse_curve("table('" + path + "')"); });
  };
  EXPECT_THAT(error(""), HasSubstr("has no line step,lr"));
  EXPECT_THAT(error("0,1\n1;2\n"), HasSubstr("rates.csv, line 2: expected step,lr, found '1;2'"));
  EXPECT_THAT(error("0,nan\n"), HasSubstr("line 1: rate nan"));
  EXPECT_THAT(error("0,-1\n"), HasSubstr("rate -1"));
  EXPECT_THAT(error("3,1\n3,2\n"), HasSubstr("line 2: step 3 does not come after 3"));
  EXPECT_THAT(error_of([&] { parse_curve("table('" + testing::TempDir() + "')"); }), HasSubstr("is no file"));
}

}  // namespace
}  // namespace onnx_train::schedule_test
