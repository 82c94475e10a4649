#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/run_node.h"

namespace onnx_train::lines_test {
namespace {

// ArgMax and ArgMin as NumPy defines them, element by element: a NaN is the largest number.
int64_t arg(const Tensor& x, int64_t row, bool largest, bool last) {
  const int64_t n = x.shape()[1];
  const auto better = [&](double a, double b) {
    if (std::isnan(a) || std::isnan(b))
      return largest ? std::isnan(a) && !std::isnan(b) : std::isnan(b) && !std::isnan(a);
    return largest ? a > b : a < b;
  };
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i) {
    const double candidate = x.at(row * n + i), so_far = x.at(row * n + best);
    if (last ? !better(so_far, candidate) : better(candidate, so_far)) best = i;
  }
  return best;
}

// Rows with many ties; some with infinities, some with NaN.
Tensor rows_of(DType dtype, int64_t columns) {
  Tensor x = random_tensor(DType::kDouble, {12, columns}, static_cast<unsigned>(columns));
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, std::round(20 * x.at(i)));
  if (!is_float(dtype)) return x.cast(dtype);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < columns; ++j) {
    x.set(8 * columns + j, -kInfinity);
    x.set(9 * columns + j, kInfinity);
    x.set(10 * columns + j, std::nan(""));
  }
  x.set(11 * columns + columns / 2, std::nan(""));
  return x.cast(dtype);
}

TEST(Lines, ThePlaceOfTheLargestAndSmallest) {
  for (DType dtype : {DType::kFloat, DType::kDouble, DType::kInt32, DType::kInt64}) {
    for (int64_t columns : {1, 2, 31, 511, 512, 513, 1500}) {
      const Tensor x = rows_of(dtype, columns);
      for (bool largest : {true, false}) {
        for (bool last : {false, true}) {
          const Attrs attrs = {{"axis", 1}, {"keepdims", 0}, {"select_last_index", last ? 1 : 0}};
          const Tensor y = run_node(largest ? "ArgMax" : "ArgMin", {x}, attrs)[0];
          for (int64_t row = 0; row < 12; ++row) {
            ASSERT_EQ(static_cast<int64_t>(y.at(row)), arg(x, row, largest, last))
                << name(dtype) << ' ' << columns << " columns, row " << row << ", largest " << largest << ", last "
                << last;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace onnx_train::lines_test
