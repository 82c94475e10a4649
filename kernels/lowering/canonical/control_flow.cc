// A Scan with few steps gives way to the nodes of its steps: what the gradient of a step computes again is then the
// same as what the step has computed. On devices that read conditions and count steps where they run kernels, all other
// control flow becomes a call of subgraphs, which have plans of their own. Elsewhere long Scans are unrolled, too, and
// an If gives way to both branches and a choice between their results.
#include <algorithm>
#include <unordered_map>

#include "kernels/lowering/canonical/control_flow.h"
#include "kernels/lowering/lowering.h"
#include "kernels/subgraph_calls.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/copy_graph.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// A Scan with explicit attributes. Among inputs and outputs, states precede scanned tensors.
struct Scan {
  Node* node;
  const Graph* body;
  int states, inputs, outputs;  // counts
  Shape input_axes, output_axes, input_backwards, output_backwards;

  explicit Scan(Node* n) : node(n), body(n->subgraphs().at(0).graph.get()) {
    inputs = static_cast<int>(n->attr("num_scan_inputs", 0));
    states = n->num_inputs() - inputs;
    outputs = n->num_outputs() - states;
    // An empty list means the same as an absent one.
    const auto list = [&](const char* name, int count) {
      const Shape given = n->attr(name, Shape{});
      return given.empty() ? Shape(static_cast<size_t>(count), 0) : given;
    };
    input_axes = list("scan_input_axes", inputs);
    output_axes = list("scan_output_axes", outputs);
    input_backwards = list("scan_input_directions", inputs);
    output_backwards = list("scan_output_directions", outputs);
  }

  // Returns -1 if unknown.
  int64_t steps() const {
    const TensorType& type = node->input(states)->type();
    if (!type.has_rank()) return -1;
    const Dim steps = (*type.dims)[static_cast<size_t>(normalize_axis(input_axes[0], type.rank()))];
    return steps.known() ? steps.value() : -1;
  }
};

// Nodes of a plan: with fewer of them, a plan for all steps is faster than a plan for one that runs again and again.
// With more, planning takes minutes and gigabytes.
constexpr int64_t kFewNodes = 2'000, kMostNodes = 200'000;

// Each step needs the nodes of the body, two that slice each scanned input, and one for each scanned output.
int64_t nodes_per_step(const Scan& scan) {
  return static_cast<int64_t>(scan.body->num_nodes()) + 2 * scan.inputs + scan.outputs + 1;
}

void expect_few_nodes(const Scan& scan) {
  if (scan.steps() <= kMostNodes / nodes_per_step(scan)) return;
  fail(scan.node->label(), ": ", scan.steps(), " steps of ", nodes_per_step(scan), " nodes are more than the ",
       kMostNodes,
       " nodes that a Scan may become on this device; make the sequence shorter, export an LSTM, GRU or RNN, which has "
       "a "
       "kernel, or run it on the CPU");
}

bool can_unroll(const Node& node) {
  if (!node.is("Scan") || node.subgraphs().empty()) return false;
  check_shapes(node);  // inlining a body may have introduced the Scan
  return Scan(const_cast<Node*>(&node)).steps() >= 0;
}

// Copies a node, and infers its types from its inputs here.
void copy_inferred(const Node& node, GraphCopy* copy) {
  Node* made = copy->node(node);
  for (Value* output : made->outputs()) {
    if (!output) continue;
    output->set_type({output->dtype(), std::nullopt});
    output->set_elements(std::nullopt);
  }
  check_shapes(*made);
  infer_types(made);
}

// What was stacked along `axis` as slice `index` of `values`, a Concat of Unsqueezes; null for other values.
Value* stacked(const Value& values, int64_t axis, int64_t index) {
  const Node* join = values.producer();
  if (!join || !join->is("Concat") || normalize_axis(join->attr("axis", 0), values.rank()) != axis) return nullptr;
  const Value* part = join->input(static_cast<int>(index));
  const Node* unsqueeze = part ? part->producer() : nullptr;
  if (!unsqueeze || !unsqueeze->is("Unsqueeze") ||
      join->num_inputs() != (*values.type().dims)[static_cast<size_t>(axis)])
    return nullptr;
  const Tensor axes = constant_of(unsqueeze->input(1));
  const bool same = axes.size() == 1 && normalize_axis(axes.to_ints()[0], values.rank()) == axis;
  return same ? unsqueeze->input(0) : nullptr;
}

