// A Scan with few steps gives way to the nodes of its steps: what the gradient of a step computes again is then the
// same as what the step has computed. On devices that read conditions and count steps where they run kernels, all other
// control flow becomes a call of subgraphs, which have plans of their own. Elsewhere long Scans are unrolled, too, and
// an If gives way to both branches and a choice between their results.
#include <algorithm>
#include <unordered_map>

#include "kernels/lowering/canonical/branch_shapes.h"
#include "kernels/lowering/canonical/control_flow.h"
#include "kernels/lowering/canonical/segments.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/subgraph_calls.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/scan.h"

namespace onnx_train {
namespace {

// Nodes of a plan: with fewer of them, a plan for all steps is faster than a plan for one that runs again and again.
// With more, planning takes minutes and gigabytes.
constexpr int64_t kFewNodes = 2'000, kMostNodes = 200'000;

// Each step needs the nodes of the body, two that slice each scanned input, and one for each scanned output.
int64_t nodes_per_step(const Scan& scan) {
  return static_cast<int64_t>(scan.body->num_nodes()) + 2 * scan.inputs + scan.outputs + 1;
}

bool has_known_steps(const Node& node) {
  if (!node.is("Scan") || node.subgraphs().empty()) return false;
  check_shapes(node);  // inlining a body may have introduced the Scan
  return Scan(node).steps(node) >= 0;
}

void expect_few_nodes(const Node& node, int64_t steps, int64_t per_step) {
  if (steps <= kMostNodes / per_step) return;
  fail(node.label(), ": ", steps, " steps of ", per_step, " nodes are more than the ", kMostNodes,
       " nodes that a Scan may become on this device; make the sequence shorter, export an LSTM, GRU or RNN, ",
       "which has a kernel, or run it on the CPU");
}

// Infers the nodes from `first` up to `end` from the sizes of this plan alone.
void infer_anew(Node* first, const Node* end) {
  for (Node* node = first; node != end; node = node->next()) {
    forget_shapes(node);
    check_shapes(*node);
    infer_types(node);
  }
}

// Copies the contents of a subgraph before the node.
void copy_contents(const Graph& subgraph, Node* node, GraphCopy* copy) {
  Node* const before = node->previous();
  copy->contents(subgraph);
  infer_anew(before ? before->next() : node->graph().first(), node);
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
  explicit Unroller(Node* node) : node_(node), scan_(*node), graph_(node->graph()), b_(&graph_, node) {}

  void run() {
    const int64_t steps = scan_.steps(*node_);
    std::vector<Value*> states(node_->inputs().begin(), node_->inputs().begin() + scan_.states);
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
    for (int i = 0; i < node_->num_outputs(); ++i) {
      Value* output = node_->output(i);
      if (output) graph_.replace(output, i < scan_.states ? states[static_cast<size_t>(i)] : joined(i, &scanned));
    }
    graph_.remove(node_);
  }

 private:
  std::vector<Value*> run_step(int64_t step, int64_t steps, const std::vector<Value*>& states) {
    GraphCopy copy(&graph_, node_);
    for (const auto& [constant, here] : constants_) copy.map(constant, here);
    for (int i = 0; i < scan_.states; ++i)
      copy.map(scan_.body->inputs()[static_cast<size_t>(i)], states[static_cast<size_t>(i)]);
    for (int i = 0; i < scan_.inputs; ++i) {
      const auto at = static_cast<size_t>(i);
      const int64_t index = scan_.input_backwards[at] ? steps - 1 - step : step;
      copy.map(scan_.body->inputs()[static_cast<size_t>(scan_.states) + at], slice_of(i, index).value());
    }
    copy_contents(*scan_.body, node_, &copy);
    std::vector<Value*> results;
    for (const Value* output : scan_.body->outputs()) results.push_back(copy.of(output));
    return results;
  }

  Var slice_of(int input, int64_t index) {
    const Var values = b_.var(node_->input(scan_.states + input));
    const int64_t axis = normalize_axis(scan_.input_axes[static_cast<size_t>(input)], values.rank());
    if (Value* slice = stacked(*values.value(), axis, index)) return b_.var(slice);
    return squeeze(slice(values, index, index + 1, axis), {axis});
  }

  Value* joined(int output, std::vector<std::vector<Var>>* scanned) {
    const auto i = static_cast<size_t>(output - scan_.states);
    std::vector<Var>& slices = (*scanned)[i];
    if (slices.empty()) return empty_output(*node_->output(output));
    if (scan_.output_backwards[i]) std::reverse(slices.begin(), slices.end());
    const int64_t axis = normalize_axis(scan_.output_axes[i], slices[0].rank() + 1);
    for (Var& slice : slices) slice = unsqueeze(slice, {axis});
    return concat(slices, axis).value();
  }

  Value* empty_output(const Value& output) {
    if (!output.type().is_static()) {
      fail(node_->label(), ": it has no steps, and the shape of its output '", output.name(), "' is ",
           to_string(output.type()), "; give it a shape in the file (value_info)");
    }
    return graph_.add_initializer(graph_.unique_name(output.name() + "/empty"),
                                  Tensor(output.dtype(), output.type().shape()));
  }

  Node* const node_;
  const Scan scan_;
  Graph& graph_;
  Builder b_;
  std::unordered_map<const Value*, Value*> constants_;
};

// What a step gets that is a constant when the Scan is unrolled: slices of constants, and states that start as
// constants and of which each follows from the one before it.
Marks<Value> constants_of_steps(const Node& node, const Scan& scan) {
  const auto& inputs = scan.body->inputs();
  std::vector<size_t> constant;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_constant(*node.input(static_cast<int>(i)))) constant.push_back(i);
  }
  for (;;) {
    Marks<Value> known;
    for (const size_t i : constant) known.insert(inputs[i]);
    Marks<Value> follows = known;
    add_what_follows(*scan.body, &follows);
    const auto changes = [&](size_t i) {
      const Value* next = i < static_cast<size_t>(scan.states) ? scan.body->outputs()[i] : nullptr;
      return next && !follows.contains(next) && !is_constant(*next);
    };
    const auto end = std::remove_if(constant.begin(), constant.end(), changes);
    if (end == constant.end()) return known;
    constant.erase(end, constant.end());
  }
}

