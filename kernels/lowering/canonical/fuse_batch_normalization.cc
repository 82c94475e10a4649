// Fuses batch normalization with the Relu or Add and Relu after it, and in training its gradient with the gradient of
// Relu, so that an activation is read and written once. The mask of Relu is derived from its output. The attribute
// round_to describes a rounding between them in mixed precision (kernels/functions/batch_normalization.cc).
#include <algorithm>
#include <set>
#include <string>

#include "kernels/functions/functions.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/positions.h"
#include "kernels/lowering/support/readers.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

bool has_kernels(const TensorType& type) {
  return type.is_static() && (type.dtype == DType::kFloat || type.dtype == DType::kDouble);
}

constexpr DType kUnrounded = DType::kFloat;  // stands for a 16-bit type where a value is not rounded

// Returns the node that produces `value`, before its rounding to the type `rounding`; null if another node reads the
// value in between.
Node* producer_read_once(const Value* value, DType rounding) {
  if (!is_read_once(value)) return nullptr;
  if (rounding == kUnrounded) return value->producer();
  const Value* exact = before_rounding(value);
  const bool fits = exact && widened_from(value)->dtype() == rounding;
  return fits && is_read_once(widened_from(value)) && is_read_once(exact) ? exact->producer() : nullptr;
}

DType rounding_of(const Value* value) { return before_rounding(value) ? widened_from(value)->dtype() : kUnrounded; }

// Whether the node is ONNX's own training form, which has more outputs.
bool is_training(const Node& node) { return node.attr("training_mode", 0) != 0 || node.num_outputs() > 1; }

// Returns the batch normalization that produces `value`, if `value` has one reader.
Node* normalization_before(Value* value, const TensorType& type, DType rounding) {
  Node* node = producer_read_once(value, rounding);
  const bool is_normalization = node && ((node->is("BatchNormalizationTrain", kDomain) && epilogue_of(*node).empty()) ||
                                         (node->is("BatchNormalization") && !is_training(*node)));
  const bool fits = is_normalization && value->type() == type &&
                    node->output(0) == (rounding == kUnrounded ? value : before_rounding(value)) && has_kernels(type);
  return fits ? node : nullptr;
}

Attrs with_epilogue(const Node& node, const Epilogue& epilogue) {
  Attrs attrs = {{kEpilogue, to_string(epilogue)}};
  if (node.has_attr("epsilon")) attrs.emplace_back("epsilon", node.attr("epsilon", 0.0f));
  return attrs;
}

void replace_outputs(Node* node, const std::vector<Var>& with) {
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (node->output(i)) node->graph().replace(node->output(i), with[static_cast<size_t>(i)].value());
  }
}

bool is_read(const Node& node) {
  const auto used = [&](const Value* v) { return v && (!v->uses().empty() || node.graph().is_output(v)); };
  return std::any_of(node.outputs().begin(), node.outputs().end(), used);
}

// Removes the node if nothing reads it, then its producers likewise.
void remove_unread(Node* last) {
  std::set<Node*> nodes = {last};
  while (!nodes.empty()) {
    Node* node = nodes.extract(nodes.begin()).value();
    if (is_read(*node)) continue;
    for (const Value* input : node->inputs()) {
      if (input && input->producer()) nodes.insert(input->producer());
    }
    node->graph().remove(node);
  }
}

// Replaces relu(normalization + residual) by one node; the residual may be absent.
bool join(Node* normalization, Value* residual, Node* relu, DType rounding, const Device& device,
          Positions& positions) {
  Graph& graph = relu->graph();
  Builder b(&graph, normalization);
  b.set_name(relu->output()->name());
  std::vector<Var> inputs;
  for (Value* input : normalization->inputs()) inputs.push_back(b.var(input));
  Epilogue epilogue = {EpilogueStep::kRelu};
  if (residual) {
    epilogue.insert(epilogue.begin(), EpilogueStep::kResidual);
    inputs.resize(static_cast<size_t>(place_of_input(kDomain, normalization->op(), "residual")));
    inputs.push_back(b.var(residual));
  }
  const bool trains = normalization->is("BatchNormalizationTrain", kDomain);
  Attrs attrs = with_epilogue(*normalization, epilogue);
  if (rounding != kUnrounded) attrs.emplace_back("round_to", static_cast<int>(rounding));
  const std::vector<Var> outputs = call_lowered(b, normalization->op(), trains ? 3 : 1, inputs, attrs);
  Node* const made = outputs[0].value()->producer();
  if (!runs_on(device, made)) return false;
  positions.add(made, normalization);
  graph.replace(relu->output(), outputs[0].value());
  for (int i = 1; i < normalization->num_outputs(); ++i) {
    if (normalization->output(i)) graph.replace(normalization->output(i), outputs[static_cast<size_t>(i)].value());
  }
  remove_unread(relu);
  return true;
}