class Unroller {
 public:
  explicit Unroller(const Scan& scan) : scan_(scan), graph_(scan.node->graph()), b_(&graph_, scan.node) {}

  void run() {
    const int64_t steps = scan_.steps();
    std::vector<Value*> states(scan_.node->inputs().begin(), scan_.node->inputs().begin() + scan_.states);
    std::vector<std::vector<Var>> scanned(static_cast<size_t>(scan_.outputs));
    for (const Value* constant : scan_.body->initializers()) {
      constants_[constant] =
          graph_.add_initializer(graph_.unique_name(constant->name()), constant->shared_initializer());
    }
    for (int64_t step = 0; step < steps; ++step) {
      const std::vector<Value*> results = run_step(step, steps, states);
      states.assign(results.begin(), results.begin() + scan_.states);
      for (size_t i = 0; i < scanned.size(); ++i)
        scanned[i].push_back(b_.var(results[static_cast<size_t>(scan_.states) + i]));
    }
    for (int i = 0; i < scan_.node->num_outputs(); ++i) {
      Value* output = scan_.node->output(i);
      if (output) graph_.replace(output, i < scan_.states ? states[static_cast<size_t>(i)] : joined(i, &scanned));
    }
    graph_.remove(scan_.node);
  }

 private:
  std::vector<Value*> run_step(int64_t step, int64_t steps, const std::vector<Value*>& states) {
    GraphCopy copy(&graph_, scan_.node);
    for (const auto& [constant, here] : constants_) copy.map(constant, here);
    for (int i = 0; i < scan_.states; ++i)
      copy.map(scan_.body->inputs()[static_cast<size_t>(i)], states[static_cast<size_t>(i)]);
    for (int i = 0; i < scan_.inputs; ++i) {
      const auto at = static_cast<size_t>(i);
      const int64_t index = scan_.input_backwards[at] ? steps - 1 - step : step;
      copy.map(scan_.body->inputs()[static_cast<size_t>(scan_.states) + at], slice_of(i, index).value());
    }
    for (const Node* node = scan_.body->first(); node; node = node->next()) copy_inferred(*node, &copy);
    std::vector<Value*> results;
    for (const Value* output : scan_.body->outputs()) results.push_back(copy.of(output));
    return results;
  }

  Var slice_of(int input, int64_t index) {
    const Var values = b_.var(scan_.node->input(scan_.states + input));
    const int64_t axis = normalize_axis(scan_.input_axes[static_cast<size_t>(input)], values.rank());
    if (Value* slice = stacked(*values.value(), axis, index)) return b_.var(slice);
    return squeeze(slice(values, index, index + 1, axis), {axis});
  }

  Value* joined(int output, std::vector<std::vector<Var>>* scanned) {
    const auto i = static_cast<size_t>(output - scan_.states);
    std::vector<Var>& slices = (*scanned)[i];
    if (slices.empty()) return empty_output(*scan_.node->output(output));
    if (scan_.output_backwards[i]) std::reverse(slices.begin(), slices.end());
    const int64_t axis = normalize_axis(scan_.output_axes[i], slices[0].rank() + 1);
    for (Var& slice : slices) slice = unsqueeze(slice, {axis});
    return concat(slices, axis).value();
  }

  Value* empty_output(const Value& output) {
    if (!output.type().is_static()) {
      fail(scan_.node->label(), ": it has no steps, and the shape of its output '", output.name(), "' is ",
           to_string(output.type()), "; give it a shape in the file (value_info)");
    }
    return graph_.add_initializer(graph_.unique_name(output.name() + "/empty"),
                                  Tensor(output.dtype(), output.type().shape()));
  }

  const Scan scan_;
  Graph& graph_;
  Builder b_;
  std::unordered_map<const Value*, Value*> constants_;
};

bool unroll_scans(Graph* graph, bool only_short) {
  bool changed = false;
  for (Node* node : graph->nodes()) {
    if (!can_unroll(*node)) continue;
    if (only_short && Scan(node).steps() > kFewNodes / nodes_per_step(Scan(node))) continue;
    expect_few_nodes(Scan(node));
    Unroller(Scan(node)).run();
    changed = true;
  }
  return changed;
}

