// Keeps values in 16 bits that mixed precision has rounded. In the graph a rounded value is two casts: to bfloat16 or
// float16, and back to float32.
#include <algorithm>

#include "kernels/lowering/lowering.h"
#include "kernels/lowering/types/widened.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/half.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

void replace(Node* node, const std::vector<Var>& with) {
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (node->output(i)) node->graph().replace(node->output(i), with[static_cast<size_t>(i)].value());
  }
  node->graph().remove(node);
}

// narrow(widen(x)) -> x. Here `narrow` is a Cast to a 16-bit type and `widen` a Cast of a value of that type to
// float32.
bool narrow_once(Node* node) {
  Value* source = node->is("Cast") ? widened_from(node->input(0)) : nullptr;
  if (!source || node->output()->dtype() != source->dtype() || node->graph().is_output(node->output())) return false;
  replace(node, {Builder(&node->graph(), node).var(source)});
  return true;
}

// ---- Rounding once

// The inputs that the node selects from (operators.h); empty for other nodes.
std::vector<Value*> chosen_from(const Node& node) {
  const InputRange from = operator_of(node).selects;
  std::vector<Value*> inputs;
  for (int i = from.begin; i < std::min(from.end, node.num_inputs()); ++i) inputs.push_back(node.input(i));
  return inputs;
}

// A constant whose elements are all numbers of the type; large constants are not examined.
bool is_narrow_constant(const Value* value, DType dtype) {
  constexpr int64_t kLargest = 16;
  const Tensor constant = constant_of(value);
  if (constant.empty() || constant.dtype() != DType::kFloat || constant.size() > kLargest) return false;
  for (int64_t i = 0; i < constant.size(); ++i) {
    const auto element = static_cast<float>(constant.at(i));
    const float stored =
        dtype == DType::kBFloat16 ? static_cast<float>(BFloat16(element)) : static_cast<float>(Float16(element));
    if (stored != element) return false;
  }
  return true;
}

// Whether every element of `value` is a number of the type; follows at most `nodes` producers.
bool holds_narrow_within(const Value* value, DType dtype, int nodes) {
  if (const Value* source = widened_from(value)) return source->dtype() == dtype;
  if (!value || value->dtype() != DType::kFloat || nodes == 0) return false;
  if (is_narrow_constant(value, dtype)) return true;
  const std::vector<Value*> sources = value->producer() ? chosen_from(*value->producer()) : std::vector<Value*>();
  const auto holds = [&](const Value* source) { return holds_narrow_within(source, dtype, nodes - 1); };
  return !sources.empty() && std::all_of(sources.begin(), sources.end(), holds);
}

bool is_rounding(const Node& node) {
  return node.is("Cast") && node.input(0)->dtype() == DType::kFloat && is_16_bit_float(node.output()->dtype()) &&
         !node.graph().is_output(node.output());
}

// Makes the readers of the node's first result read the rounded value, if both are equal.
bool round_for_all(Node* node) {
  Graph& graph = node->graph();
  Value* value = node->output();
  if (!value || graph.is_output(value) || widened_from(value)) return false;
  const std::vector<Use> uses = value->uses();
  const auto is_elsewhere = [&](const Use& use) { return &use.node->graph() != &graph; };
  if (uses.size() < 2 || std::any_of(uses.begin(), uses.end(), is_elsewhere)) return false;
  const auto first = std::find_if(uses.begin(), uses.end(), [](const Use& use) { return is_rounding(*use.node); });
  if (first == uses.end()) return false;
  const DType dtype = first->node->output()->dtype();
  if (!holds_narrow(value, dtype)) return false;
  const auto rounds = [&](const Use& use) { return is_rounding(*use.node) && use.node->output()->dtype() == dtype; };
  Builder b(&graph, node->next());
  b.set_name(first->node->output()->name());
  const Var narrow = cast(b.var(value), dtype), wide = cast(narrow, DType::kFloat);
  for (const Use& use : uses) {
    if (rounds(use)) {
      replace(use.node, {narrow});
    } else {
      use.node->set_input(use.index, wide.value());
    }
  }
  return true;
}

// ---- Moving 16-bit values

// The number of leading inputs whose elements the node only moves; its other inputs say where to.
int num_moved(const Node& node) {
  const Operator& row = operator_of(node);
  const bool moves = row.kind == OperatorKind::kView || row.kind == OperatorKind::kRearrangement ||
                     row.kind == OperatorKind::kExtraction;
  return moves ? std::min(row.selects.end, node.num_inputs()) : 0;
}

