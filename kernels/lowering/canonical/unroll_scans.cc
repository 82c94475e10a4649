#include <algorithm>
#include <unordered_map>

#include "kernels/lowering/canonical/sequences_first.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/error.h"
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

// Plans with more nodes than this take minutes and gigabytes to build.
constexpr int64_t kMostNodes = 200'000;

// Each step needs the nodes of the body, two that slice each scanned input, and one for each scanned output.
void expect_few_nodes(const Scan& scan) {
  const auto per_step = static_cast<int64_t>(scan.body->num_nodes()) + 2 * scan.inputs + scan.outputs;
  if (scan.steps() <= kMostNodes / per_step) return;
  fail(scan.node->label(), ": ", scan.steps(), " steps of ", per_step, " nodes are more than the ", kMostNodes,
       " nodes that a Scan may become; make the sequence shorter, or export an LSTM, GRU or RNN, which has a kernel");
}

// Zero steps have nothing to concatenate: outputs would have to be empty tensors of the body's shapes.
bool can_unroll(const Node& node) {
  if (!node.is("Scan") || node.subgraphs().empty()) return false;
  for (const Node* n = node.subgraphs()[0].graph->first(); n; n = n->next()) {
    if (!n->subgraphs().empty()) return false;
  }
  check_shapes(node);  // inlining a body may have introduced the Scan
  return Scan(const_cast<Node*>(&node)).steps() > 0;
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
      for (size_t i = 0; i < scanned.size(); ++i) {
        scanned[i].push_back(unsqueeze(b_.var(results[static_cast<size_t>(scan_.states) + i]), {scan_.output_axes[i]}));
      }
    }
    for (int i = 0; i < scan_.node->num_outputs(); ++i) {
      Value* output = scan_.node->output(i);
      if (output) graph_.replace(output, i < scan_.states ? states[static_cast<size_t>(i)] : joined(i, scanned));
    }
    graph_.remove(scan_.node);
  }

 private:
  std::vector<Value*> run_step(int64_t step, int64_t steps, const std::vector<Value*>& states) {
    values_ = constants_;
    for (int i = 0; i < scan_.states; ++i)
      values_[scan_.body->inputs()[static_cast<size_t>(i)]] = states[static_cast<size_t>(i)];
    for (int i = 0; i < scan_.inputs; ++i) {
      const auto at = static_cast<size_t>(i);
      const Var values = b_.var(scan_.node->input(scan_.states + i));
      const int64_t index = scan_.input_backwards[at] ? steps - 1 - step : step;
      const int64_t axis = normalize_axis(scan_.input_axes[at], values.rank());
      const Var now = squeeze(slice(values, index, index + 1, axis), {axis});
      values_[scan_.body->inputs()[static_cast<size_t>(scan_.states) + at]] = now.value();
    }
    for (const Node* node = scan_.body->first(); node; node = node->next()) copy(*node);
    std::vector<Value*> results;
    for (const Value* output : scan_.body->outputs()) results.push_back(here(output));
    return results;
  }

  void copy(const Node& node) {
    std::vector<Value*> inputs;
    for (const Value* input : node.inputs()) inputs.push_back(input ? here(input) : nullptr);
    std::vector<std::string> names;
    for (const Value* output : node.outputs()) names.push_back(output ? graph_.unique_name(output->name()) : "");
    Node* copied = graph_.add_node(node, inputs, names, scan_.node);
    infer_types(copied);
    for (int i = 0; i < node.num_outputs(); ++i) values_[node.output(i)] = copied->output(i);
  }

  // Returns the replacement of a value of the body, or the value itself if it belongs to an outer graph.
  Value* here(const Value* value) const {
    const auto found = values_.find(value);
    return found == values_.end() ? const_cast<Value*>(value) : found->second;
  }

  Value* joined(int output, std::vector<std::vector<Var>>& scanned) {
    const auto i = static_cast<size_t>(output - scan_.states);
    if (scan_.output_backwards[i]) std::reverse(scanned[i].begin(), scanned[i].end());
    return concat(scanned[i], scan_.output_axes[i]).value();
  }

  const Scan scan_;
  Graph& graph_;
  Builder b_;
  std::unordered_map<const Value*, Value*> constants_, values_;
};

}  // namespace

bool unroll_scans(Model& model) {
  bool changed = false;
  for (Node* node : model.graph->nodes()) {
    if (!can_unroll(*node)) continue;
    expect_few_nodes(Scan(node));
    Unroller(Scan(node)).run();
    changed = true;
  }
  return changed;
}

}  // namespace onnx_train
