// Gradients of control flow. A branch or a body becomes a graph of its own, whose inputs are also the values that it
// reads from outside; add_gradients differentiates it as any other graph.
//
//   y = If(c, f, g)        dx = If(c, f', g'), where f' computes f again, and then its gradient
//   s', y = Scan(s, x, f)  dx = Scan in reverse over x, dy and the states before each step, which another Scan lists. A
//                          step computes f again, and then its gradient; the states are the gradients of s and the sums
//                          of those of outer values
//
// So the memory of a Scan is that of its states. A plan that unrolls both computes nothing twice.
#include "onnx_passes/gradients/control_flow.h"

#include <algorithm>
#include <map>

#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/model/liveness.h"
#include "onnx_passes/operators/scan.h"

namespace onnx_train {
namespace {

using Values = std::vector<Value*>;

// A subgraph as a graph of its own.
class Closed {
 public:
  // `differentiated` are outer values; others that are constants stay constants.
  Closed(const Graph& subgraph, const std::vector<const Value*>& differentiated)
      : graph_(subgraph.shared_context()), copy_(&graph_) {
    for (const Value* v : subgraph.inputs()) inputs_.push_back(add_input(*v));
    for (const Value* v : differentiated) add_outer(*v, /*may_be_constant=*/false);
    for (Value* v : read_from_outside(subgraph)) {
      if (copy_.of(v) == v) add_outer(*v, /*may_be_constant=*/true);
    }
    for (const Value* v : subgraph.initializers())
      copy_.map(v, graph_.add_initializer(graph_.unique_name(v->name()), v->shared_initializer()));
    for (const Node* n = subgraph.first(); n; n = n->next()) origins_[copy_.node(*n)] = n;
    for (const Value* v : subgraph.outputs()) outputs_.push_back(copy_.of(v));
  }

  Graph& graph() { return graph_; }
  const Values& inputs() const { return inputs_; }
  const Values& outputs() const { return outputs_; }
  Value* of(const Value* outer) const { return copy_.of(outer); }
  // The subgraph's node that is copied as `node`; null for another node.
  const Node* origin(const Node* node) const {
    const auto found = origins_.find(node);
    return found == origins_.end() ? nullptr : found->second;
  }

  // An input that stands for the outer value `outer`.
  Value* stand_in(Value* outer, const std::string& name) {
    Value* input = graph_.add_input(graph_.unique_name(name), outer->type());
    outer_of_[input] = outer;
    return input;
  }

  // Makes the values outputs of `to`, a subgraph, with the nodes that compute them. `inputs` of this graph are inputs
  // of `to`, those that stand for outer values are these.
  void write(const Values& results, const std::map<const Value*, Value*>& inputs, Graph* to) {
    Liveness live;
    for (const Value* result : results) live.need(result);
    live.trace(graph_);
    GraphCopy copy(to);
    for (const auto& [own, outer] : outer_of_) copy.map(own, outer);
    for (const auto& [own, input] : inputs) copy.map(own, input);
    for (const Value* v : graph_.initializers()) {
      if (live.needs(v) && !outer_of_.count(v))
        copy.map(v, to->add_initializer(to->unique_name(v->name()), v->shared_initializer()));
    }
    for (const Node* n = graph_.first(); n; n = n->next()) {
      if (live.runs(n)) copy.node(*n);
    }
    for (const Value* result : results) add_result(to, copy.of(result));
  }

  bool reads(const Values& results, const Value* value) const {
    Liveness live;
    for (const Value* result : results) live.need(result);
    live.trace(graph_);
    return live.needs(value);
  }

 private:
  Value* add_input(const Value& like) {
    Value* input = graph_.add_input(graph_.unique_name(like.name()), like.type());
    input->set_elements(like.elements());
    copy_.map(&like, input);
    return input;
  }

  void add_outer(const Value& value, bool may_be_constant) {
    const bool is_constant = may_be_constant && value.is_initializer() && !value.graph().is_input(&value);
    Value* own = is_constant ? graph_.add_initializer(graph_.unique_name(value.name()), value.shared_initializer())
                             : add_input(value);
    copy_.map(&value, own);
    outer_of_[own] = const_cast<Value*>(&value);
  }