// move(widen(x)) -> widen(move(x))
bool move_narrow(Node* node) {
  const int moved = num_moved(*node);
  if (moved == 0) return false;
  Builder b(&node->graph(), node);
  std::vector<Var> inputs;
  for (int i = 0; i < node->num_inputs(); ++i) {
    Value* input = i < moved ? widened_from(node->input(i)) : node->input(i);
    if (i < moved && (!input || input->dtype() != widened_from(node->input(0))->dtype())) return false;
    inputs.push_back(b.var(input));
  }
  b.set_name(node->output()->name() + "/narrow");
  std::vector<Var> outputs = b.like(*node, inputs, node->num_outputs());
  for (Var& output : outputs) output = cast(output, DType::kFloat);
  replace(node, outputs);
  return true;
}

int64_t size(const Value* value) { return num_elements(value->type().shape()); }

// The type to which all results of the node are narrowed, if it reads no more elements than it writes: then casts
// before the node cost no more than casts after it. Otherwise kUndefined.
DType narrowed_type(const Node& node, int moved) {
  int64_t in = 0, out = 0;
  for (int i = 0; i < moved; ++i) {
    if (node.input(i)->dtype() != DType::kFloat || !node.input(i)->type().is_static()) return DType::kUndefined;
    in += size(node.input(i));
  }
  DType type = DType::kUndefined;
  for (const Value* output : node.outputs()) {
    if (!output || (output->uses().empty() && !node.graph().is_output(output))) continue;
    const std::vector<Node*> casts = narrowing_readers(output);
    if (casts.empty() || !output->type().is_static()) return DType::kUndefined;
    const DType to = casts[0]->output()->dtype();
    if (type != DType::kUndefined && type != to) return DType::kUndefined;
    out += size(output);
    type = to;
  }
  return in <= out ? type : DType::kUndefined;
}

// narrow(move(x)) -> move(narrow(x))
bool narrow_first(Node* node) {
  const int moved = num_moved(*node);
  const DType dtype = moved == 0 ? DType::kUndefined : narrowed_type(*node, moved);
  if (dtype == DType::kUndefined) return false;
  Builder b(&node->graph(), node);
  std::vector<Var> inputs;
  for (int i = 0; i < node->num_inputs(); ++i) {
    Value* input = node->input(i);
    Value* source = i < moved ? widened_from(input) : nullptr;
    if (source && source->dtype() != dtype) source = nullptr;
    if (input) b.set_name(input->name() + "/narrow");
    inputs.push_back(source ? b.var(source) : i < moved ? cast(b.var(input), dtype) : b.var(input));
  }
  b.set_name(node->output() ? node->output()->name() + "/narrow" : "");
  const std::vector<Var> outputs = b.like(*node, inputs, node->num_outputs());
  for (int i = 0; i < node->num_outputs(); ++i) {
    for (Node* narrowing : narrowing_readers(node->output(i))) {
      replace(narrowing, {outputs[static_cast<size_t>(i)]});
    }
  }
  node->graph().remove(node);
  return true;
}

// ---- Widening

// Gives each reader its own widening Cast, right before the reader.
bool widen_for_readers(Node* node) {
  Value* wide = node->output();
  Value* source = widened_from(wide);
  if (!source || node->graph().is_output(wide)) return false;
  const std::vector<Use> uses = wide->uses();
  const auto is_elsewhere = [&](const Use& use) { return &use.node->graph() != &node->graph(); };
  if (uses.empty() || std::any_of(uses.begin(), uses.end(), is_elsewhere)) return false;
  for (const Use& use : uses) {
    if (use.node->input(use.index) != wide) continue;  // the node reads the value twice
    Builder b(&node->graph(), use.node);
    b.set_name(wide->name());
    Value* own = cast(b.var(source), DType::kFloat).value();
    for (int i = 0; i < use.node->num_inputs(); ++i) {
      if (use.node->input(i) == wide) use.node->set_input(i, own);
    }
  }
  node->graph().remove(node);
  return true;
}

template <typename Rewrite>
bool for_each_node(Model& model, const Rewrite& rewrite) {
  bool changed = false;
  for (Node* node : model.graph->nodes()) changed = rewrite(node) || changed;
  return changed;
}

}  // namespace

bool holds_narrow(const Value* value, DType dtype) {
  constexpr int kNodes = 4;
  return holds_narrow_within(value, dtype, kNodes);
}

bool round_once(Model& model) {
  bool changed = false;
  for (Node *node = model.graph->first(), *next = nullptr; node; node = next) {
    changed = round_for_all(node) || changed;
    next = node->next();  // the previous one may have been removed
    changed = narrow_once(node) || changed;
  }
  return changed;
}

bool move_bfloat16(Model& model) {
  return for_each_node(model, [](Node* node) { return narrow_once(node) || move_narrow(node); });
}

bool narrow_before_moves(Model& model) {
  bool changed = false;
  Node* previous = nullptr;  // traversed backwards, so that a cast can pass several nodes in turn
  for (Node* node = model.graph->last(); node; node = previous) {
    previous = node->previous();
    changed = narrow_first(node) || changed;
  }
  return changed;
}

bool widen_at_readers(Model& model) { return for_each_node(model, widen_for_readers); }

}  // namespace onnx_train
