#include "runtime/training/schedule.h"

#include <gtest/gtest.h>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

TEST(Schedule, WarmsUpToThePeak) {
  const Schedule s{.peak = 0.1, .warmup = 4};
  EXPECT_DOUBLE_EQ(s.rate(0), 0.025);
  EXPECT_DOUBLE_EQ(s.rate(3), 0.1);
  EXPECT_DOUBLE_EQ(s.rate(1000), 0.1);
}

TEST(Schedule, LinearAndCosineEndAtTheEnd) {
  for (const auto curve : {Schedule::Curve::kLinear, Schedule::Curve::kCosine}) {
    const Schedule s{.peak = 1, .curve = curve, .warmup = 10, .total = 110, .end = 0.2};
    EXPECT_DOUBLE_EQ(s.rate(9), 1);
    EXPECT_DOUBLE_EQ(s.rate(10), 1);
    EXPECT_DOUBLE_EQ(s.rate(60), 0.6);
    EXPECT_DOUBLE_EQ(s.rate(110), 0.2);
    EXPECT_DOUBLE_EQ(s.rate(1000), 0.2);
  }
}

TEST(Schedule, StepsDown) {
  const Schedule s{.peak = 1, .curve = Schedule::Curve::kStep, .step_every = 30, .step_factor = 0.5};
  EXPECT_DOUBLE_EQ(s.rate(29), 1);
  EXPECT_DOUBLE_EQ(s.rate(30), 0.5);
  EXPECT_DOUBLE_EQ(s.rate(60), 0.25);
}

TEST(Schedule, UnknownNamesAreErrors) { EXPECT_THROW(parse_curve("cosinus"), Error); }

}  // namespace
}  // namespace onnx_train
