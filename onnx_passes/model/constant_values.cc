#include "onnx_passes/model/constant_values.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <vector>

#include "onnx_passes/io/mapped_file.h"

namespace onnx_train {
namespace {

// The largest relative error of a table that was computed in float16.
constexpr double kTolerance = 4e-3;
constexpr double kHides = -1e4;   // a score of this size has no weight in a softmax
constexpr int64_t kMaxRows = 64;  // further rows of a table in float32 have angles with larger errors

// Calls f with each element until it returns false; returns whether it never did.
bool all_elements(const Tensor& x, const std::function<bool(double)>& f) {
  for (int64_t i = 0; i < x.size(); ++i) {
    if (!f(x.at(i))) return false;
  }
  release_pages(x);
  return true;
}

std::vector<double> elements(const Tensor& x) {
  std::vector<double> values(static_cast<size_t>(x.size()));
  for (int64_t i = 0; i < x.size(); ++i) values[static_cast<size_t>(i)] = x.at(i);
  return values;
}

// The sizes of the axes that are not 1.
Shape squeezed(const Shape& shape) {
  Shape sizes;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(sizes), [](int64_t d) { return d != 1; });
  return sizes;
}

bool all_finite(const std::vector<double>& v) {
  return std::all_of(v.begin(), v.end(), [](double x) { return std::isfinite(x); });
}

double largest(const std::vector<double>& v) {
  double most = 0;
  for (const double x : v) most = std::max(most, std::abs(x));
  return most;
}

// Samples of sines satisfy x[i-1] + x[i+1] = c x[i] with c = 2 cos(frequency). Finds the c that fits best; false if
// none does within `error`.
bool find_recurrence(const std::vector<double>& x, double error, double* c) {
  double products = 0, squares = 0;
  for (size_t i = 1; i + 1 < x.size(); ++i) {
    products += x[i] * (x[i - 1] + x[i + 1]);
    squares += x[i] * x[i];
  }
  *c = squares > 0 ? products / squares : 2;
  for (size_t i = 1; i + 1 < x.size(); ++i) {
    if (std::abs(x[i - 1] + x[i + 1] - *c * x[i]) > error) return false;
  }
  return std::isfinite(*c);
}

// A matrix in a tensor, whose rows are positions: row i, column j.
struct Contents {
  const Tensor* x;
  int64_t first, rows, columns, row_stride, column_stride;

  double at(int64_t i, int64_t j) const { return x->at(first + i * row_stride + j * column_stride); }
};

double amplitude(const Contents& t) {
  double most = 0;
  for (int64_t i = 0; i < std::min(t.rows, kMaxRows); ++i) {
    for (int64_t j = 0; j < t.columns; ++j) most = std::max(most, std::abs(t.at(i, j)));
  }
  return most;
}

// Whether every column is a sine of its own frequency, some of them different: values that a test or an initializer
// fills with sin(k) for k = 0, 1, 2, ... have one frequency.
bool has_sines(const Contents& t, double scale) {
  const int64_t rows = std::min(t.rows, kMaxRows);
  if (rows < 4 || t.columns < 2 || (rows - 3) * t.columns < 8) return false;
  std::vector<double> column(static_cast<size_t>(rows));
  double lowest = 2, highest = -2;
  for (int64_t j = 0; j < t.columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) column[static_cast<size_t>(i)] = t.at(i, j);
    double c = 0;
    if (!find_recurrence(column, kTolerance * scale, &c) || std::abs(c) > 2 + kTolerance) return false;
    if (largest(column) < 0.05 * scale) continue;  // says nothing about its frequency
    lowest = std::min(lowest, c);
    highest = std::max(highest, c);
  }
  return highest - lowest > 0.02;
}

// Whether columns j and j + distance (of each group of 2 * distance) are a cosine and a sine: the sum of their squares
// depends on the row only. Rows of zeros, as of a class token, may be among them.
bool has_pairs(const Contents& t, int64_t distance, double scale) {
  const int64_t rows = std::min(t.rows, kMaxRows);
  if (t.columns % (2 * distance) != 0 || t.columns < 4 || rows < 4) return false;
  int64_t different = 0;
  for (int64_t i = 0; i < rows; ++i) {
    double expected = -1, least = scale, most = 0;
    for (int64_t j = 0; j < t.columns; ++j) {
      if (j / distance % 2 == 1) continue;
      const double a = t.at(i, j), b = t.at(i, j + distance);
      const double sum = a * a + b * b;
      if (expected < 0) expected = sum;
      if (!(std::abs(sum - expected) <= 2 * kTolerance * scale * scale)) return false;
      least = std::min(least, std::abs(a));
      most = std::max(most, std::abs(a));
    }
    different += expected > 0.01 * scale * scale && most - least > 0.05 * scale ? 1 : 0;
  }
  return different * (t.columns / 2 - 1) >= 8;
}

