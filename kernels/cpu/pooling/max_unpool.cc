// MaxUnpool, a partial inverse of MaxPool. Element i of x goes to position `indices[i]` of an output of zeros.
// Positions count in row-major order over [N, C, D...] with D = (size of x - 1) * stride + kernel - padding on each
// spatial axis. If output_shape asks for a larger output, this box is its beginning on every axis.
#include <cstring>

#include "kernels/cpu/movement/indices.h"
#include "kernels/cpu/pooling/pooling.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// Maps position `index` in a tensor of `shape`, which is the beginning of y on every axis, to the position in y.
int64_t place_in(const Shape& y, const Shape& shape, int64_t index) {
  int64_t place = 0, stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    place += index % shape[i] * stride;
    index /= shape[i];
    stride *= y[i];
  }
  return place;
}

template <typename T>
Prepared prepare_max_unpool(const NodeSpec& spec) {
  const Shape y = spec.out_shape(), shape = unpooled_shape(spec, y);
  const int64_t count = spec.in_size(), places = num_elements(shape);
  Prepared prepared;
  prepared.run = [=, is_whole = shape == y,
                  bytes = static_cast<size_t>(spec.out_size()) * sizeof(T)](const Launch& launch) {
    const auto* const indices = launch.in<int64_t>(1);
    for (int64_t i = 0; i < count; ++i) {
      if (indices[i] < 0 || indices[i] >= places) return launch.report(1, i, indices[i]);
    }
    if (bytes > 0) std::memset(launch.outputs[0], 0, bytes);
    for (int64_t i = 0; i < count; ++i) {
      launch.out<T>()[is_whole ? indices[i] : place_in(y, shape, indices[i])] = launch.in<T>(0)[i];
    }
  };
  prepared.explain = [places](const Fault& fault) {
    return concat("index ", fault.value, " is outside of the ", places, " places of the output");
  };
  return prepared;
}

template <DType dtype>
bool supports_max_unpool(const NodeSpec& spec) {
  return spec.in_type() == dtype && spec.one_type(1) && spec.in_shape().size() >= 3;
}

}  // namespace

std::vector<Kernel> unpooling_kernels() {
  return {
      {"MaxUnpool", supports_max_unpool<DType::kFloat>, prepare_max_unpool<float>, "", "", InputCheck::kChecks},
      {"MaxUnpool", supports_max_unpool<DType::kDouble>, prepare_max_unpool<double>, "", "", InputCheck::kChecks},
  };
}

}  // namespace onnx_train::cpu
