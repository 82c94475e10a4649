#include "kernels/cpu/fused/body.h"

#include "kernels/cpu/fused/operations.h"
#include "kernels/lowering/outline.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/inlining.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train::cpu {
namespace {

// Adds the call's inputs to the body's graph. Inputs whose contents the nodes need (axes, shapes) are added as
// constants.
void add_inputs(const NodeSpec& spec, Body* body) {
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

bool place_nodes(Body* body) {
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
    body->value_extent[node->output()] = *value_extent;
  }
  return body->space.size > 0;
}

}  // namespace

std::optional<Body> read_body(const NodeSpec& spec) {
  const onnx::FunctionProto* function = function_of(spec.node());
  if (!function) return std::nullopt;
  Body body;
  body.graph = std::make_unique<Graph>(spec.node().graph().shared_context());
  add_inputs(spec, &body);
  body.outputs = instantiate(*function, spec.node().shell(), body.graph.get(), nullptr, body.inputs, "body");
  if (!place_nodes(&body)) return std::nullopt;
  for (const Value* output : body.outputs) {
    if (!output || !body.value_extent_of(output)) return std::nullopt;
  }
  return body;
}

}  // namespace onnx_train::cpu
