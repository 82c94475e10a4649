// Det, its gradient and Inverse (kernels/math/determinant.h), one thread per matrix.
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/dispatch.h"
#include "kernels/math/determinant.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
__global__ void determinants(int64_t count, int64_t n, const T* __restrict__ x, T* y, T* workspace) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  T* matrix = workspace + i * n * n;
  for (int64_t k = 0; k < n * n; ++k) matrix[k] = x[i * n * n + k];
  y[i] = math::determinant(n, matrix);
}

template <typename T>
__global__ void inverses(int64_t count, int64_t n, const T* __restrict__ x, T* y, T* workspace) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  T* matrix = workspace + i * n * n;
  for (int64_t k = 0; k < n * n; ++k) matrix[k] = x[i * n * n + k];
  math::invert(n, matrix, y + i * n * n);
}

template <typename T>
__global__ void determinant_gradients(int64_t count, int64_t n, int64_t elements, const T* __restrict__ dy,
                                      const T* __restrict__ x, T* dx, T* workspace) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) math::cofactors(n, x + i * n * n, dy[i], dx + i * n * n, workspace + i * elements);
}

bool supports_det(const NodeSpec& spec) {
  return is_float_or_double(spec.out_type()) && spec.one_type(spec.num_inputs());
}

Prepared prepare_det(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) -> Prepared {
    const int64_t n = spec.in_shape(0).back(), count = spec.out_size();
    return {[=](const Launch& launch) {
              enqueue_each(launch, "determinants", determinants<T>, count, n, launch.in<T>(0), launch.out<T>(),
                           launch.scratch<T>());
            },
            static_cast<size_t>(spec.in_size(0)) * sizeof(T)};
  });
}

Prepared prepare_det_grad(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) -> Prepared {
    const int64_t n = spec.in_shape(1).back(), count = spec.in_size(0), elements = math::cofactor_elements(n);
    return {[=](const Launch& launch) {
              enqueue_each(launch, "determinant_gradients", determinant_gradients<T>, count, n, elements,
                           launch.in<T>(0), launch.in<T>(1), launch.out<T>(), launch.scratch<T>());
            },
            static_cast<size_t>(count * elements) * sizeof(T)};
  });
}

Prepared prepare_inverse(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) -> Prepared {
    const int64_t n = spec.in_shape(0).back(), count = n == 0 ? 0 : spec.in_size(0) / (n * n);
    return {[=](const Launch& launch) {
              enqueue_each(launch, "inverses", inverses<T>, count, n, launch.in<T>(0), launch.out<T>(),
                           launch.scratch<T>());
            },
            static_cast<size_t>(spec.in_size(0)) * sizeof(T)};
  });
}

}  // namespace

std::vector<Kernel> determinant_kernels() {
  return {
      {"Det", supports_det, prepare_det},
      {"DetGrad", supports_det, prepare_det_grad, kDomain},
      {"Inverse", supports_det, prepare_inverse, kDomain},
  };
}

}  // namespace onnx_train::cuda