  Graph graph_;
  GraphCopy copy_;
  Values inputs_, outputs_;
  std::map<const Value*, Value*> outer_of_;
  std::unordered_map<const Node*, const Node*> origins_;
};

// Names in subgraphs must differ from those around them, of now and later.
void name_apart(Graph* subgraph, const std::string& prefix) {
  const auto rename = [&](Value* value) { subgraph->rename(value, subgraph->unique_name(prefix + value->name())); };
  for (Value* input : subgraph->inputs()) rename(input);
  for (Value* initializer : subgraph->initializers()) rename(initializer);
  for (Node* node = subgraph->first(); node; node = node->next()) {
    for (Value* output : node->outputs()) {
      if (output) rename(output);
    }
    for (const auto& inner : node->subgraphs()) name_apart(inner.graph.get(), prefix);
  }
}

// A node with control flow at the builder's place, without its subgraphs. Its outputs are named after `names`.
Node* add_node(const Grad& g, const std::string& op, const Values& inputs, const std::vector<std::string>& names) {
  Graph& graph = g.b().graph();
  std::vector<std::string> outputs;
  for (const std::string& name : names) {
    std::string free = graph.unique_name(name);
    while (std::count(outputs.begin(), outputs.end(), free) > 0) free += "_";
    outputs.push_back(free);
  }
  return graph.add_node(op, inputs, outputs);
}

// ---- If

Gradients if_gradient(Grad& g) {
  const std::vector<const Value*>& outer = g.outer();
  std::vector<std::string> names;
  for (const Value* v : outer) names.push_back("grad/" + v->name());
  Node* made = add_node(g, "If", {g.node().input(0)}, names);
  for (const char* attribute : {"then_branch", "else_branch"}) {
    Closed branch(*g.node().subgraph(attribute), outer);
    Values outputs, given, wanted, results;
    for (int i = 0; i < g.num_outputs(); ++i) {
      if (!g.node().output(i) || !g.dy(i)) continue;
      outputs.push_back(branch.outputs()[static_cast<size_t>(i)]);
      given.push_back(branch.stand_in(g.dy(i).value(), g.dy(i).value()->name()));
    }
    for (const Value* v : outer) wanted.push_back(branch.of(v));
    results = add_gradients(&branch.graph(), outputs, given, wanted);
    Builder b(&branch.graph());
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i]) results[i] = zeros_like(b.var(wanted[i])).value();
    }
    branch.write(results, {}, g.b().graph().add_subgraph(made, attribute));
    name_apart(made->subgraph(attribute), concat(made->output(0)->name(), "/", attribute, "/"));
  }
  infer_types(made);
  for (size_t i = 0; i < outer.size(); ++i) g.send(outer[i], g.b().var(made->output(static_cast<int>(i))));
  return {};
}

// ---- Scan

// The states of the body, by number, that carry a gradient: those that depend on what is differentiated.
std::vector<size_t> find_carried(const Grad& g, size_t states, Closed* body) {
  std::vector<size_t> carried;
  std::vector<const Value*> seeds;
  for (const Value* v : g.outer()) seeds.push_back(body->of(v));
  for (size_t i = 0; i < body->inputs().size(); ++i) {
    if (g.needs(static_cast<int>(i))) seeds.push_back(body->inputs()[i]);
  }
  for (size_t before = seeds.size() + 1; before != seeds.size();) {
    before = seeds.size();
    const auto reached = reached_from(seeds, &body->graph());
    carried.clear();
    for (size_t i = 0; i < states; ++i) {
      const Value *from = body->inputs()[i], *to = body->outputs()[i];
      if (!is_float(from->dtype()) || !(reached.count(from) || reached.count(to))) continue;
      carried.push_back(i);
      if (!reached.count(from)) seeds.push_back(from);
    }
  }
  return carried;
}

