#include <unordered_map>

#include "kernels/functions/functions.h"
#include "kernels/lowering/lowering.h"
#include "kernels/lowering/types/widened.h"
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

class Bfloat16Products {
 public:
  Bfloat16Products(Graph* graph, const Device& device) : graph_(*graph), device_(device) {}

  bool run() {
    bool changed = false;
    for (Node* node : graph_.nodes()) {
      changed = (operator_of(*node).kind == OperatorKind::kProduct && rewrite(node)) || changed;
    }
    return changed;
  }

 private:
  bool rewrite(Node* node) {
    Value* a = narrow(node->input(0));
    Value* b = a ? narrow(node->input(1)) : nullptr;
    if (!b || a->dtype() != b->dtype()) return false;
    Builder builder(&graph_, node);
    builder.set_name(node->output()->name());
    std::vector<Var> inputs = {builder.var(a), builder.var(b)};
    for (int i = 2; i < node->num_inputs(); ++i) {
      inputs.push_back(node->input(i) ? builder.var(node->input(i)) : Var());
    }
    const auto outputs = call_lowered(builder, node->op(), node->num_outputs(), inputs, attributes(*node));
    Node* made = outputs[0].value()->producer();
    if (!runs_on(device_, made)) return false;
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (node->output(i)) graph_.replace(node->output(i), made->output(i));
    }
    graph_.remove(node);
    return true;
  }

  // Returns the 16-bit value that was widened to `value`, viewed in value's shape, or null.
  Value* narrow(const Value* value) {
    std::vector<const Value*> views;  // from `value` backwards
    while (!narrow_.count(value) && value->producer() && is_view(*value->producer())) {
      views.push_back(value);
      value = value->producer()->input(0);
    }
    Value* found = narrow_.try_emplace(value, widened_from(value)).first->second;
    for (auto v = views.rbegin(); v != views.rend(); ++v) {
      if (found) found = view(*(*v)->producer(), found);
      narrow_[*v] = found;
    }
    return found;
  }

  Value* view(Node& of, Value* source) {
    Builder b(&graph_, of.next());
    b.set_name(source->name() + "/view");
    std::vector<Var> inputs = {b.var(source)};
    for (int i = 1; i < of.num_inputs(); ++i) inputs.push_back(b.var(of.input(i)));
    Value* made = b.like(of, inputs)[0].value();
    made->set_type({source->dtype(), of.output()->type().dims});
    return made;
  }

  Graph& graph_;
  const Device& device_;
  std::unordered_map<const Value*, Value*> narrow_;
};

}  // namespace

bool bfloat16_products(Model& model, const Device& device) { return Bfloat16Products(model.graph.get(), device).run(); }

}  // namespace onnx_train
