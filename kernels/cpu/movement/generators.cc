// Operators whose output depends on sizes and scalars, not on the elements of a tensor.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/movement/strided_copy.h"
#include "kernels/dispatch.h"
#include "kernels/math/wrapping.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"

namespace onnx_train::cpu {
namespace {

// Copies a constant.
Prepared write_known(const Tensor& tensor) {
  Prepared prepared;
  prepared.run = [tensor](const Launch& launch) {
    if (tensor.bytes() > 0) std::memcpy(launch.outputs[0], tensor.data(), tensor.bytes());
  };
  return prepared;
}

Prepared prepare_shape(const NodeSpec& spec) {
  const Shape shape = spec.in_shape(0);
  const int64_t rank = static_cast<int64_t>(shape.size());
  const auto place = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t start = place(spec.node().attr("start", 0)), end = place(spec.node().attr("end", rank));
  return write_known(Tensor::ints({shape.begin() + start, shape.begin() + std::max(start, end)}));
}

Prepared prepare_size(const NodeSpec& spec) { return write_known(Tensor::scalar<int64_t>(spec.in_size(0))); }

Prepared prepare_constant(const NodeSpec& spec) { return write_known(constant_of(spec.node().output())); }

bool is_dense_constant(const NodeSpec& spec) {
  const Node& node = spec.node();
  return !node.has_attr("sparse_value") && !node.has_attr("value_string") && !node.has_attr("value_strings") &&
         spec.out_type() != DType::kString;
}

Prepared prepare_constant_of_shape(const NodeSpec& spec) {
  Tensor value = spec.node().attr_tensor("value");
  if (value.empty()) value = Tensor::scalar<float>(0);
  if (value.size() != 1 || value.dtype() != spec.out_type()) {
    fail(spec.node().label(), ": its value is ", name(value.dtype()), to_string(value.shape()), " for an output of ",
         name(spec.out_type()), "; it must be one element of the output's type");
  }
  Prepared prepared;
  prepared.run = [value, fill = StridedCopy({{spec.out_size(), 0, 1}}, size_of(spec.out_type()))](
                     const Launch& launch) { fill.run(value.data(), launch.outputs[0]); };
  return prepared;
}

// y_i = start + i delta
Prepared prepare_range(const NodeSpec& spec) {
  const int64_t n = spec.out_size();
  Prepared prepared;
  prepared.run = dispatch_numeric(spec.out_type(), [n]<typename T>(T) -> std::function<void(const Launch&)> {
    return [n](const Launch& launch) {
      const T start = *launch.in<T>(0), delta = *launch.in<T>(2);
      for (int64_t i = 0; i < n; ++i) {
        launch.out<T>()[i] =
            static_cast<T>(math::wrapping(start) + math::wrapping(static_cast<T>(i)) * math::wrapping(delta));
      }
    };
  });
  return prepared;
}

// The length depends on the contents of the inputs, which must be constant.
bool supports_range(const NodeSpec& spec) {
  for (int i = 0; i < 3; ++i) {
    if (!spec.is_constant(i) || spec.in_size(i) != 1 || spec.in_type(i) != spec.out_type()) return false;
  }
  return is_numeric(spec.out_type());
}

// 1 on the k-th diagonal above the main one, 0 elsewhere.
Prepared prepare_eye_like(const NodeSpec& spec) {
  Tensor eye(spec.out_type(), spec.out_shape());
  const int64_t rows = spec.out_shape()[0], columns = spec.out_shape()[1];
  const int64_t k = std::clamp<int64_t>(spec.node().attr("k", 0), -rows, columns);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t j = i + k;
    if (j >= 0 && j < columns) eye.set(i * columns + j, 1);
  }
  return write_known(eye);
}

}  // namespace

std::vector<Kernel> generator_kernels() {
  const auto always = [](const NodeSpec&) { return true; };
  return {
      {"Shape", always, prepare_shape},
      {"Size", always, prepare_size},
      {"Constant", is_dense_constant, prepare_constant},
      {"ConstantOfShape", always, prepare_constant_of_shape},
      {"Range", supports_range, prepare_range},
      {"EyeLike", always, prepare_eye_like},
  };
}

}  // namespace onnx_train::cpu
