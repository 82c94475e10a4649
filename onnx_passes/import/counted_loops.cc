#include "onnx_passes/import/counted_loops.h"

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/copy_graph.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

bool is_true(const Value* value) {
  const Tensor known = constant_of(value);
  return known.size() == 1 && known.at(0) != 0;
}

// Whether the body's condition is the one that it got, or true.
bool goes_on(const Graph& body) {
  const Value* condition = body.outputs()[0];
  while (condition->producer() && condition->producer()->is("Identity")) condition = condition->producer()->input(0);
  return condition == body.inputs()[1] || is_true(condition);
}

bool keeps_type(const TensorType& before, const TensorType& after) {
  if (before.dtype != after.dtype || !before.dims || !after.dims || before.rank() != after.rank()) return false;
  for (size_t i = 0; i < before.dims->size(); ++i) {
    if (!(*before.dims)[i].same((*after.dims)[i])) return false;
  }
  return true;
}

bool is_counted(const Node& node) {
  const Graph* body = node.is("Loop") ? node.subgraph("body") : nullptr;
  if (!body || !node.input(0) || body->inputs().size() < 2 || body->outputs().empty()) return false;
  return (!node.input(1) || is_true(node.input(1))) && goes_on(*body);
}

// The Scan in the place of a Loop; null if the values change their types from step to step.
Node* scan_of(Node* loop) {
  Graph& graph = loop->graph();
  const Graph& body = *loop->subgraph("body");
  Builder b(&graph, loop);
  b.set_name(loop->output() ? loop->output()->name() + "/steps" : "steps");
  const Var count = reshape(b.var(loop->input(0)), b.constant(Tensor(DType::kInt64, {0})));
  const Var steps = b.op("Range", {b.scalar(DType::kInt64, 0), cast(count, DType::kInt64), b.scalar(DType::kInt64, 1)});
  std::vector<Value*> inputs(loop->inputs().begin() + 2, loop->inputs().end());
  inputs.push_back(steps.value());
  std::vector<std::string> names;
  for (const Value* v : loop->outputs()) names.push_back(graph.unique_name((v ? v->name() : "unread") + "/scan"));
  Node* scan = graph.add_node("Scan", inputs, names, "", loop);
  scan->set_attr("num_scan_inputs", 1);
  Graph* made = graph.add_subgraph(scan, "body");
  GraphCopy copy(made);
  for (size_t i = 2; i < body.inputs().size(); ++i) {
    const Value* v = body.inputs()[i];
    copy.map(v, made->add_input(made->unique_name(v->name()), inputs[i - 2]->type()));
  }
  const Value* number = body.inputs()[0];
  copy.map(number, made->add_input(made->unique_name(number->name()), {DType::kInt64, Dims{}}));
  Value* always = made->add_initializer(made->unique_name(body.inputs()[1]->name()), Tensor::full(DType::kBool, {}, 1));
  copy.map(body.inputs()[1], always);
  copy.contents(body);
  bool keeps = true;
  for (Node* node = made->first(); node; node = node->next()) {
    for (Value* output : node->outputs()) {
      if (output) output->set_type({output->dtype(), std::nullopt});
    }
    infer_types(node);
  }
  Builder inner(made);
  for (size_t i = 1; i < body.outputs().size(); ++i) {
    Value* output = copy.of(body.outputs()[i]);
    if (i < inputs.size()) keeps = keeps && keeps_type(inputs[i - 1]->type(), output->type());
    // An input, or what is an output already, needs a node of its own.
    if (!output->producer() || &output->graph() != made || made->is_output(output))
      output = inner.op("Identity", {inner.var(output)}).value();
    made->add_output(output);
  }
  made->remove_unused_initializers();
  if (keeps) return scan;
  graph.remove(scan);
  return nullptr;
}

}  // namespace

void replace_counted_loops(Graph* graph, const std::function<void(const std::string&)>& replaced) {
  bool stale = false;  // the types of nodes from here on know nothing yet of those of a Scan
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    for (const auto& subgraph : node->subgraphs()) replace_counted_loops(subgraph.graph.get(), replaced);
    if (stale) {
      check_shapes(*node);
      infer_types(node);
    }
    if (!is_counted(*node)) continue;
    Node* scan = scan_of(node);
    if (!scan) continue;
    infer_types(scan);
    const std::string label = node->label();
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (!node->output(i)) continue;
      const std::string name = node->output(i)->name();
      graph->replace(node->output(i), scan->output(i));
      if (graph->find(name) == node->output(i)) {
        graph->rename(node->output(i), graph->unique_name(name + "/loop"));
        graph->rename(scan->output(i), name);
      }
    }
    scan->mutable_shell().set_name(node->name());
    graph->remove(node);
    replaced(label);
    stale = true;
  }
}

}  // namespace onnx_train
