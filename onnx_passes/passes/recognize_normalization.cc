#include "onnx_passes/passes/recognize.h"

namespace onnx_train {
namespace {

// Has exactly the sizes of the last axes of x, from `axis` on: the most that every runtime takes.
bool has_row_shape(const Value& v, const Value& x, int64_t axis) {
  if (!v.type().is_static() || v.rank() != x.rank() - axis) return false;
  for (int64_t i = axis; i < x.rank(); ++i) {
    const Dim& dim = (*x.type().dims)[static_cast<size_t>(i)];
    if (!dim.known() || dim.value() != v.type().shape()[static_cast<size_t>(i - axis)]) return false;
  }
  return true;
}

auto normalization(const char* op) {
  return [op](Builder& b, const Match& m, const Node&) -> Var {
    const Value& x = *m.values.at("x");
    std::vector<Var> inputs{b.var(m.values.at("x"))};
    for (const char* name : {"scale", "bias"}) {
      const auto found = m.values.find(name);
      if (found == m.values.end()) continue;
      if (!has_row_shape(*found->second, x, m.axis()) || found->second->dtype() != x.dtype()) return {};
      inputs.push_back(b.var(found->second));
    }
    const double epsilon = m.numbers.at("epsilon");
    if (!(epsilon >= 0) || !is_attribute(epsilon, x.dtype())) return {};
    return b.op(op, inputs, {{"axis", m.axis() - x.rank()}, {"epsilon", static_cast<float>(epsilon)}});
  };
}

}  // namespace

std::vector<Rewrite> normalization_rewrites() {
  const Pattern x = any("x"), scale = any("scale"), bias = any("bias"), epsilon = number("epsilon");
  const Pattern centered = x - mean(x);
  const Pattern layer_norm = centered / sqrt(mean(pow(centered, 2)) + epsilon) * scale;
  const Pattern rms_norm = x / sqrt(mean(pow(x, 2)) + epsilon) * scale;
  return {
      {"LayerNormalization", layer_norm + bias, normalization("LayerNormalization")},
      {"LayerNormalization", layer_norm, normalization("LayerNormalization")},
      {"RMSNormalization", rms_norm, normalization("RMSNormalization"), 23},
  };
}

}  // namespace onnx_train