// The states before each step, of those that `wanted` numbers: a Scan with the same body, and these as outputs.
Values list_states(const Grad& g, const Scan& scan, const std::vector<size_t>& wanted) {
  if (wanted.empty()) return {};
  std::vector<std::string> names;
  for (const Value* output : g.node().outputs()) names.push_back(output ? output->name() + "/again" : "again");
  for (const size_t i : wanted) names.push_back(g.node().input(static_cast<int>(i))->name() + "/steps");
  Node* made = add_node(g, "Scan", g.node().inputs(), names);
  Shape axes = scan.output_axes, backwards = scan.output_backwards;
  axes.resize(axes.size() + wanted.size(), 0);
  backwards.resize(axes.size(), 0);
  made->set_attr("num_scan_inputs", scan.inputs);
  made->set_attr("scan_input_axes", scan.input_axes);
  made->set_attr("scan_input_directions", scan.input_backwards);
  made->set_attr("scan_output_axes", axes);
  made->set_attr("scan_output_directions", backwards);
  Graph* body = g.b().graph().add_subgraph(made, "body");
  GraphCopy().graph(*scan.body, body);
  Builder b(body);
  for (const size_t i : wanted) body->add_output(b.op("Identity", {b.var(body->inputs()[i])}).value());
  name_apart(body, made->output(0)->name() + "/");
  infer_types(made);
  if (const Value* first = g.node().output()) {
    onnx::StringStringEntryProto* repeats = made->mutable_shell().add_metadata_props();
    repeats->set_key(kRepeats);
    repeats->set_value(first->name());
  }
  return {made->outputs().end() - static_cast<std::ptrdiff_t>(wanted.size()), made->outputs().end()};
}

// The reversed Scan under construction: what goes in and comes out, in Scan's order.
struct Reversed {
  struct Scanned {
    Value* values;  // around the Scan
    Value* slice;   // in the graph of the body
    int64_t axis, backwards;
  };
  Values states, state_slices, next_states;  // around the Scan, and in the graph of the body
  std::vector<Scanned> inputs, outputs;
  std::vector<std::string> names;  // of all outputs
};

Node* write(const Grad& g, const Reversed& reversed, Closed* body) {
  Values inputs = reversed.states, results = reversed.next_states;
  Shape input_axes, input_backwards, output_axes, output_backwards;
  for (const auto& in : reversed.inputs) {
    inputs.push_back(in.values);
    input_axes.push_back(in.axis);
    input_backwards.push_back(in.backwards);
  }
  for (const auto& out : reversed.outputs) {
    results.push_back(out.slice);
    output_axes.push_back(out.axis);
    output_backwards.push_back(out.backwards);
  }
  Node* made = add_node(g, "Scan", inputs, reversed.names);
  made->set_attr("num_scan_inputs", static_cast<int64_t>(reversed.inputs.size()));
  made->set_attr("scan_input_axes", input_axes);
  made->set_attr("scan_input_directions", input_backwards);
  if (!output_axes.empty()) {
    made->set_attr("scan_output_axes", output_axes);
    made->set_attr("scan_output_directions", output_backwards);
  }
  Graph* graph = g.b().graph().add_subgraph(made, "body");
  std::map<const Value*, Value*> own;
  const auto add_input = [&](const Value* slice) {
    own[slice] = graph->add_input(graph->unique_name(slice->name()), slice->type());
  };
  for (const Value* slice : reversed.state_slices) add_input(slice);
  for (const auto& in : reversed.inputs) add_input(in.slice);
  body->write(results, own, graph);
  name_apart(graph, made->output(0)->name() + "/");
  infer_types(made);
  return made;
}