// Throws Error for results of a branch that are not those of the other one.
void expect_same(const Node& node, int output, const TensorType& yes, const TensorType& no) {
  if (yes == no && yes.is_static()) return;
  fail(node.label(), ": its condition '", node.input(0)->name(), "' is computed from data, and its branches give '",
       node.output(output)->name(), "' as ", to_string(yes), " and as ", to_string(no), "; a plan needs one shape");
}

// Both branches run, and each result is chosen by the condition: what a branch computes changes nothing else.
void select_branch(Node* node) {
  Graph& graph = node->graph();
  Builder b(&graph, node);
  std::vector<std::vector<Value*>> results;
  for (const char* attribute : {"then_branch", "else_branch"}) {
    const Graph* branch = node->subgraph(attribute);
    if (!branch) fail(node->label(), " has no ", attribute);
    GraphCopy copy(&graph, node, std::string(attribute) + "/");
    for (const Value* v : branch->initializers())
      copy.map(v, graph.add_initializer(graph.unique_name(v->name()), v->shared_initializer()));
    for (const Node* n = branch->first(); n; n = n->next()) copy_inferred(*n, &copy);
    results.emplace_back();
    for (const Value* output : branch->outputs()) results.back().push_back(copy.of(output));
  }
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (!node->output(i)) continue;
    const auto at = static_cast<size_t>(i);
    const Var yes = b.var(results[0].at(at)), no = b.var(results[1].at(at));
    expect_same(*node, i, yes.type(), no.type());
    graph.replace(node->output(i), where(b.var(node->input(0)), yes, no).value());
  }
  graph.remove(node);
}

bool select_branches(Graph* graph) {
  bool changed = false;
  for (Node* node : graph->nodes()) {
    if (!node->is("If")) continue;
    select_branch(node);
    changed = true;
  }
  return changed;
}

// ---- Subgraphs that are plans of their own

// The axes of a tensor with `axis` first.
Shape with_first(int64_t axis, int64_t rank) {
  Shape order = {axis};
  for (int64_t i = 0; i < rank; ++i) {
    if (i != axis) order.push_back(i);
  }
  return order;
}

// Transposes what is scanned along another axis than the first.
void scan_first_axes(Node* node) {
  const Scan scan(node);
  Builder b(&node->graph(), node);
  for (int i = 0; i < scan.inputs; ++i) {
    const Var x = b.var(node->input(scan.states + i));
    const int64_t axis = normalize_axis(scan.input_axes[static_cast<size_t>(i)], x.rank());
    if (axis != 0) node->set_input(scan.states + i, transpose(x, with_first(axis, x.rank())).value());
  }
  node->remove_attr("scan_input_axes");
}

// Gives a call the type of the node's output `i`, and returns the call's output as the node has it: what a Scan stacks
// comes out along the first axis.
Value* output_of_call(const Node& node, Node* call, int i) {
  const TensorType& type = node.output(i)->type();
  Value* made = call->output(i);
  made->set_type(type);
  const int first = node.is("Scan") ? Scan(const_cast<Node*>(&node)).states : node.num_outputs();
  if (i < first || !type.has_rank()) return made;
  const Shape axes = Scan(const_cast<Node*>(&node)).output_axes;
  const int64_t axis = normalize_axis(axes[static_cast<size_t>(i - first)], type.rank());
  if (axis == 0) return made;
  const Shape order = with_first(axis, type.rank());
  Dims dims;
  Shape back(order.size());
  for (size_t k = 0; k < order.size(); ++k) {
    dims.push_back((*type.dims)[static_cast<size_t>(order[k])]);
    back[static_cast<size_t>(order[k])] = static_cast<int64_t>(k);
  }
  made->set_type({type.dtype, dims});
  Builder b(&node.graph(), call->next());
  return transpose(b.var(made), back).value();
}

// What the node's subgraphs read of other graphs.
std::vector<Value*> read_outside(const Node& node) {
  std::vector<Value*> outer;
  for (const auto& subgraph : node.subgraphs()) {
    const auto add = [&](const Value* v) {
      const Graph* g = &v->graph();
      while (g && g != subgraph.graph.get()) g = g->parent();
      if (!g && std::count(outer.begin(), outer.end(), v) == 0) outer.push_back(const_cast<Value*>(v));
    };
    for (const Node* n = subgraph.graph->first(); n; n = n->next()) for_each_input(*n, add);
    for (const Value* output : subgraph.graph->outputs()) add(output);
  }
  return outer;
}

