// Operators whose output depends only on sizes, scalars and positions (kernels/geometry/generators.h), and OneHot.
#include "kernels/geometry/generators.h"

#include <cstring>

#include "kernels/cuda/support/device_table.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/device.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/scans.h"
#include "kernels/math/wrapping.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

Prepared write_known(const Tensor& tensor) {
  if (tensor.bytes() == 0) return {[](const Launch&) {}};
  return {[table = std::make_shared<const DeviceTable>(tensor.data(), tensor.bytes())](const Launch& launch) {
    launch.stream->copy({launch.outputs[0], table->data<void>(), table->bytes()});
  }};
}

// ---- ConstantOfShape, EyeLike: elements of any type are copied as integers of their size

template <typename T>
T bits_of(const Tensor& element) {
  T bits;
  std::memcpy(&bits, element.data(), sizeof(T));
  return bits;
}

template <typename T>
__global__ void fill(int64_t n, T value, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) y[i] = value;
}

Prepared prepare_constant_of_shape(const NodeSpec& spec) {
  const Tensor value = fill_value(spec);
  const int64_t n = spec.out_size();
  Prepared prepared;
  prepared.run = dispatch_size(size_of(spec.out_type()), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [n, bits = bits_of<T>(value)](const Launch& launch) {
      enqueue_each(launch, "fill", fill<T>, n, bits, launch.out<T>());
    };
  });
  return prepared;
}

template <typename T>
__global__ void fill_diagonal(int64_t n, Divider columns, int64_t diagonal, T one, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t row = columns.quotient(i), column = i - row * columns.divisor();
  y[i] = column - row == diagonal ? one : T{0};
}

Prepared prepare_eye_like(const NodeSpec& spec) {
  const Eye eye = eye_of(spec);
  const int64_t n = eye.rows * eye.columns;
  const Tensor one = Tensor::full(spec.out_type(), {1}, 1);
  if (n == 0) return {[](const Launch&) {}};
  Prepared prepared;
  prepared.run = dispatch_size(size_of(spec.out_type()), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=, bits = bits_of<T>(one)](const Launch& launch) {
      enqueue_each(launch, "fill_diagonal", fill_diagonal<T>, n, Divider(eye.columns), eye.diagonal, bits,
                   launch.out<T>());
    };
  });
  return prepared;
}

// ---- Range

template <typename T>
__global__ void write_range(int64_t n, const T* start, const T* delta, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  y[i] = static_cast<T>(math::wrapping(*start) + math::wrapping(static_cast<T>(i)) * math::wrapping(*delta));
}

Prepared prepare_range(const NodeSpec& spec) {
  const int64_t n = spec.out_size();
  Prepared prepared;
  prepared.run = dispatch_numeric(spec.out_type(), [n]<typename T>(T) -> std::function<void(const Launch&)> {
    return [n](const Launch& launch) {
      enqueue_each(launch, "write_range", write_range<T>, n, launch.in<T>(0), launch.in<T>(2), launch.out<T>());
    };
  });
  return prepared;
}

// ---- OneHot: finds positions on the axis first, so that the second kernel does not depend on the indices' type

template <typename Index>
__global__ void find_hot(int64_t n, int64_t depth, const Index* indices, int64_t* hot) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) hot[i] = hot_position(indices[i], depth);
}

template <typename T>
__global__ void write_one_hot(int64_t n, Divider inner, Divider depth, const int64_t* hot, const T* values, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t at = inner.quotient(i), outer = depth.quotient(at);
  const int64_t line = outer * inner.divisor() + i - at * inner.divisor();
  y[i] = values[at - outer * depth.divisor() == hot[line] ? 1 : 0];
}

Prepared prepare_one_hot(const NodeSpec& spec) {
  const AxisView y = one_hot_axis(spec);
  const int64_t all = spec.out_size(), count = spec.in_size(0);
  if (all == 0) return {[](const Launch&) {}};
  using Run = std::function<void(const Launch&)>;
  const Run find = dispatch_numeric(spec.in_type(0), [&]<typename Index>(Index) -> Run {
    return [=](const Launch& launch) {
      enqueue_each(launch, "find_hot", find_hot<Index>, count, y.size, launch.in<Index>(0), launch.scratch<int64_t>());
    };
  });
  const Run write = dispatch_size(size_of(spec.out_type()), [&]<typename T>(T) -> Run {
    return [=](const Launch& launch) {
      enqueue_each(launch, "write_one_hot", write_one_hot<T>, all, Divider(y.inner), Divider(y.size),
                   launch.scratch<int64_t>(), launch.in<T>(2), launch.out<T>());
    };
  });
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(count) * sizeof(int64_t);
  prepared.run = [find, write](const Launch& launch) {
    find(launch);
    write(launch);
  };
  return prepared;
}

}  // namespace

std::vector<Kernel> generator_kernels() {
  const auto always = [](const NodeSpec&) { return true; };
  std::vector<Kernel> kernels = {
      {"ConstantOfShape", always, prepare_constant_of_shape},
      {"Range", supports_range, prepare_range},
      {"EyeLike", always, prepare_eye_like},
      {"OneHot", supports_one_hot, prepare_one_hot},
  };
  for (const KnownRow& row : known_rows()) {
    kernels.push_back(
        {row.op, row.supports, [output = row.output](const NodeSpec& spec) { return write_known(output(spec)); }});
  }
  return kernels;
}

}  // namespace onnx_train::cuda