Gradients scan_gradient(Grad& g) {
  const Scan scan(g.node());
  const size_t states = static_cast<size_t>(scan.states), inputs = scan.input_axes.size();
  Closed body(*scan.body, g.outer());
  const std::vector<size_t> carried = find_carried(g, states, &body);
  Reversed reversed;
  Values outputs, given, wanted;
  const auto slice_input = [&](const std::string& name, const TensorType& type) {
    return body.graph().add_input(body.graph().unique_name(name), type);
  };
  const auto name_of = [&](const Value* input) { return concat("grad/", input->name()); };
  for (const size_t i : carried) {
    const int at = static_cast<int>(i);
    outputs.push_back(body.outputs()[i]);
    given.push_back(slice_input("grad/state", body.inputs()[i]->type()));
    wanted.push_back(body.inputs()[i]);
    reversed.states.push_back((g.dy(at) ? g.dy(at) : zeros_like(g.x(at))).value());
    reversed.state_slices.push_back(given.back());
    reversed.names.push_back(name_of(g.node().input(at)));
  }
  for (size_t j = 0; j < scan.output_axes.size(); ++j) {
    const int at = static_cast<int>(states + j);
    if (at >= g.num_outputs() || !g.node().output(at) || !g.dy(at)) continue;
    outputs.push_back(body.outputs()[static_cast<size_t>(at)]);
    given.push_back(slice_input("grad/output", outputs.back()->type()));
    reversed.inputs.push_back({g.dy(at).value(), given.back(), scan.output_axes[j], 1 - scan.output_backwards[j]});
  }
  std::vector<size_t> scanned;
  for (size_t j = 0; j < inputs; ++j) {
    if (!g.needs(static_cast<int>(states + j))) continue;
    scanned.push_back(j);
    wanted.push_back(body.inputs()[states + j]);
  }
  for (const Value* v : g.outer()) wanted.push_back(body.of(v));

  const Values found = add_gradients(&body.graph(), outputs, given, wanted);
  Builder b(&body.graph());
  for (size_t k = 0; k < carried.size(); ++k)
    reversed.next_states.push_back(found[k] ? found[k] : zeros_like(b.var(wanted[k])).value());
  std::vector<const Value*> summed;
  for (size_t k = 0; k < g.outer().size(); ++k) {
    Value* part = found[carried.size() + scanned.size() + k];
    if (!part) continue;
    const Var outer = g.b().var(const_cast<Value*>(g.outer()[k]));
    summed.push_back(outer.value());
    Value* sum = slice_input("sum", outer.type());
    reversed.states.push_back(zeros_like(outer).value());
    reversed.state_slices.push_back(sum);
    reversed.next_states.push_back((b.var(sum) + b.var(part)).value());
    reversed.names.push_back(name_of(outer.value()));
  }
  std::vector<size_t> moved;  // inputs that get a gradient
  for (size_t k = 0; k < scanned.size(); ++k) {
    Value* slice = found[carried.size() + k];
    const size_t j = scanned[k];
    if (!slice) continue;
    moved.push_back(j);
    reversed.outputs.push_back({nullptr, slice, scan.input_axes[j], 1 - scan.input_backwards[j]});
    reversed.names.push_back(name_of(g.node().input(static_cast<int>(states + j))));
  }
  if (reversed.names.empty()) return {};
  // What a step computes again from.
  Values results = reversed.next_states;
  for (const auto& out : reversed.outputs) results.push_back(out.slice);
  for (size_t j = 0; j < inputs; ++j) {
    Value* slice = body.inputs()[states + j];
    if (!body.reads(results, slice) && !(j == 0 && reversed.inputs.empty())) continue;  // one counts the steps
    Value* values = g.node().input(static_cast<int>(states + j));
    reversed.inputs.push_back({values, slice, scan.input_axes[j], 1 - scan.input_backwards[j]});
  }
  std::vector<size_t> read;
  for (size_t i = 0; i < states; ++i) {
    if (body.reads(results, body.inputs()[i])) read.push_back(i);
  }
  const Values listed = list_states(g, scan, read);
  for (size_t k = 0; k < read.size(); ++k) reversed.inputs.push_back({listed[k], body.inputs()[read[k]], 0, 1});

  const Node* made = write(g, reversed, &body);
  Gradients gradients(states + inputs);
  for (size_t k = 0; k < carried.size(); ++k) gradients[carried[k]] = g.b().var(made->output(static_cast<int>(k)));
  for (size_t k = 0; k < summed.size(); ++k)
    g.send(summed[k], g.b().var(made->output(static_cast<int>(carried.size() + k))));
  for (size_t k = 0; k < moved.size(); ++k)
    gradients[states + moved[k]] = g.b().var(made->output(static_cast<int>(reversed.next_states.size() + k)));
  return gradients;
}

}  // namespace

std::vector<Obstacle> obstacles_inside(const Node& node, const std::unordered_set<const Value*>& wanted) {
  std::vector<Obstacle> found;
  for (const auto& subgraph : node.subgraphs()) {
    std::vector<const Value*> outer;
    for (const Value* v : read_from_outside(*subgraph.graph)) {
      if (wanted.count(v)) outer.push_back(v);
    }
    Closed closed(*subgraph.graph, outer);
    Values outputs, inputs;
    for (Value* output : closed.outputs()) {
      if (is_float(output->dtype())) outputs.push_back(output);
    }
    for (const Value* v : outer) inputs.push_back(closed.of(v));
    for (Value* input : closed.inputs()) {
      if (is_float(input->dtype())) inputs.push_back(input);
    }
    if (outputs.empty()) continue;
    for (Obstacle obstacle : find_obstacles(outputs, inputs)) {
      obstacle.node = closed.origin(obstacle.node) ? closed.origin(obstacle.node) : &node;
      found.push_back(std::move(obstacle));
    }
  }
  return found;
}

std::vector<GradientRule> control_flow_rules() {
  return {
      {"If", if_gradient},
      {"Scan", scan_gradient},
  };
}

}  // namespace onnx_train