// The type of what the subgraph's input `i` is in a run.
TensorType type_of_input(const Node& node, int states, int i) {
  TensorType type = node.input(i)->type();
  if (i >= states) type.dims->erase(type.dims->begin());  // a slice
  return type;
}

// A node that calls the subgraphs, whose inputs are also what they read from outside.
void call_subgraphs(Node* node) {
  Graph& graph = node->graph();
  const bool is_scan = node->is("Scan");
  const int own = is_scan ? node->num_inputs() : 0;  // inputs of the subgraph; the condition of an If is none
  const int states = is_scan ? Scan(node).states : 0;
  const std::vector<Value*> outer = read_outside(*node);
  std::vector<Value*> inputs = node->inputs();
  inputs.insert(inputs.end(), outer.begin(), outer.end());
  std::vector<std::string> names;
  for (const Value* output : node->outputs()) names.push_back(output ? graph.unique_name(output->name()) : "");
  Node* call = graph.add_node(is_scan ? kCallScan : kCallIf, inputs, names, kDomain, node);
  call->mutable_shell().set_name(node->name());
  call->set_attr("states", states);
  call->set_attr("scanned", own - states);
  for (const char* name : {"scan_input_directions", "scan_output_directions"}) {
    if (node->has_attr(name)) call->set_attr(name, node->attr(name, Shape{}));
  }
  for (const auto& subgraph : node->subgraphs()) {
    Graph* made = graph.add_subgraph(call, subgraph.attribute);
    GraphCopy copy(made);
    const auto add = [&](const Value* value, const TensorType& type) {
      copy.map(value, made->add_input(made->unique_name(value->name()), type));
    };
    for (int i = 0; i < own; ++i)
      add(subgraph.graph->inputs()[static_cast<size_t>(i)], type_of_input(*node, states, i));
    for (const Value* v : outer) add(v, v->type());
    copy.contents(*subgraph.graph);
    Builder b(made);
    for (const Value* output : subgraph.graph->outputs()) {
      const bool is_result = output->producer() && &output->graph() == subgraph.graph.get();
      Value* result = copy.of(output);
      made->add_output(is_result && !made->is_output(result) ? result : b.op("Identity", {b.var(result)}).value());
    }
  }
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (!node->output(i)) continue;
    graph.replace(node->output(i), output_of_call(*node, call, i));
  }
  graph.remove(node);
}

void infer_again(Graph* subgraph) {
  for (Node* node = subgraph->first(); node; node = node->next()) {
    for (Value* output : node->outputs()) {
      if (!output) continue;
      output->set_type({output->dtype(), std::nullopt});
      output->set_elements(std::nullopt);
    }
    check_shapes(*node);
    infer_types(node);
  }
}

bool call_subgraphs(Graph* graph) {
  bool changed = false;
  for (Node* node : graph->nodes()) {
    if (node->is("If")) {
      for (const auto& subgraph : node->subgraphs()) infer_again(subgraph.graph.get());
      for (int i = 0; i < node->num_outputs(); ++i) {
        if (!node->output(i)) continue;
        const auto type = [&](const char* branch) {
          return node->subgraph(branch)->outputs().at(static_cast<size_t>(i))->type();
        };
        expect_same(*node, i, type("then_branch"), type("else_branch"));
      }
    } else if (can_unroll(*node)) {  // with a known number of steps
      scan_first_axes(node);
    } else {
      continue;
    }
    call_subgraphs(node);
    changed = true;
  }
  return changed;
}

}  // namespace

bool expand_control_flow(Model& model, bool can_call) {
  Graph* graph = model.graph.get();
  bool changed = false;
  for (bool again = true; again;) {
    again = unroll_scans(graph, can_call);
    if (again) fold_constants(model);  // decides conditions of the step
    if (!can_call) again = select_branches(graph) || again;
    changed = changed || again;
  }
  if (changed) share_equal_nodes(model);
  if (can_call) changed = call_subgraphs(graph) || changed;
  return changed;
}

}  // namespace onnx_train
