#include <algorithm>
#include <optional>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/recognize/recognize.h"

namespace onnx_train {
namespace {

// ---- Rows: LayerNormalization, RMSNormalization

// The sizes of the last axes of x, from `axis` on; nothing if one is unknown.
std::optional<Shape> row_shape(const Value& x, int64_t axis) {
  Shape shape;
  for (int64_t i = axis; i < x.rank(); ++i) {
    const Dim& dim = (*x.type().dims)[static_cast<size_t>(i)];
    if (!dim.known()) return std::nullopt;
    shape.push_back(dim.value());
  }
  return shape;
}

// x with the formula's scale and bias, which must have exactly the shape of a row, the only form that every runtime
// accepts. A missing scale becomes ones. Empty if the shapes do not fit.
std::vector<Var> row_inputs(Builder& b, const Match& m) {
  const Value& x = *m.values.at("x");
  const auto shape = row_shape(x, m.axis());
  if (!shape) return {};
  std::vector<Var> inputs{b.var(m.values.at("x"))};
  for (const char* name : {"scale", "bias"}) {
    const auto found = m.values.find(name);
    if (found == m.values.end()) continue;
    const TensorType& type = found->second->type();
    if (!type.is_static() || type.shape() != *shape || type.dtype != x.dtype()) return {};
    inputs.push_back(b.var(found->second));
  }
  // Not an initializer: initializers with more than one element count as weights.
  if (inputs.size() == 1) inputs.push_back(expand(b.scalar(x.dtype(), 1), b.ints(*shape)));
  return inputs;
}

auto normalization(const char* op, int64_t since) {
  return [op, since](Builder& b, const Match& m, const Node&) -> Var {
    const Value& x = *m.values.at("x");
    const double epsilon = m.numbers.at("epsilon");
    if (!(epsilon >= 0) || !is_attribute(epsilon, x.dtype())) return {};
    const std::vector<Var> inputs = row_inputs(b, m);
    if (inputs.empty()) return {};
    return standard_or_ours(b, op, since, inputs,
                            {{"axis", m.axis() - x.rank()}, {"epsilon", static_cast<float>(epsilon)}});
  };
}

// ---- Groups: InstanceNormalization of [batch, groups, rest] between two Reshapes, the form that exporters write

// A constant with this number in every element; exporters expand a scalar in the graph.
bool all_are(const Value* value, double number) {
  constexpr int kLongestChain = 64;
  int nodes = 0;
  for (const Node* node = value->producer(); node && !node->is("Constant"); node = value->producer()) {
    if (++nodes > kLongestChain) return false;
    if (!node->is("Expand") && !node->is("CastLike") && !node->is("Cast") && !node->is("Identity")) return false;
    value = node->input(0);
  }
  return constant_of(value).holds_only(number);
}

// [batch, channels, ...] with all sizes except the batch known, viewed as [batch, groups, rest].
bool are_groups_of(const Value& groups, const Value& x) {
  if (!x.has_rank() || x.rank() < 3 || !groups.has_rank() || groups.rank() != 3) return false;
  const auto &whole = *x.type().dims, &parts = *groups.type().dims;
  return whole[0].same(parts[0]) && whole[1].known() && parts[1].known() && parts[1].value() > 0 &&
         whole[1].value() % parts[1].value() == 0;
}

bool have_same_dims(const Value& a, const Value& b) {
  if (!a.has_rank() || !b.has_rank() || a.rank() != b.rank()) return false;
  return std::equal(a.type().dims->begin(), a.type().dims->end(), b.type().dims->begin(),
                    [](const Dim& x, const Dim& y) { return x.same(y); });
}

// The vector of one number per channel, if the value broadcasts like that with images of this rank; otherwise empty.
Var per_channel(Builder& b, Value* v, int64_t channels, int64_t rank) {
  if (!v->type().is_static() || v->rank() < rank - 1 || v->rank() > rank) return {};
  const Shape shape = v->type().shape();
  if (num_elements(shape) != channels || shape[static_cast<size_t>(v->rank() - rank + 1)] != channels) return {};
  const Node* node = v->producer();
  Value* before = node && (node->is("Unsqueeze") || node->is("Reshape")) ? node->input(0) : nullptr;
  if (before && before->type() == TensorType{v->dtype(), Dims{channels}}) return b.var(before);
  return reshape(b.var(v), b.ints({channels}));
}

Var group_normalization(Builder& b, const Match& m, const Node& last) {
  const Value &x = *m.values.at("x"), &result = *last.output();
  const Node& normalization =
      **std::find_if(m.nodes.begin(), m.nodes.end(), [](const Node* n) { return n->is("InstanceNormalization"); });
  const Value& groups = *normalization.input(0);
  if (!are_groups_of(groups, x) || !have_same_dims(result, x)) return {};
  if (!all_are(m.values.at("ones"), 1) || !all_are(m.values.at("zeros"), 0)) return {};
  const int64_t channels = (*x.type().dims)[1].value();
  std::vector<Var> inputs{b.var(m.values.at("x"))};
  for (const char* name : {"scale", "bias"}) {
    const Var v = per_channel(b, m.values.at(name), channels, x.rank());
    if (!v || v.dtype() != x.dtype()) return {};
    inputs.push_back(v);
  }
  const float epsilon = normalization.attr("epsilon", 1e-5f);
  return b.op("GroupNormalization", inputs, {{"num_groups", (*groups.type().dims)[1].value()}, {"epsilon", epsilon}});
}

}  // namespace

std::vector<Rewrite> normalization_rewrites() {
  const Pattern x = any("x"), scale = any("scale"), bias = any("bias"), epsilon = number("epsilon");
  const Pattern centered = x - mean(x);
  const Pattern normalized = centered / sqrt(mean(pow(centered, 2)) + epsilon);
  const Pattern rms_norm = x / sqrt(mean(pow(x, 2)) + epsilon);
  const Pattern groups = op("Reshape", {x, any("groups_shape")});
  const Pattern normalized_groups = op("InstanceNormalization", {groups, any("ones"), any("zeros")});
  const Pattern group_norm = op("Reshape", {normalized_groups, any("shape")}) * scale + bias;
  const auto layer_normalization = normalization("LayerNormalization", 17);
  const auto rms_normalization = normalization("RMSNormalization", 23);
  return {
      {"LayerNormalization", normalized * scale + bias, layer_normalization},
      {"LayerNormalization", normalized * scale, layer_normalization},
      {"LayerNormalization", normalized, layer_normalization},
      {"RMSNormalization", rms_norm * scale, rms_normalization},
      {"RMSNormalization", rms_norm, rms_normalization},
      {"GroupNormalization", group_norm, group_normalization, {"ones", "zeros"}},
  };
}

}  // namespace onnx_train
