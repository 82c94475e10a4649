// Softmax, LogSoftmax and their gradients along one axis. Each row is read once for its sums and once for its results.
#include <limits>

#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/axis_view.h"
#include "kernels/geometry/indexing/broadcast.h"
#include "kernels/math/reducers.h"
#include "kernels/math/vector_math.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// The operators: each defines a sum over a row (start, add, merge) and the result (finish), of a and, for gradients, b.

// y = exp(x - max x) / Σ exp(x - max x)
template <typename T>
struct Softmax : math::ExponentialSum<T> {
  using Acc = typename math::ExponentialSum<T>::Acc;
  __device__ static T finish(const Acc& acc, T x, T) { return math::exp(x - acc.largest) / acc.sum; }
};

// y = x - max x - log Σ exp(x - max x)
template <typename T>
struct LogSoftmax : math::ExponentialSum<T> {
  using Acc = typename math::ExponentialSum<T>::Acc;
  __device__ static T finish(const Acc& acc, T x, T) { return x - acc.largest - math::log(acc.sum); }
};

// dx = y (dy - Σ dy y)
template <typename T>
struct SoftmaxGrad {
  using Acc = T;
  __device__ static Acc start() { return 0; }
  __device__ static Acc add(Acc acc, T dy, T y) { return acc + dy * y; }
  __device__ static Acc merge(Acc a, Acc b) { return a + b; }
  __device__ static T finish(Acc acc, T dy, T y) { return y * (dy - acc); }
};

// dx = dy - exp(y) Σ dy
template <typename T>
struct LogSoftmaxGrad {
  using Acc = T;
  __device__ static Acc start() { return 0; }
  __device__ static Acc add(Acc acc, T dy, T) { return acc + dy; }
  __device__ static Acc merge(Acc a, Acc b) { return a + b; }
  __device__ static T finish(Acc acc, T dy, T y) { return dy - math::exp(y) * acc; }
};

// b is a if the operator has one operand. y may be a or b, because the thread that writes an element also reads it.
// Operands are stored as S, results as Y.
template <typename Op, typename S, typename Y, int kRowThreads>
__global__ void along_axis(AxisView view, const Fault* guard, const S* a, const S* b, Y* y) {
  using Threads = RowThreads<kRowThreads>;
  if (stops(guard) || Threads::row() >= view.lines()) return;
  const int64_t line = view.line(Threads::row());
  auto acc = Op::start();
  for (int64_t i = Threads::first(); i < view.size; i += kRowThreads) {
    acc = Op::add(acc, widened(a[line + i * view.inner]), widened(b[line + i * view.inner]));
  }
  acc = Threads::merge(acc, [](const auto& p, const auto& q) { return Op::merge(p, q); });
  for (int64_t i = Threads::first(); i < view.size; i += kRowThreads) {
    const int64_t at = line + i * view.inner;
    y[at] = math::convert<Y>(Op::finish(acc, widened(a[at]), widened(b[at])));
  }
}

template <typename Op, typename S, typename Y>
Prepared prepare_lines(const NodeSpec& spec, const char* name) {
  const AxisView view(spec.out_shape(), spec.node().attr("axis", -1));
  const int inputs = spec.num_inputs();
  Prepared prepared;
  prepared.run = [=](const Launch& launch) {
    if (view.lines() * view.size == 0) return;
    enqueue_lines<Computed<S>>(
        launch, name, view, [](auto threads) { return along_axis<Op, S, Y, threads()>; }, view,
        guard_of(launch, inputs, 1), launch.in<S>(0), launch.in<S>(inputs - 1), launch.out<Y>());
  };
  if (sizeof(S) == sizeof(Y)) prepared.in_place = in_place_of_equal_inputs(spec, inputs);
  return prepared;
}

template <template <typename> typename Op>
Kernel kernel(const char* op, const char* domain) {
  return {op,
          [](const NodeSpec& spec) {
            return is_stored_pair(spec.in_type(), spec.out_type()) &&
                   spec.in_type(spec.num_inputs() - 1) == spec.in_type();
          },
          [op](const NodeSpec& spec) {
            return dispatch_stored_pair(spec.in_type(), spec.out_type(), [&]<typename S, typename Y>(S, Y) {
              return prepare_lines<Op<Computed<S>>, S, Y>(spec, op);
            });
          },
          domain};
}

}  // namespace

std::vector<Kernel> softmax_kernels() {
  return {
      kernel<Softmax>("Softmax", ""),
      kernel<LogSoftmax>("LogSoftmax", ""),
      kernel<Softmax>("Softmax", kDomain),
      kernel<LogSoftmax>("LogSoftmax", kDomain),
      kernel<SoftmaxGrad>("SoftmaxGrad", kDomain),
      kernel<LogSoftmaxGrad>("LogSoftmaxGrad", kDomain),
  };
}

}  // namespace onnx_train::cuda