bool is_sinusoidal(const Contents& t) {
  const double scale = amplitude(t);
  if (!std::isfinite(scale) || scale == 0) return false;
  if (has_sines(t, scale) || has_pairs(t, 1, scale)) return true;
  return (t.columns % 2 == 0 && has_pairs(t, t.columns / 2, scale)) ||
         (t.columns % 4 == 0 && has_pairs(t, t.columns / 4, scale));
}

bool is_uniform(const std::vector<double>& v) {
  return std::all_of(v.begin(), v.end(), [&](double x) { return x == v[0]; });
}

// ---- Filters

// A kernel of one axis (height 1) or two.
struct Kernel {
  std::vector<double> values;
  int64_t height, width;

  double at(int64_t i, int64_t j) const { return values[static_cast<size_t>(i * width + j)]; }
};

constexpr double kFilterTolerance = 1e-4;

// Whether K(i, j) = sign K(height-1-i, j) for one sign, or likewise along the other axis.
bool is_symmetric(const Kernel& k, bool vertical, double error) {
  bool even = true, odd = true;
  for (int64_t i = 0; i < k.height; ++i) {
    for (int64_t j = 0; j < k.width; ++j) {
      const double mirrored = vertical ? k.at(k.height - 1 - i, j) : k.at(i, k.width - 1 - j);
      even = even && std::abs(k.at(i, j) - mirrored) <= error;
      odd = odd && std::abs(k.at(i, j) + mirrored) <= error;
    }
  }
  return even || odd;
}

// Symmetric along both axes, and equal to its transpose (Laplace, Gauss) or a product of two vectors (Gauss, Sobel). A
// kernel of one axis is symmetric and has at least five elements.
bool is_designed(const Kernel& k) {
  const double scale = largest(k.values), error = kFilterTolerance * scale;
  if (!is_symmetric(k, false, error)) return false;
  if (k.height == 1) return k.width >= 5;
  if (k.width < 3 || k.height < 3 || !is_symmetric(k, true, error)) return false;
  const auto peak =
      std::max_element(k.values.begin(), k.values.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
  const int64_t at = peak - k.values.begin(), row = at / k.width, column = at % k.width;
  bool equals_transpose = k.height == k.width, is_product = true;
  for (int64_t i = 0; i < k.height; ++i) {
    for (int64_t j = 0; j < k.width; ++j) {
      equals_transpose = equals_transpose && std::abs(k.at(i, j) - k.at(j, i)) <= error;
      is_product = is_product && std::abs(k.at(i, j) * *peak - k.at(row, j) * k.at(i, column)) <= error * scale;
    }
  }
  return equals_transpose || is_product;
}

// Whether the elements rise to one peak and fall: zeros, a triangle, zeros. Counts those that are not zero.
bool is_peak(const std::vector<double>& v, int64_t* nonzero) {
  size_t begin = 0, end = v.size();
  while (begin < end && v[begin] == 0) ++begin;
  while (end > begin && v[end - 1] == 0) --end;
  bool falls = false;
  for (size_t i = begin; i < end; ++i) {
    if (!(v[i] > 0)) return false;
    if (i == begin) continue;
    if (v[i] < v[i - 1]) falls = true;
    if (v[i] > v[i - 1] && falls) return false;
  }
  *nonzero += static_cast<int64_t>(end - begin);
  return true;
}

bool is_filter_bank(const Contents& t) {
  if (t.rows < 8 || t.columns < 4 || t.rows <= t.columns) return false;
  std::vector<double> column(static_cast<size_t>(t.rows));
  int64_t nonzero = 0;
  for (int64_t j = 0; j < t.columns; ++j) {
    for (int64_t i = 0; i < t.rows; ++i) column[static_cast<size_t>(i)] = t.at(i, j);
    if (!is_peak(column, &nonzero)) return false;
  }
  return nonzero >= 2 * t.columns && nonzero * 2 <= t.rows * t.columns;
}

}  // namespace

bool is_additive_mask(const Tensor& x) {
  double hidden = 0;
  bool seen_zero = false;
  const bool two = all_elements(x, [&](double v) {
    seen_zero = seen_zero || v == 0;
    if (v == 0) return true;
    if (!(v <= kHides) && (!(v <= -50) || (hidden != 0 && v != hidden))) return false;
    if (hidden == 0) hidden = v;
    return v <= kHides ? hidden <= kHides : true;
  });
  return two && hidden != 0 && seen_zero;
}

bool is_binary(const Tensor& x) {
  bool zero = false, one = false;
  const bool both = all_elements(x, [&](double v) {
    zero = zero || v == 0;
    one = one || v == 1;
    return v == 0 || v == 1;
  });
  return both && zero && one;
}