bool unroll_scans(Graph* graph, bool only_short) {
  bool changed = false;
  for (Node* node : graph->nodes()) {
    if (!has_known_steps(*node)) continue;
    const Scan scan(*node);
    // A step's plan is cut, not that of all steps.
    if (only_short && has_shapes_of_data(*scan.body, constants_of_steps(*node, scan))) continue;
    const int64_t steps = scan.steps(*node), per_step = nodes_per_step(scan);
    if (only_short && steps > kFewNodes / per_step) continue;
    expect_few_nodes(*node, steps, per_step);
    Unroller(node).run();
    changed = true;
  }
  return changed;
}

// Throws Error for results of a branch that are not those of the other one.
void expect_same(const Node& node, int output, const TensorType& yes, const TensorType& no) {
  if (yes == no && yes.is_static()) return;
  fail(node.label(), ": its condition '", node.input(0)->name(), "' is computed from data, and its branches give '",
       node.output(output)->name(), "' as ", to_string(yes), " and as ", to_string(no),
       "; a plan needs one shape: make it the same in both branches, or reshape it to one that is known");
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
    copy_contents(*branch, node, &copy);
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
  const Scan scan(*node);
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
  if (!node.is("Scan") || !type.has_rank()) return made;
  const Scan scan(node);
  if (i < scan.states) return made;
  const int64_t axis = normalize_axis(scan.output_axes[static_cast<size_t>(i - scan.states)], type.rank());
  if (axis == 0) return made;
  const Shape order = with_first(axis, type.rank());
  Dims dims;
  for (const int64_t k : order) dims.push_back((*type.dims)[static_cast<size_t>(k)]);
  made->set_type({type.dtype, dims});
  Builder b(&node.graph(), call->next());
  return transpose(b.var(made), inverse_permutation(order)).value();
}

// The type of what the subgraph's input `i` is in a run.
TensorType type_of_input(const Node& node, int states, int i) {
  TensorType type = node.input(i)->type();
  if (i >= states) type.dims->erase(type.dims->begin());  // a slice
  return type;
}

// Of what subgraphs read from outside: whether it is a small constant, which their plans may depend on.
bool is_small_constant(const Value& value) {
  constexpr int64_t kMostElements = 1024;
  return is_constant(value) && value.type().is_static() && num_elements(value.type().shape()) <= kMostElements;
}

// The call of the node's subgraphs, before the node: its inputs are `inputs` and what the subgraphs read from outside.
class Call {
 public:
  Call(Node* node, const char* op, std::vector<Value*> inputs, const std::vector<std::string>& names) : node_(node) {
    for (Value* v : read_from_outside(*node)) (is_small_constant(*v) ? constants_ : outer_).push_back(v);
    inputs.insert(inputs.end(), outer_.begin(), outer_.end());
    call_ = node->graph().add_node(op, inputs, names, kDomain, node);
    call_->mutable_shell().set_name(node->name());
  }

  Node* node() const { return call_; }

  // Adds the subgraph as that of the call. Its inputs have these types.
  Graph* add(const Node::Subgraph& subgraph, const std::vector<TensorType>& types) {
    Graph* made = node_->graph().add_subgraph(call_, subgraph.attribute);
    GraphCopy copy(made);
    const auto add_input = [&](const Value* value, const TensorType& type) {
      copy.map(value, made->add_input(made->unique_name(value->name()), type));
    };
    for (size_t i = 0; i < types.size(); ++i) add_input(subgraph.graph->inputs()[i], types[i]);
    for (const Value* v : outer_) add_input(v, v->type());
    for (const Value* v : constants_)
      copy.map(v, made->add_initializer(made->unique_name(v->name()), v->shared_initializer()));
    copy.contents(*subgraph.graph);
    for (const Value* output : subgraph.graph->outputs()) add_result(made, copy.of(output));
    return made;
  }

