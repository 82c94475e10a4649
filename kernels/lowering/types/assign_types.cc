// Assigns a stored type to each value that mixed precision rounds, and rewrites the graph for it.
//
// A float32 value is stored in 16 bits
// - if it is exact: every element is a number of the 16-bit type, since the value was widened, or only moved since;
// - if it is rounded: each reader narrows it to one 16-bit type, or only moves it to such readers.
// All other values are stored in float32. An exact value needs no decision, because it is a widening Cast when its
// readers are visited. What is rounded is found backwards first.
#include <algorithm>
#include <unordered_map>

#include "kernels/functions/functions.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/types/narrow_nodes.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/windows.h"

namespace onnx_train {
namespace {

// Returns the node's attributes with explicit windows, as the functions require.
Attrs attributes(const Node& node) {
  const onnx::NodeProto& shell = node.shell();
  Attrs attrs;
  for (const onnx::AttributeProto& attribute : shell.attribute()) {
    const std::string& name = attribute.name();
    switch (attribute.type()) {
      case onnx::AttributeProto::INT: attrs.emplace_back(name, attribute.i()); break;
      case onnx::AttributeProto::FLOAT: attrs.emplace_back(name, attribute.f()); break;
      case onnx::AttributeProto::INTS: attrs.emplace_back(name, node.attr(name, Shape{})); break;
      default: break;  // auto_pad, which the windows replace
    }
  }
  if (!node.is("Conv")) return attrs;
  const Windows windows = *find_windows(node);
  return {{"group", node.attr("group", 1)},
          {"strides", windows.strides},
          {"dilations", windows.dilations},
          {"pads", windows.pads()}};
}

// Returns the number of leading inputs whose elements the node only moves.
int num_moved(const Node& node) {
  const Operator& row = operator_of(node);
  const bool moves = row.kind == OperatorKind::kView || row.kind == OperatorKind::kRearrangement ||
                     row.kind == OperatorKind::kExtraction;
  return moves ? std::min(row.selects.end, node.num_inputs()) : 0;
}

class AssignTypes {
 public:
  AssignTypes(Graph* graph, const Device& device) : graph_(*graph), device_(device) {}

  bool run() {
    for (const Node* node = graph_.last(); node; node = node->previous()) {
      const DType type = type_of_readers(*node);
      if (type != DType::kUndefined) rounded_[node] = type;
    }
    bool changed = false;
    for (Node* node : graph_.nodes())
      changed = (narrow_once(node) || move(node) || multiply(node) || widen(node)) || changed;
    return changed;
  }

 private:
  // ---- The assignment

  // Returns the 16-bit type in which all readers of the value read it, or kUndefined.
  DType type_of_readers(const Value& value) const {
    DType type = DType::kUndefined;
    if (value.dtype() != DType::kFloat || !value.type().is_static() || graph_.is_output(&value)) return type;
    for (const Use& use : value.uses()) {
      const DType read = type_of_reader(use);
      if (read == DType::kUndefined || (type != DType::kUndefined && read != type)) return DType::kUndefined;
      type = read;
    }
    return type;
  }

  DType type_of_reader(const Use& use) const {
    const Node& node = *use.node;
    if (const auto found = rounded_.find(&node); found != rounded_.end() && use.index < num_moved(node))
      return found->second;
    const bool narrows = is_rounding_for_readers(node) && &node.graph() == &graph_;
    return narrows ? node.output()->dtype() : DType::kUndefined;
  }

  // Returns the type that the readers of a movement give all its results, if it reads no more elements than it writes:
  // rounding in front of the node then costs no more than after it. Otherwise returns kUndefined.
  DType type_of_readers(const Node& node) const {
    int64_t elements = 0;  // read less written
    const int moved = num_moved(node);
    for (int i = 0; i < moved; ++i) {
      if (node.input(i)->dtype() != DType::kFloat || !node.input(i)->type().is_static()) return DType::kUndefined;
      elements += num_elements(node.input(i)->type().shape());
    }
    DType type = DType::kUndefined;
    for (const Value* output : moved > 0 ? node.outputs() : std::vector<Value*>()) {
      if (!output || (output->uses().empty() && !graph_.is_output(output))) continue;
      const DType read = type_of_readers(*output);
      if (read == DType::kUndefined || (type != DType::kUndefined && read != type)) return DType::kUndefined;
      elements -= num_elements(output->type().shape());
      type = read;
    }
    return elements <= 0 ? type : DType::kUndefined;
  }