bool is_geometric(const Tensor& x) {
  if (x.size() < 4 || squeezed(x.shape()).size() != 1) return false;
  const double first = x.at(0), ratio = x.at(1) / first;
  if (!std::isfinite(ratio) || first == 0 || ratio <= 0 || std::abs(ratio - 1) < 1e-3) return false;
  for (int64_t i = 2; i < x.size(); ++i) {
    const double expected = first * std::pow(ratio, static_cast<double>(i));
    if (!(std::abs(x.at(i) - expected) <= kTolerance * std::abs(expected))) return false;
  }
  return true;
}

bool is_ramp(const Tensor& x) {
  const int64_t width = x.shape().empty() ? 0 : x.shape().back();
  if (width < 4 || x.size() == 0) return false;
  int64_t equal_steps = 0;
  for (int64_t row = 0; row < x.size(); row += width) {
    double step = 0;
    for (int64_t j = 1; j < width; ++j) {
      const double a = x.at(row + j - 1), b = x.at(row + j);
      if (a <= kHides || b <= kHides) continue;
      const double found = std::abs(b - a);
      if (step != 0 && !(std::abs(found - step) <= kTolerance * step)) return false;
      equal_steps += step != 0 ? 1 : 0;
      if (step == 0) step = found;
    }
  }
  release_pages(x);
  return equal_steps >= 2;
}

bool is_grid(const Tensor& x) {
  if (x.size() < 64) return false;
  double least = x.at(0), most = x.at(0);
  const bool halves = all_elements(x, [&](double v) {
    least = std::min(least, v);
    most = std::max(most, v);
    return v >= -0.5 && std::isfinite(v) && 2 * v == std::floor(2 * v);
  });
  return halves && most >= 2 && least < most;
}

bool is_window(const Tensor& x) {
  constexpr int64_t kMaxElements = 1 << 16;
  if (x.size() < 8 || x.size() > kMaxElements || squeezed(x.shape()).size() != 1) return false;
  const std::vector<double> v = elements(x);
  int64_t nonzero = 0;
  if (!all_finite(v) || is_uniform(v) || !is_peak(v, &nonzero)) return false;
  // v[i] = v[n-1-i] or, for windows that repeat, v[i] = v[n-i].
  for (const size_t last : {v.size() - 1, v.size()}) {
    bool symmetric = true;
    for (size_t i = last == v.size() ? 1 : 0; i < v.size() && symmetric; ++i) {
      symmetric = std::abs(v[i] - v[last - i]) <= kFilterTolerance * largest(v);
    }
    if (symmetric) return true;
  }
  return false;
}

bool is_sinusoidal(const Tensor& x) {
  const Shape sizes = squeezed(x.shape());
  if (sizes.size() < 2) return false;
  const int64_t rows = sizes[sizes.size() - 2], columns = sizes.back();
  const int64_t tables = x.size() / std::max<int64_t>(rows * columns, 1);
  if (x.size() == 0) return false;
  for (const bool turned : {false, true}) {
    bool all = true;
    for (int64_t k = 0; all && k < std::min<int64_t>(tables, 4); ++k) {
      const int64_t first = k * rows * columns;
      all = is_sinusoidal(turned ? Contents{&x, first, columns, rows, 1, columns}
                                 : Contents{&x, first, rows, columns, columns, 1});
    }
    if (all) return true;
  }
  return false;
}

bool is_fixed_filter(const Tensor& x) {
  const Shape& shape = x.shape();
  if (shape.size() < 3 || shape.size() > 4 || x.size() == 0) return false;
  const int64_t height = shape.size() == 4 ? shape[2] : 1, width = shape.back(), size = height * width;
  constexpr int64_t kMaxKernel = 1 << 12;
  if (size < 3 || size > kMaxKernel) return false;
  std::vector<double> first;
  bool any = false, same = true;
  for (int64_t k = 0; k < x.size() / size; ++k) {
    Kernel kernel{{}, height, width};
    for (int64_t i = 0; i < size; ++i) kernel.values.push_back(x.at(k * size + i));
    if (!all_finite(kernel.values)) return false;
    if (largest(kernel.values) == 0) continue;  // channels that a filter does not read
    any = any || !is_uniform(kernel.values);
    if (first.empty()) first = kernel.values;
    same = same && kernel.values == first;
    if (!(same && shape[1] == 1 && shape[0] > 1) && !is_designed(kernel)) return false;
  }
  return any;
}

bool is_filter_bank(const Tensor& x) {
  const Shape sizes = squeezed(x.shape());
  if (sizes.size() != 2) return false;
  return is_filter_bank(Contents{&x, 0, sizes[0], sizes[1], sizes[1], 1}) ||
         is_filter_bank(Contents{&x, 0, sizes[1], sizes[0], 1, sizes[1]});
}

}  // namespace onnx_train