 private:
  Node* const node_;
  Node* call_;
  std::vector<Value*> outer_, constants_;
};

std::vector<std::string> names_for(const Node& node) {
  std::vector<std::string> names;
  for (const Value* output : node.outputs()) names.push_back(output ? node.graph().unique_name(output->name()) : "");
  return names;
}

// A node that calls the subgraphs, whose inputs are also what they read from outside.
void call_subgraphs(Node* node) {
  Graph& graph = node->graph();
  const bool is_scan = node->is("Scan");
  const int own = is_scan ? node->num_inputs() : 0;  // inputs of the subgraph; the condition of an If is none
  const int states = is_scan ? Scan(*node).states : 0;
  Call call(node, is_scan ? kCallScan : kCallIf, node->inputs(), names_for(*node));
  call.node()->set_attr("states", states);
  call.node()->set_attr("scanned", own - states);
  for (const char* name : {"scan_input_directions", "scan_output_directions"}) {
    if (node->has_attr(name)) call.node()->set_attr(name, node->attr(name, Shape{}));
  }
  std::vector<TensorType> types;
  for (int i = 0; i < own; ++i) types.push_back(type_of_input(*node, states, i));
  for (const auto& subgraph : node->subgraphs()) call.add(subgraph, types);
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (!node->output(i)) continue;
    graph.replace(node->output(i), output_of_call(*node, call.node(), i));
  }
  graph.remove(node);
}

// ---- Loops that their condition ends

bool is_callable_loop(const Node& node) {
  const Graph* body = node.is("Loop") ? node.subgraph("body") : nullptr;
  if (!body || body->inputs().size() != static_cast<size_t>(std::max(node.num_inputs(), 2)) ||
      body->outputs().size() + 1 != body->inputs().size())
    return false;
  const auto is_sized = [](const Value* v) { return !v || v->type().is_static(); };
  return std::all_of(node.inputs().begin(), node.inputs().end(), is_sized) &&
         std::all_of(node.outputs().begin(), node.outputs().end(), is_sized);
}

bool call_loops(Graph* graph) {
  bool changed = false;
  for (Node* node : graph->nodes()) {
    if (!is_callable_loop(*node)) continue;
    std::vector<Value*> inputs = node->inputs();
    inputs.resize(std::max<size_t>(inputs.size(), 2));
    const size_t states = inputs.size() - 2;
    std::vector<TensorType> types = {{DType::kInt64, Dims{}}, {DType::kBool, Dims{}}};
    for (size_t i = 0; i < states; ++i) types.push_back(inputs[i + 2]->type());
    Call call(node, kCallLoop, inputs, names_for(*node));
    call.node()->set_attr("states", static_cast<int64_t>(states));
    Graph* body = call.add(node->subgraphs()[0], types);
    Builder b(body);
    Value* one = body->add_initializer(body->unique_name("one"), Tensor::scalar<int64_t>(1));  // not the outer graph's
    std::vector<Value*> results = {(b.var(body->inputs()[0]) + b.var(one)).value()};
    results.insert(results.end(), body->outputs().begin(), body->outputs().end());
    body->set_outputs(results);
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (!node->output(i)) continue;
      call.node()->output(i)->set_type(node->output(i)->type());
      graph->replace(node->output(i), call.node()->output(i));
    }
    graph->remove(node);
    changed = true;
  }
  return changed;
}

bool call_subgraphs(Graph* graph) {
  bool changed = false;
  for (Node* node : graph->nodes()) {
    if (node->is("If")) {
      for (const auto& subgraph : node->subgraphs()) infer_anew(subgraph.graph->first(), nullptr);
      for (int i = 0; i < node->num_outputs(); ++i) {
        if (!node->output(i)) continue;
        const auto type = [&](const char* branch) {
          return node->subgraph(branch)->outputs().at(static_cast<size_t>(i))->type();
        };
        expect_same(*node, i, type("then_branch"), type("else_branch"));
      }
    } else if (has_known_steps(*node)) {
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
  bool changed = give_one_shape(graph);
  if (changed) infer_anew(graph->first(), nullptr);
  changed = call_loops(graph) || changed;
  for (bool again = true; again;) {
    again = unroll_scans(graph, can_call);
    if (again) fold_constants(model);  // decides conditions of the step
    if (!can_call) again = select_branches(graph) || again;
    if (again) call_loops(graph);
    changed = changed || again;
  }
  if (changed) share_equal_nodes(model);
  if (can_call) changed = call_subgraphs(graph) || changed;
  return changed;
}

}  // namespace onnx_train
