#include "onnx_passes/import/newer_opset.h"

#include <onnx/defs/schema.h>

#include <algorithm>

#include "onnx_passes/import/upgrade.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

const onnx::OpSchema* schema_of(const Node& node, int64_t opset) {
  return onnx::OpSchemaRegistry::Schema(node.op(), static_cast<int>(opset), node.domain());
}

[[noreturn]] void refuse(const Node& node, const std::string& why) {
  fail_as(ErrorCode::kOpset, "[Import] ", node.label(), " is written for opset ", node.graph().context().opset(),
          " and has no form in opset ", kWrittenOpset, ": ", why, "; export the model with opset ", kBaseOpset, " to ",
          kWrittenOpset);
}

void replace_node(Node* node, Var result) {
  result.value()->set_type(node->output()->type());
  node->graph().replace(node->output(), result.value());
  node->graph().remove(node);
}

// a mod b = a - b floor(a / b) for floats; opset 13 has only fmod for them.
bool rewrite_mod(Node* node) {
  if (!is_float(node->output()->dtype()) || node->attr("fmod", 0) != 0) return false;
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name());
  const Var x = b.var(node->input(0)), y = b.var(node->input(1));
  replace_node(node, x - y * b.op("Floor", {x / y}));
  return true;
}

// Depth comes first in the new channels: [N,C,H/b,b,W/b,b] -> [N,C,b,b,H/b,W/b].
bool rewrite_space_to_depth(Node* node) {
  const std::string mode = node->attr("mode", "DCR");
  node->remove_attr("mode");
  if (mode == "DCR") return false;
  const TensorType& type = node->input(0)->type();
  const int64_t size = node->attr("blocksize", 1);
  if (!type.dims || type.rank() != 4 || !(*type.dims)[1].known() || !(*type.dims)[2].known() ||
      !(*type.dims)[3].known())
    refuse(*node, concat("mode ", mode, " needs known sizes of its input, which is ", to_string(type)));
  const int64_t c = (*type.dims)[1].value(), h = (*type.dims)[2].value(), w = (*type.dims)[3].value();
  if (size < 1 || h % size != 0 || w % size != 0)
    refuse(*node, concat("blocksize ", size, " does not divide the size of its input, ", to_string(type)));
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name());
  const Var blocks = reshape(b.var(node->input(0)), {0, c, h / size, size, w / size, size});
  replace_node(node, reshape(transpose(blocks, {0, 1, 3, 5, 2, 4}), {0, c * size * size, h / size, w / size}));
  return true;
}

// The element type that the old definition does not allow; empty if it allows all.
std::string new_type_of(const Node& node, const onnx::OpSchema& old) {
  const auto check = [](const Value* value, const onnx::OpSchema::FormalParameter& parameter) -> std::string {
    if (!value || value->dtype() == DType::kUndefined) return "";
    const std::string type = concat("tensor(", name(value->dtype()), ")");
    const auto& allowed = parameter.GetTypes();
    const bool is_allowed = std::any_of(allowed.begin(), allowed.end(), [&](const auto* t) { return *t == type; });
    return is_allowed ? "" : to_string(value->type());
  };
  for (size_t i = 0; i < std::min(node.inputs().size(), old.inputs().size()); ++i) {
    if (std::string type = check(node.inputs()[i], old.inputs()[i]); !type.empty()) return type;
  }
  for (size_t i = 0; i < std::min(node.outputs().size(), old.outputs().size()); ++i) {
    if (std::string type = check(node.outputs()[i], old.outputs()[i]); !type.empty()) return type;
  }
  return "";
}

// The opset since which the graph's operators have their meaning; for operators that later opsets redefine, the version
// in opset 26.
int64_t needed_opset(const Graph& graph) {
  int64_t needed = kBaseOpset;
  for (const Node* node = graph.first(); node; node = node->next()) {
    for (const auto& subgraph : node->subgraphs()) needed = std::max(needed, needed_opset(*subgraph.graph));
    const onnx::OpSchema* old = node->domain().empty() ? schema_of(*node, kWrittenOpset) : nullptr;
    if (!old) continue;
    const onnx::OpSchema* written = schema_of(*node, graph.context().opset());
    const std::string type = written == old ? "" : new_type_of(*node, *old);
    if (!type.empty()) refuse(*node, concat("it does not take ", type));
    needed = std::max<int64_t>(needed, old->SinceVersion());
  }
  return needed;
}

}  // namespace

bool rewrite_for_written_opset(Node* node) {
  if (node->graph().context().opset() <= kWrittenOpset || !node->domain().empty() || !node->output()) return false;
  const onnx::OpSchema* written = schema_of(*node, node->graph().context().opset());
  if (!written || written->SinceVersion() <= kWrittenOpset) return false;
  if (!schema_of(*node, kWrittenOpset)) {
    if (!inline_function(node)) refuse(*node, "it has no body of other operators for these inputs");
    return true;
  }
  if (node->is("Range")) node->remove_attr("stash_type");  // concerns 16-bit types, which are widened
  if (node->is("Mod")) return rewrite_mod(node);
  if (node->is("SpaceToDepth")) return rewrite_space_to_depth(node);
  return false;
}

void lower_opset(Model* model) {
  if (model->context->opset() > kWrittenOpset) model->context->opsets[""] = needed_opset(*model->graph);
}

}  // namespace onnx_train
