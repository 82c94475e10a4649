// The inverse of `widen`.
#include <onnx/defs/schema.h>

#include <algorithm>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/schema.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/precision/widen.h"

namespace onnx_train {
namespace {

bool is_constant(const Value& value) {
  return value.is_initializer() || (value.producer() && value.producer()->is("Constant"));
}

// Inputs of a node that must have the same type have the same letter in the operator's schema.
const std::string& type_letter(const onnx::OpSchema& schema, size_t input) {
  return schema.inputs()[std::min(input, schema.inputs().size() - 1)].GetTypeStr();
}

class Restoration {
 public:
  Restoration(Graph* graph, const OriginalTypes& types) : graph_(*graph), types_(types) {}

  void run() {
    for (Value* value : std::vector<Value*>(graph_.initializers())) {
      if (const auto found = types_.find(value->name()); found != types_.end() && value->dtype() == DType::kFloat)
        narrow(value, found->second);
    }
    for (Value* input : graph_.inputs()) {
      const auto found = types_.find(input->name());
      if (found != types_.end() && input->dtype() == DType::kFloat)
        input->set_type({found->second, input->type().dims});
    }
    run(&graph_);
    restore_outputs();
  }

 private:
  void narrow(Value* value, DType dtype) {
    graph_.set_initializer(value, constant_of(value).cast(dtype));
    value->set_type({dtype, value->type().dims});
  }

  void run(Graph* graph) {
    for (Node* node = graph->first(); node; node = node->next()) {
      for (const auto& subgraph : node->subgraphs()) run(subgraph.graph.get());
      unify(node);
      for (Value* output : node->outputs()) {
        if (output && is_float(output->dtype())) output->set_type({DType::kUndefined, output->type().dims});
      }
      infer_types(node);
    }
  }

  // If the schema requires one type, 16 bits are chosen.
  void unify(Node* node) {
    const onnx::OpSchema* schema = find_schema(*node);
    if (!schema || schema->inputs().empty() || !node->subgraphs().empty()) return;
    std::map<std::string, DType> narrow;
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      const Value* input = node->inputs()[i];
      if (input && is_16_bit_float(input->dtype())) narrow.emplace(type_letter(*schema, i), input->dtype());
    }
    Builder b(&node->graph(), node);
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      Value* input = node->inputs()[i];
      const auto found = narrow.find(type_letter(*schema, i));
      if (!input || input->dtype() != DType::kFloat || found == narrow.end()) continue;
      b.set_name(input->name() + "/" + name(found->second));
      const Var narrowed =
          is_constant(*input) ? b.constant(constant_of(input).cast(found->second)) : cast(b.var(input), found->second);
      node->set_input(static_cast<int>(i), narrowed.value());
    }
  }

  // Outputs keep their names; a cast is inserted before an output whose type has changed.
  void restore_outputs() {
    std::vector<Value*> outputs = graph_.outputs();
    for (Value*& output : outputs) {
      const auto found = types_.find(output->name());
      const DType wanted = found != types_.end() ? found->second : DType::kFloat;
      if (!is_float(output->dtype()) || output->dtype() == DType::kDouble || output->dtype() == wanted) continue;
      const std::string name = output->name();
      if (output->producer()) graph_.rename(output, graph_.unique_name(name + "/" + onnx_train::name(output->dtype())));
      Builder b(&graph_);
      b.set_name(name);
      output = cast(b.var(output), wanted).value();
    }
    graph_.set_outputs(std::move(outputs));
  }

  Graph& graph_;
  const OriginalTypes& types_;
};

}  // namespace

void restore_types(Model* model, const OriginalTypes& types) {
  if (types.empty()) return;
  Restoration(model->graph.get(), types).run();
  model->graph->remove_unused_initializers();
}

}  // namespace onnx_train
