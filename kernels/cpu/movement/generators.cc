// Operators whose output depends on sizes and scalars, not on the elements of a tensor.
#include <cstring>

#include "kernels/cpu/movement/strided_copy.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/generators.h"
#include "kernels/math/wrapping.h"

namespace onnx_train::cpu {
namespace {

// Copies a tensor that is known when the plan is built.
Prepared write_known(const Tensor& tensor) {
  Prepared prepared;
  prepared.run = [tensor](const Launch& launch) {
    if (tensor.bytes() > 0) std::memcpy(launch.outputs[0], tensor.data(), tensor.bytes());
  };
  return prepared;
}

Prepared prepare_constant_of_shape(const NodeSpec& spec) {
  Prepared prepared;
  prepared.run = [value = fill_value(spec), fill = StridedCopy({{spec.out_size(), 0, 1}}, size_of(spec.out_type()))](
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

Prepared prepare_eye_like(const NodeSpec& spec) {
  Tensor eye(spec.out_type(), spec.out_shape());
  const auto [rows, columns, k] = eye_of(spec);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t j = i + k;
    if (j >= 0 && j < columns) eye.set(i * columns + j, 1);
  }
  return write_known(eye);
}

}  // namespace

std::vector<Kernel> generator_kernels() {
  const auto always = [](const NodeSpec&) { return true; };
  std::vector<Kernel> kernels = {
      {"ConstantOfShape", always, prepare_constant_of_shape},
      {"Range", supports_range, prepare_range},
      {"EyeLike", always, prepare_eye_like},
  };
  for (const KnownRow& row : known_rows()) {
    kernels.push_back(
        {row.op, row.supports, [output = row.output](const NodeSpec& spec) { return write_known(output(spec)); }});
  }
  return kernels;
}

}  // namespace onnx_train::cpu
