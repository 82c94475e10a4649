#include "kernels/geometry/fusion/fused_body.h"

#include "kernels/geometry/reductions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// Adds the call's inputs to the body's graph. Inputs whose contents the nodes need (axes, shapes) are added as
// constants.
void add_inputs(const NodeSpec& spec, FusedBody* body) {
  for (int i = 0; i < spec.num_inputs(); ++i) {
    const Value* input = spec.node().input(i);
    Value* formal = nullptr;
    if (input) {
      const std::string name = concat("in", i);
      const bool integers = input->dtype() == DType::kInt64 && input->rank() <= 1;
      formal = integers && spec.is_constant(i) ? body->graph->add_initializer(name, spec.constant(i))
                                               : body->graph->add_input(name, input->type());
    }
    body->inputs.push_back(formal);
  }
}

bool place_nodes(FusedBody* body, bool (*can_fuse)(const Node&)) {
  for (Node* node = body->graph->first(); node; node = node->next()) {
    infer_types(node);
    check_shapes(*node);
    if (node->is("Constant")) {
      if (!node->output()->type().is_static() || node->output()->rank() > 0) return false;
      continue;
    }
    const auto value_extent_of = [body](const Value* value) { return body->value_extent_of(value); };
    const auto value_extent = can_fuse(*node) ? fit(*node, value_extent_of, &body->space) : std::nullopt;
    if (!value_extent) return false;
    body->nodes.push_back(node);
    body->value_extent[node->output()] = *value_extent;
    if (body->is_alias(*node)) {
      const Value *in = node->input(0), *out = node->output();
      const bool outside = !body->computes(in) && !node->is("Expand");
      body->aliases.emplace(out, outside ? FusedSource{in, std::nullopt} : body->source(in, *out));
    }
  }
  return body->space.size > 0;
}

}  // namespace

bool FusedBody::is_alias(const Node& node) const {
  return is_view(node) || (node.is("Expand") && extent(node.output()) == ValueExtent::kFull);
}

FusedSource FusedBody::source(const Value* value, const Value& reader) const {
  const auto known = aliases.find(value);
  if (known != aliases.end()) return known->second;
  if (computes(value) || num_elements_of(*value) == num_elements_of(reader)) return {value, std::nullopt};
  return {value, Broadcast(reader.type().shape(), {value->type().shape()})};
}

Broadcast kept_axes(const Node& reduction) {
  Shape kept = reduction.input(0)->type().shape();
  const Shape all = kept;
  const auto reduced = *reduced_axes(reduction);
  for (size_t d = 0; d < kept.size(); ++d) kept[d] = reduced[d] ? 1 : kept[d];
  return Broadcast(all, {kept});
}

std::optional<FusedBody> read_body(const NodeSpec& spec, bool (*can_fuse)(const Node&)) {
  const onnx::FunctionProto* function = function_of(spec.node());
  if (!function) return std::nullopt;
  FusedBody body;
  body.graph = std::make_unique<Graph>(spec.node().graph().shared_context());
  add_inputs(spec, &body);
  body.outputs = instantiate(*function, spec.node().shell(), body.graph.get(), nullptr, body.inputs, "body");
  if (!place_nodes(&body, can_fuse)) return std::nullopt;
  for (const Value* output : body.outputs) {
    if (!output || !body.value_extent_of(output)) return std::nullopt;
  }
  return body;
}

FusedBody body_of_node(const NodeSpec& spec) {
  const Node& node = spec.node();
  FusedBody body;
  body.nodes = {&node};
  body.inputs = node.inputs();
  body.outputs = node.outputs();
  body.space.size = spec.out_size();
  body.value_extent[node.output()] = ValueExtent::kFull;
  return body;
}

}  // namespace onnx_train