  // Returns the 16-bit type of the elements that the node moves, or kUndefined.
  DType type_of_moved(const Node& node) const {
    const int moved = num_moved(node);
    const Value* const first = moved > 0 ? widened_from(node.input(0)) : nullptr;
    bool exact = first;
    for (int i = 1; i < moved && exact; ++i) {
      const Value* const narrow = widened_from(node.input(i));
      exact = narrow && narrow->dtype() == first->dtype();
    }
    if (exact) return first->dtype();
    const auto found = rounded_.find(&node);
    return found == rounded_.end() ? DType::kUndefined : found->second;
  }

  // ---- The rewrite. Every result in 16 bits is widened, for readers that come later.

  // move(x) -> widen(move(narrow(x)))
  bool move(Node* node) {
    const DType type = type_of_moved(*node);
    if (type == DType::kUndefined) return false;
    Builder b(&graph_, node);
    std::vector<Var> inputs;
    for (int i = 0; i < node->num_inputs(); ++i)
      inputs.push_back(i < num_moved(*node) ? narrowed(b, node->input(i), type) : b.var(node->input(i)));
    b.set_name(node->output() ? node->output()->name() + "/narrow" : "");
    std::vector<Var> outputs = b.like(*node, inputs, node->num_outputs());
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (node->output(i)) outputs[static_cast<size_t>(i)] = cast(outputs[static_cast<size_t>(i)], DType::kFloat);
    }
    replace_node(node, outputs);
    return true;
  }

  static Var narrowed(Builder& b, Value* value, DType type) {
    Value* const narrow = widened_from(value);
    if (narrow && narrow->dtype() == type) return b.var(narrow);
    b.set_name(value->name() + "/narrow");
    return cast(b.var(value), type);
  }

  // Makes a product of two exact values read 16 bits, if the device has a kernel for it. Its result is that of float32
  // operands. Without a kernel float32 products are faster.
  bool multiply(Node* node) {
    if (operator_of(*node).kind != OperatorKind::kProduct) return false;
    Value *const a = widened_from(node->input(0)), *const b = widened_from(node->input(1));
    if (!a || !b || a->dtype() != b->dtype()) return false;
    Builder builder(&graph_, node);
    builder.set_name(node->output()->name());
    std::vector<Var> inputs = {builder.var(a), builder.var(b)};
    for (int i = 2; i < node->num_inputs(); ++i) inputs.push_back(node->input(i) ? builder.var(node->input(i)) : Var());
    const auto outputs = call_lowered(builder, node->op(), node->num_outputs(), inputs, attributes(*node));
    Node* const made = outputs[0].value()->producer();
    if (!runs_on(device_, made)) return false;
    replace_node(node, outputs);
    widen(made);  // a bias
    return true;
  }

  // Gives the node its own widening Casts: the value that is kept until then has 16 bits, and an element-wise kernel
  // may take the Cast over.
  bool widen(Node* node) {
    bool changed = false;
    for (int i = 0; i < node->num_inputs(); ++i) {
      Value* const wide = node->input(i);
      Value* const narrow = widened_from(wide);
      if (!narrow || &wide->graph() != &graph_ || wide->producer() == node->previous()) continue;
      Builder b(&graph_, node);
      b.set_name(wide->name());
      Value* const own = cast(b.var(narrow), DType::kFloat).value();
      for (int j = i; j < node->num_inputs(); ++j) {
        if (node->input(j) == wide) node->set_input(j, own);
      }
      changed = true;
    }
    return changed;
  }

  Graph& graph_;
  const Device& device_;
  std::unordered_map<const Node*, DType> rounded_;  // movements whose results are rounded
};

}  // namespace

bool assign_types(Model& model, const Device& device) {
  bool changed = remove_dead_nodes(model);
  changed = AssignTypes(model.graph.get(), device).run() || changed;
  changed = remove_dead_nodes(model) || changed;
  const auto recurs = [](const Node& node) { return operator_of(node).kind == OperatorKind::kRecurrence; };
  return narrow_nodes(model, device, recurs) || changed;
}

}  // namespace onnx_train
