#include "onnx_passes/import/counted_loops.h"

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/copy_graph.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr int64_t kMostBounded = 100'000;  // steps, each of which reads its condition

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

// How a Loop becomes a Scan.
enum class Form {
  kNone,
  kCounted,  // its condition is always true
  kBounded,  // its condition may end it before the largest number of steps, which is known
};

Form form_of(const Node& node) {
  const Graph* body = node.is("Loop") ? node.subgraph("body") : nullptr;
  if (!body || !node.input(0) || body->inputs().size() < 2 || body->outputs().empty()) return Form::kNone;
  if ((!node.input(1) || is_true(node.input(1))) && goes_on(*body)) return Form::kCounted;
  const Tensor most = constant_of(node.input(0));
  const bool has_bound = most.size() == 1 && most.at(0) <= static_cast<double>(kMostBounded);
  const bool stacks =
      body->outputs().size() + 1 > body->inputs().size();  // as many as there were steps, which is not known
  return has_bound && !stacks ? Form::kBounded : Form::kNone;
}

void forget_and_infer(Graph* graph) {
  for (Node* node = graph->first(); node; node = node->next()) {
    for (const auto& subgraph : node->subgraphs()) forget_and_infer(subgraph.graph.get());
    forget_shapes(node);
    infer_types(node);
  }
}

// A step of a Loop that its condition may end: If(go, the body, what was there). Adds the next states and the next
// condition to the outputs of `made`, a Scan's body. `states` and `number` are what the body gets there.
void add_guarded_step(const Graph& body, const std::vector<Value*>& states, Value* number, Value* go, Graph* made) {
  std::vector<std::string> names = {made->unique_name(go->name() + "/next")};
  for (const Value* state : states) names.push_back(made->unique_name(state->name() + "/next"));
  Node* branch = made->add_node("If", {go}, names);
  Graph* runs = made->add_subgraph(branch, "then_branch");
  GraphCopy copy(runs);
  copy.map(body.inputs()[0], number);
  copy.map(body.inputs()[1], go);
  for (size_t i = 0; i < states.size(); ++i) copy.map(body.inputs()[i + 2], states[i]);
  copy.contents(body);
  for (const Value* output : body.outputs()) add_result(runs, copy.of(output));
  Graph* stays = made->add_subgraph(branch, "else_branch");
  add_result(stays, go);
  for (Value* state : states) add_result(stays, state);
  for (size_t i = 0; i < states.size(); ++i) made->add_output(branch->output(static_cast<int>(i + 1)));
  made->add_output(branch->output(0));
}

// The Scan in the place of a Loop; null if the values change their types from step to step.
Node* scan_of(Node* loop, Form form) {
  Graph& graph = loop->graph();
  const Graph& body = *loop->subgraph("body");
  const bool is_bounded = form == Form::kBounded;
  Node* const before = loop->previous();
  Builder b(&graph, loop);
  b.set_name(loop->output() ? loop->output()->name() + "/steps" : "steps");
  const Var count = reshape(b.var(loop->input(0)), b.constant(Tensor(DType::kInt64, {0})));
  const Var steps = b.op("Range", {b.scalar(DType::kInt64, 0), cast(count, DType::kInt64), b.scalar(DType::kInt64, 1)});
  std::vector<Value*> inputs(loop->inputs().begin() + 2, loop->inputs().end());
  const size_t states = inputs.size();
  std::vector<std::string> names;
  for (const Value* v : loop->outputs()) names.push_back(graph.unique_name((v ? v->name() : "unread") + "/scan"));
  if (is_bounded) {
    const Var always = b.scalar(DType::kBool, 1);
    inputs.push_back(loop->input(1) ? reshape(b.var(loop->input(1)), b.constant(Tensor(DType::kInt64, {0}))).value()
                                    : b.op("Identity", {always}).value());
    names.push_back(graph.unique_name("go/scan"));
  }
  inputs.push_back(steps.value());
  Node* scan = graph.add_node("Scan", inputs, names, "", loop);
  scan->set_attr("num_scan_inputs", 1);
  Graph* made = graph.add_subgraph(scan, "body");
  const auto add_input = [&](const Value* like, const TensorType& type) {
    return made->add_input(made->unique_name(like->name()), type);
  };
  std::vector<Value*> own;
  for (size_t i = 0; i < states; ++i) own.push_back(add_input(body.inputs()[i + 2], inputs[i]->type()));
  if (is_bounded) {
    Value* go = add_input(body.inputs()[1], {DType::kBool, Dims{}});
    Value* number = add_input(body.inputs()[0], {DType::kInt64, Dims{}});
    add_guarded_step(body, own, number, go, made);
  } else {
    GraphCopy copy(made);
    for (size_t i = 0; i < states; ++i) copy.map(body.inputs()[i + 2], own[i]);
    copy.map(body.inputs()[0], add_input(body.inputs()[0], {DType::kInt64, Dims{}}));
    copy.map(body.inputs()[1],
             made->add_initializer(made->unique_name(body.inputs()[1]->name()), Tensor::full(DType::kBool, {}, 1)));
    copy.contents(body);
    for (size_t i = 1; i < body.outputs().size(); ++i) add_result(made, copy.of(body.outputs()[i]));
    made->remove_unused_initializers();
  }
  forget_and_infer(made);
  bool keeps = true;
  for (size_t i = 0; i < states; ++i) keeps = keeps && same(inputs[i]->type(), made->outputs()[i]->type());
  if (keeps) return scan;
  while (loop->previous() != before) graph.remove(loop->previous());
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
    const Form form = form_of(*node);
    Node* scan = form == Form::kNone ? nullptr : scan_of(node, form);
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
