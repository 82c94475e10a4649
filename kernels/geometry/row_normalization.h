// The rows that LayerNormalization and RMSNormalization normalize: the axes from `axis` on. A plain value.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train {

struct NormalizedRows {
  int64_t count = 1, n = 1;  // rows, and elements of a row
  double epsilon;
  bool centered;  // LayerNormalization subtracts the mean, RMSNormalization does not

  NormalizedRows(const NodeSpec& spec, bool is_centered)
      : epsilon(spec.node().attr("epsilon", 1e-5f)), centered(is_centered) {
    const Shape shape = spec.in_shape(0);
    const auto axis =
        static_cast<size_t>(normalize_axis(spec.node().attr("axis", -1), static_cast<int64_t>(shape.size())));
    for (size_t i = 0; i < shape.size(); ++i) (i < axis ? count : n) *= shape[i];
  }
  // Whether scale and bias have one element per element of a row. For other broadcasts the operator's body runs.
  bool has_parameters_of_rows(const NodeSpec& spec) const {
    const bool bias = centered && spec.has_input(2);
    return spec.in_size(1) == n && (!bias || spec.in_size(2) == n);
  }
};

}  // namespace onnx_train
