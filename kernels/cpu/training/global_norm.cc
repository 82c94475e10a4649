// The norm of all gradients together, in one pass.
#include "kernels/cpu/training/global_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// Elements per partial sum; the partition does not depend on the number of threads.
constexpr int64_t kPiece = 4096;

struct GradientPiece {
  int input;
  bool is_double;
  int64_t begin, size;

  double sum_of_squares(const Launch& launch) const {
    return is_double ? sum_of_squares(launch.in<double>(input)) : sum_of_squares(launch.in<float>(input));
  }
  template <typename T>
  double sum_of_squares(const T* x) const {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < begin + size; ++i) sum += x[i] * x[i];
    return static_cast<double>(sum);
  }
};

Prepared prepare_global_norm(const NodeSpec& spec) {
  std::vector<GradientPiece> pieces;
  for (int i = 0; i < spec.num_inputs(); ++i) {
    for (int64_t begin = 0; begin < spec.in_size(i); begin += kPiece) {
      pieces.push_back({i, spec.in_type(i) == DType::kDouble, begin, std::min(kPiece, spec.in_size(i) - begin)});
    }
  }
  const auto count = static_cast<int64_t>(pieces.size());
  const bool double_norm = spec.out_type() == DType::kDouble;
  const auto run = [=](const Launch& launch) {
    double* sums = launch.scratch<double>();
    parallel_for(count, kElementGrain / kPiece, [&](int64_t begin, int64_t end) {
      vectorized([&] {
        for (int64_t i = begin; i < end; ++i) sums[i] = pieces[static_cast<size_t>(i)].sum_of_squares(launch);
      });
    });
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += sums[i];
    if (double_norm) {
      *launch.out<double>() = std::sqrt(total);
    } else {
      *launch.out<float>() = static_cast<float>(std::sqrt(total));
    }
  };
  return {.run = run, .workspace = pieces.size() * sizeof(double)};
}

bool norm_supports(const NodeSpec& spec) {
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!is_float_or_double(spec.in_type(i))) return false;
  }
  return true;
}

}  // namespace

Kernel global_norm_kernel() { return {"GlobalNorm", norm_supports, prepare_global_norm, kDomain}; }

}  // namespace onnx_train::cpu
