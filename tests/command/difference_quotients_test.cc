#include "tools/difference_quotients.h"

#include <gtest/gtest.h>

#include <cmath>

namespace onnx_train::difference_quotients_test {
namespace {

constexpr double kTolerance = 1e-5, kStep = 1e-6;

SlopeCheck check(const std::function<double(double)>& loss, double analytic) {
  return check_slope(loss, analytic, 0, kStep, kTolerance);
}

double smooth(double t) { return std::exp(std::sin(2 * t) + t); }  // derivative 3 at 0

TEST(DifferenceQuotients, TheDerivativeOfASmoothFunctionAgrees) {
  EXPECT_TRUE(check(smooth, 3).agrees);
  EXPECT_LT(check(smooth, 3).error, 1e-8);
  EXPECT_NEAR(check(smooth, 3).numeric, 3, 1e-8);
}

TEST(DifferenceQuotients, AWrongDerivativeStandsOutFromTheQuotients) {
  for (const double wrong : {-3.0, 0.0, 6.0, 3.03, 3.0001}) {
    EXPECT_FALSE(check(smooth, wrong).agrees) << wrong;
    EXPECT_GT(check(smooth, wrong).contrast, 1000) << wrong;
  }
  EXPECT_GT(check(smooth, std::nan("")).contrast, 1000);
  EXPECT_EQ(check(smooth, std::nan("")).error, INFINITY);
}

TEST(DifferenceQuotients, TheErrorDoesNotDependOnTheTolerance) {
  for (const double tolerance : {1e-12, 1e-9, 1e-3}) {
    EXPECT_NEAR(check_slope(smooth, 3.003, 0, kStep, tolerance).error, 1e-3, 1e-5) << tolerance;
  }
}

// Kinks at any distance, among slopes of both signs: what is right on one side is never clearly wrong.
TEST(DifferenceQuotients, NextToAKinkNothingIsClearlyWrong) {
  for (const double kink : {0.0, 1e-12, 3e-9, 4e-8, 5e-7, -2e-6, 3e-5, -9e-5}) {
    for (const double jump : {0.01, 1.0, -5.0}) {
      const auto loss = [=](double t) { return smooth(t) + jump * std::max(t - kink, 0.0); };
      const double derivative = 3 + (kink < 0 ? jump : 0);
      const SlopeCheck found = check(loss, derivative);
      EXPECT_TRUE(found.agrees || found.contrast < 20) << kink << " " << jump << " " << found.contrast;
    }
  }
}

// Where the loss is large and the derivative 0, differences are rounding alone.
TEST(DifferenceQuotients, RoundingOfALargeLossIsNoDerivative) {
  const auto loss = [](double t) { return 1e6 + (t > 0 ? 1e-10 : 0) + 1e-20 * t; };
  EXPECT_TRUE(check(loss, 0).agrees);
}

}  // namespace
}  // namespace onnx_train::difference_quotients_test