bool join_forward(Node* relu, const Device& device, Positions& positions) {
  if (!relu->is("Relu")) return false;
  Value* x = relu->input(0);
  const TensorType type = x->type();
  const DType rounding = rounding_of(x);
  if (Node* normalization = normalization_before(x, type, rounding)) {
    return join(normalization, nullptr, relu, rounding, device, positions);
  }
  Node* sum = producer_read_once(x, rounding);
  if (!sum || !sum->is("Add")) return false;
  for (int i = 0; i < 2; ++i) {
    Value* residual = sum->input(1 - i);
    Node* normalization = normalization_before(sum->input(i), type, rounding);
    if (!normalization || residual->type() != type || !positions.is_before(residual, normalization)) continue;
    return join(normalization, residual, relu, rounding, device, positions);
  }
  return false;
}

// Returns the gradient of Relu that produces `dz`. Rounding it has no effect, because its operands are rounded.
Node* rectification_before(const Value* dz) {
  const Value* exact = before_rounding(dz);
  Node* relu = exact ? exact->producer() : dz->producer();
  if (!relu || !relu->is("ReluGrad", kDomain) || (exact && !holds_narrow(relu->input(0), rounding_of(dz))))
    return nullptr;
  const bool fits = has_kernels(dz->type()) && relu->input(0)->type() == dz->type() &&
                    relu->input(1)->type() == dz->type() && relu->output()->type() == dz->type();
  return fits ? relu : nullptr;
}

// The joint gradient takes the position of the gradient of Relu, so its other operands must be computed before that.
bool join_backward(Node* gradient, const Device& device, Positions& positions) {
  if (!gradient->is("BatchNormalizationGrad", kDomain) || !epilogue_of(*gradient).empty() || !gradient->output(0))
    return false;
  Value* dz = gradient->input(4);
  Node* relu = rectification_before(dz);
  if (!relu) return false;
  for (int i = 0; i < 4; ++i) {
    if (!positions.is_before(gradient->input(i), relu)) return false;
  }
  Graph& graph = relu->graph();
  Builder b(&graph, relu);
  b.set_name(gradient->output(0)->name());
  std::vector<Var> inputs;
  for (int i = 0; i < 4; ++i) inputs.push_back(b.var(gradient->input(i)));
  for (Value* input : relu->inputs()) inputs.push_back(b.var(input));
  const int num_outputs = producer_read_once(dz, rounding_of(dz)) ? 3 : 4;
  const std::vector<Var> outputs =
      call_lowered(b, gradient->op(), num_outputs, inputs, with_epilogue(*gradient, {EpilogueStep::kRelu}));
  Node* const made = outputs[0].value()->producer();
  if (!runs_on(device, made)) return false;
  positions.add(made, relu);
  replace_outputs(gradient, outputs);
  if (num_outputs == 4) {
    graph.replace(relu->output(), outputs[3].value());
    graph.remove(relu);
  }
  remove_unread(gradient);
  return true;
}

}  // namespace

bool fuse_batch_normalization(Model& model, const Device& device) {
  bool changed = false;
  for (auto* rewrite : {join_forward, join_backward}) {
    Positions positions(*model.graph);
    Node* next = nullptr;
    for (Node* node = model.graph->first(); node; node = next) {
      next = node->next();
      changed = rewrite(node, device, positions) || changed;
    }
  }
  return changed;
}

}  // namespace onnx_train
