#include "onnx_passes/import/counted_loops.h"

#include <algorithm>
#include <optional>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/inference/elements.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/liveness.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/random.h"

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

// What of a Loop's body its condition depends on.
struct Condition {
  Liveness live;
  std::vector<size_t> states;
  bool is_random = false;

  explicit Condition(const Graph& body) {
    live.need(body.outputs()[0]);
    for (size_t before = states.size() + 1; before != states.size();) {
      before = states.size();
      live.trace(body);
      states.clear();
      for (size_t i = 0; i + 2 < body.inputs().size(); ++i) {
        if (!live.needs(body.inputs()[i + 2])) continue;
        states.push_back(i);
        live.need(body.outputs()[i + 1]);
      }
    }
    for (const Node* node = body.first(); node; node = node->next())
      is_random = is_random || (live.runs(node) && draws(*node));
  }

 private:
  static bool draws(const Node& node) {
    if (onnx_train::is_random(node)) return true;
    for (const auto& subgraph : node.subgraphs()) {
      for (const Node* n = subgraph.graph->first(); n; n = n->next()) {
        if (draws(*n)) return true;
      }
    }
    return false;
  }
};

// How a Loop becomes a Scan.
enum class Form {
  kNone,
  kCounted,  // its condition is always true
  kBounded,  // its condition may end it before the largest number of steps, which is known
  kEnded,    // its condition ends it: a Loop that stacks nothing counts the steps first
};

Form form_of(const Node& node) {
  const Graph* body = node.is("Loop") ? node.subgraph("body") : nullptr;
  if (!body || body->inputs().size() < 2 || body->outputs().empty()) return Form::kNone;
  if (body->inputs().size() != static_cast<size_t>(std::max(node.num_inputs(), 2))) return Form::kNone;
  if (body->outputs().size() + 1 < body->inputs().size()) return Form::kNone;
  if (node.input(0) && (!node.input(1) || is_true(node.input(1))) && goes_on(*body)) return Form::kCounted;
  const Tensor most = constant_of(node.input(0));
  const bool has_bound = most.size() == 1 && most.at(0) <= static_cast<double>(kMostBounded);
  const bool stacks =
      body->outputs().size() + 1 > body->inputs().size();  // as many as there were steps, which is not known
  if (has_bound && !stacks) return Form::kBounded;
  // One that computes no floats needs no gradient, and runs as it is.
  const auto& outputs = node.outputs();
  const bool has_floats =
      std::any_of(outputs.begin(), outputs.end(), [](const Value* v) { return v && is_float(v->dtype()); });
  return (has_floats || stacks) && !Condition(*body).is_random ? Form::kEnded : Form::kNone;
}

// The number of steps of a Loop that stacks nothing, if all that its condition depends on follows from constants: what
// inference knows of the integers in one step is what the next one gets.
std::optional<int64_t> follow_steps(const Node& loop) {
  constexpr int64_t kMostFollowed = 10'000;
  Graph* body = loop.subgraph("body");
  if (loop.input(0) || (loop.input(1) && !is_true(loop.input(1)))) return std::nullopt;
  std::vector<std::optional<Dims>> states;
  for (int i = 2; i < loop.num_inputs(); ++i) states.push_back(elements_of(loop.input(i)));
  for (int64_t step = 0; step < kMostFollowed; ++step) {
    body->inputs()[0]->set_elements(Dims{step});
    for (size_t i = 0; i < states.size(); ++i) body->inputs()[i + 2]->set_elements(states[i]);
    for (Node* node = body->first(); node; node = node->next()) {
      for (Value* output : node->outputs()) {
        if (output) output->set_elements(std::nullopt);
      }
      infer_types(node);
    }
    const std::optional<Dims> go = elements_of(body->outputs()[0]);
    if (!go || go->size() != 1 || !go->front().known()) return std::nullopt;
    if (go->front().value() == 0) return step + 1;
    for (size_t i = 0; i < states.size(); ++i) states[i] = elements_of(body->outputs()[i + 1]);
  }
  return std::nullopt;
}

// The number of steps of a Loop that its condition ends, as a Loop that carries what the condition depends on.
Var count_steps(const Node& loop, Builder* b) {
  const Graph& body = *loop.subgraph("body");
  const Condition condition(body);
  std::vector<Value*> inputs = {loop.input(0), loop.input(1)};
  std::vector<std::string> names;
  const std::string name = concat(loop.output() ? loop.output()->name() : loop.name(), "/count");
  Graph& graph = b->graph();
  for (const size_t i : condition.states) {
    inputs.push_back(loop.input(static_cast<int>(i) + 2));
    names.push_back(graph.unique_name(concat(name, "/", i)));
  }
  inputs.push_back(b->scalar(DType::kInt64, 0).value());
  names.push_back(graph.unique_name(name));
  Node* counting = graph.add_node("Loop", inputs, names, "", const_cast<Node*>(&loop));
  Graph* made = graph.add_subgraph(counting, "body");
  GraphCopy copy(made);
  const auto add = [&](const Value* v) { copy.map(v, made->add_input(made->unique_name(v->name()), v->type())); };
  add(body.inputs()[0]);
  add(body.inputs()[1]);
  for (const size_t i : condition.states) add(body.inputs()[i + 2]);
  Value* before = made->add_input(made->unique_name("count"), {DType::kInt64, Dims{}});
  for (const Value* v : body.initializers()) {
    if (condition.live.needs(v))
      copy.map(v, made->add_initializer(made->unique_name(v->name()), v->shared_initializer()));
  }
  for (const Node* node = body.first(); node; node = node->next()) {
    if (condition.live.runs(node)) copy.node(*node);
  }
  add_result(made, copy.of(body.outputs()[0]));
  for (const size_t i : condition.states) add_result(made, copy.of(body.outputs()[i + 1]));
  Builder inner(made);
  made->add_output((inner.var(before) + inner.scalar(DType::kInt64, 1)).value());
  infer_types(counting);
  if (const std::optional<int64_t> known = follow_steps(*counting)) {
    graph.remove(counting);
    return b->constant(Tensor::scalar<int64_t>(*known));
  }
  for (Node* node = made->first(); node; node = node->next()) {
    for (Value* output : node->outputs()) {
      if (output) output->set_elements(std::nullopt);
    }
  }
  for (Value* input : made->inputs()) input->set_elements(std::nullopt);
  return b->var(counting->output(counting->num_outputs() - 1));
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
  const Var most = form == Form::kEnded ? count_steps(*loop, &b) : b.var(loop->input(0));
  const Var count = reshape(most, b.constant(Tensor(DType::kInt64, {0})));
  const Var steps = b.op("Range", {b.scalar(DType::kInt64, 0), cast(count, DType::kInt64), b.scalar(DType::kInt64, 1)});
  std::vector<Value*> inputs(loop->inputs().begin() + std::min(loop->num_inputs(), 2), loop->inputs().end());
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
