// Det, its gradient and Inverse (kernels/math/determinant.h), a matrix at a time.
#include <algorithm>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/math/determinant.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

int64_t matrix_grain(int64_t n) { return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, n * n * n)); }

// The elimination is in float64: in float32 the determinant of a singular matrix is a rounding error, whose size
// depends on the compiler.
template <typename T>
Prepared prepare_det(const NodeSpec& spec) {
  const int64_t n = spec.in_shape(0).back(), count = spec.out_size();
  const size_t bytes = static_cast<size_t>(spec.in_size(0)) * sizeof(double);
  return {[=](const Launch& launch) {
            parallel_for(count, matrix_grain(n), [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                double* matrix = launch.scratch<double>() + i * n * n;
                std::copy_n(launch.in<T>(0) + i * n * n, n * n, matrix);
                launch.out<T>()[i] = static_cast<T>(math::determinant(n, matrix));
              }
            });
          },
          bytes};
}

template <typename T>
Prepared prepare_inverse(const NodeSpec& spec) {
  const int64_t n = spec.in_shape(0).back(), count = n == 0 ? 0 : spec.in_size(0) / (n * n);
  return {[=](const Launch& launch) {
            parallel_for(count, matrix_grain(n), [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                T* matrix = launch.scratch<T>() + i * n * n;
                std::copy_n(launch.in<T>(0) + i * n * n, n * n, matrix);
                math::invert(n, matrix, launch.out<T>() + i * n * n);
              }
            });
          },
          static_cast<size_t>(spec.in_size(0)) * sizeof(T)};
}

template <typename T>
Prepared prepare_det_grad(const NodeSpec& spec) {
  const int64_t n = spec.in_shape(1).back(), count = spec.in_size(0), elements = math::cofactor_elements(n);
  return {[=](const Launch& launch) {
            parallel_for(count, matrix_grain(n), [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                math::cofactors(n, launch.in<T>(1) + i * n * n, launch.in<T>(0)[i], launch.out<T>() + i * n * n,
                                launch.scratch<T>() + i * elements);
              }
            });
          },
          static_cast<size_t>(count * elements) * sizeof(T)};
}

bool supports_det(const NodeSpec& spec) {
  return is_float_or_double(spec.out_type()) && spec.one_type(spec.num_inputs());
}

}  // namespace

std::vector<Kernel> determinant_kernels() {
  return {
      {"Det", supports_det,
       [](const NodeSpec& spec) {
         return dispatch_float(spec.out_type(), [&]<typename T>(T) { return prepare_det<T>(spec); });
       }},
      {"DetGrad", supports_det,
       [](const NodeSpec& spec) {
         return dispatch_float(spec.out_type(), [&]<typename T>(T) { return prepare_det_grad<T>(spec); });
       },
       kDomain},
      {"Inverse", supports_det,
       [](const NodeSpec& spec) {
         return dispatch_float(spec.out_type(), [&]<typename T>(T) { return prepare_inverse<T>(spec); });
       },
       kDomain},
  };
}

}  // namespace onnx_train::cpu
