#include "onnx_passes/precision/delayed_scaling.h"

#include <cmath>
#include <numbers>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/entry_point.h"

namespace onnx_train {
namespace {

constexpr int64_t kSteps = 16;           // of the history
constexpr int64_t kLeastExponent = -64;  // of a scale; the highest is its opposite

bool is_gradient_type(const Node& rounding) { return rounding.attr("to", 0) == static_cast<int>(DType::kFloat8E5M2); }

bool rounds_to_8_bits(const Node& node) {
  return node.is("RoundTo", kDomain) &&
         (is_gradient_type(node) || node.attr("to", 0) == static_cast<int>(DType::kFloat8E4M3FN));
}

double largest_number(const Node& rounding) { return is_gradient_type(rounding) ? 57344 : 448; }

double expected_magnitude(const Node& rounding) { return is_gradient_type(rounding) ? 1 : 16; }

std::vector<Node*> roundings_of(Graph& graph) {
  std::vector<Node*> found;
  for (Node* node : graph.nodes()) {
    if (rounds_to_8_bits(*node)) found.push_back(node);
  }
  return found;
}

// A history in which each tensor has had its expected magnitude.
Tensor first_history(const std::vector<Node*>& roundings) {
  Tensor history(DType::kFloat, {std::ssize(roundings), kSteps});
  for (int64_t i = 0; i < history.size(); ++i) {
    history.set(i, expected_magnitude(*roundings[static_cast<size_t>(i / kSteps)]));
  }
  return history;
}

// The scale of each rounding, a scalar. Powers of two are looked up, so that they are exact on any runtime.
std::vector<Var> scales_of(Builder& b, Var history, const std::vector<Node*>& roundings) {
  const int64_t count = std::ssize(roundings);
  Tensor largest(DType::kFloat, {count}), powers(DType::kFloat, {1 - 2 * kLeastExponent});
  for (int64_t i = 0; i < count; ++i) largest.set(i, largest_number(*roundings[static_cast<size_t>(i)]));
  for (int64_t i = 0; i < powers.size(); ++i) powers.set(i, std::ldexp(1.0, static_cast<int>(i + kLeastExponent)));
  b.set_name("fp8/scales");
  const Var seen = reduce_max(history, {1}, /*keepdims=*/false);
  const Var is_seen = seen > 0.0, ratio = where(is_seen, seen / b.constant(largest), 1.0);
  const Var exponent = b.op("Ceil", {log(ratio) / std::numbers::ln2});
  const Var least = b.scalar(DType::kFloat, kLeastExponent), most = b.scalar(DType::kFloat, -kLeastExponent);
  const Var place = cast(b.op("Clip", {exponent, least, most}), DType::kInt64) + static_cast<double>(-kLeastExponent);
  const Var scales = gather(b.constant(powers), place, 0);
  std::vector<Var> each = b.ops("Split", static_cast<int>(count), {scales}, {{"axis", 0}, {"num_outputs", count}});
  for (Var& scale : each) scale = squeeze(scale, {0});
  return each;
}

// The greatest magnitude in `x`, [1]; not finite if `x` is empty or holds a NaN.
Var magnitude_of(Var x) { return unsqueeze(x.builder().op("ReduceMax", {abs(x)}, {{"keepdims", 0}}), {0}); }

// `seen` with zeros, which say nothing, in the place of what is not finite.
Var finite(Var seen) {
  Builder& b = seen.builder();
  const Var is_nan = b.op("IsNaN", {seen}), is_none = logical_or(is_nan, b.op("IsInf", {seen}));
  return where(is_none, b.scalar(DType::kFloat, 0), seen);
}

}  // namespace

bool delayed_scaling(Model& model) {
  EntryPoint* step = model.find_entry_point(Entry::kStep);
  if (!step) fail("[DelayedScaling] the model has no entry point 'step'; run the pass 'gradients' first");
  Graph& graph = *step->algorithm;
  const std::vector<Node*> roundings = roundings_of(graph);
  if (roundings.empty()) return false;
  Value* state = add_state(model, &graph, "state/fp8/magnitudes", first_history(roundings), {roles::kMagnitudes, ""});
  Builder first(&graph, graph.first()), last(&graph);
  const std::vector<Var> scales = scales_of(first, first.var(state), roundings);
  std::vector<Var> magnitudes;
  for (size_t i = 0; i < roundings.size(); ++i) {
    Node* rounding = roundings[i];
    Value* x = rounding->input(0);
    const std::string name = rounding->output()->name();
    last.set_name(name + "/magnitude");
    magnitudes.push_back(magnitude_of(last.var(x)));
    Builder b(&graph, rounding);
    b.set_name(name);
    const Attrs attrs = {{"to", rounding->attr("to", 0)}};
    const Var y = call(b, "FakeQuantize", {b.var(x), b.var(scales[i].value())}, attrs);
    graph.replace(rounding->output(), y.value());
    graph.remove(rounding);
    graph.claim_name(y.value(), name);
  }
  last.set_name("fp8/magnitudes");
  const Var newest = unsqueeze(finite(concat(magnitudes, int64_t{0})), {1});
  bind_state(step, state, concat(std::vector<Var>{newest, slice(last.var(state), 0, kSteps - 1, 1)}, int64_t{1}));
  return true;
}

}  // namespace onnx_train
