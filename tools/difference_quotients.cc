#include "tools/difference_quotients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace onnx_train {
namespace {

constexpr std::array<double, 5> kSteps = {1, 0.1, 10, 0.01, 100};  // times the step, in the order of trial

struct Quotients {
  double step = 0, central = 0, left = 0, right = 0;
  double rounding = 0;  // what rounding of the loss may make of the central one

  double difference_of_sides() const { return std::abs(right - left); }
};

Quotients quotients_at(const std::function<double(double)>& loss, double here, double h) {
  const double up = loss(h), down = loss(-h);
  constexpr double kRounding = 2e-16;
  return {h, (up - down) / (2 * h), (here - down) / h, (up - here) / h,
          kRounding * (std::abs(up) + std::abs(down)) / h};
}

// What the central quotient may be off by: sides that differ, other steps that differ, rounding.
double uncertainty(const std::vector<Quotients>& all, const Quotients& one) {
  double nearest = std::numeric_limits<double>::infinity();
  for (const Quotients& other : all) {
    if (other.step != one.step) nearest = std::min(nearest, std::abs(other.central - one.central));
  }
  const double most = std::max({one.difference_of_sides(), nearest, one.rounding});
  return std::isfinite(one.central + one.left + one.right) ? most : std::numeric_limits<double>::infinity();
}

}  // namespace

SlopeCheck check_slope(const std::function<double(double)>& loss, double analytic, double size, double step,
                       double tolerance) {
  const double here = loss(0);
  std::vector<Quotients> all;
  SlopeCheck check;
  const auto take = [&](double numeric) {
    check.numeric = numeric;
    const double distance = std::abs(analytic - numeric);
    const double scale = std::max({std::abs(analytic), std::abs(numeric), std::abs(size)});
    check.error =
        !std::isfinite(distance) ? std::numeric_limits<double>::infinity() : distance / std::max(scale, 1e-300);
    return distance;
  };
  for (const double factor : kSteps) {
    const Quotients q = quotients_at(loss, here, step * factor);
    const double distance = take(q.central);
    // Below the first step, rounding alone would make any small derivative agree.
    check.agrees = check.error <= tolerance || (factor >= 1 && distance <= q.rounding);
    if (check.agrees) return check;
    all.push_back(q);
  }
  const Quotients best = *std::min_element(all.begin(), all.end(), [&](const Quotients& a, const Quotients& b) {
    return uncertainty(all, a) < uncertainty(all, b);
  });
  const double distance = take(best.central);
  check.contrast = std::isfinite(distance) ? distance / std::max(uncertainty(all, best), 1e-300)
                                           : std::numeric_limits<double>::infinity();
  return check;
}

}  // namespace onnx_train
