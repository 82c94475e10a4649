#include "kernels/cost.h"

#include <algorithm>

#include "kernels/subgraph_calls.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/multiply_adds.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

using Flops = std::map<DType, double>;

void add(const Flops& flops, double times, Flops* to) {
  for (const auto& [dtype, count] : flops) (*to)[dtype] += times * count;
}

Flops flops_of(const Node& node);

Flops flops_of(const Graph& graph) {
  Flops flops;
  for (const Node* node = graph.first(); node; node = node->next()) add(flops_of(*node), 1, &flops);
  return flops;
}

// ---- Functions

template <class Nodes>
bool any_product(const Nodes& nodes, const Context& context) {
  for (const onnx::NodeProto& node : nodes) {
    const Operator* row = find_operator(node.domain(), node.op_type());
    if (row && row->multiply_adds) return true;
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g() && any_product(attribute.g().node(), context)) return true;
    }
    const onnx::FunctionProto* callee = context.find_function(node.domain(), node.op_type(), node.overload());
    if (callee && any_product(callee->node(), context)) return true;
  }
  return false;
}

// The flops of the call's body, in a graph of its own with the shapes of this call.
Flops flops_of_body(const Node& call, const onnx::FunctionProto& function) {
  const Graph& around = call.graph();
  if (!any_product(function.node(), around.context())) return {};
  Graph graph(around.shared_context());
  std::vector<Value*> inputs;
  for (const Value* input : call.inputs()) {
    Value* copy = nullptr;
    if (input) {
      const std::string name = graph.unique_name("input");
      const Tensor constant = input->has_rank() && input->rank() <= 1 ? constant_of(input) : Tensor();
      copy = constant.empty() ? graph.add_input(name, input->type()) : graph.add_initializer(name, constant);
    }
    inputs.push_back(copy);
  }
  instantiate(function, call.shell(), &graph, nullptr, inputs, "body/");
  infer_types(&graph);
  return flops_of(graph);
}

// ---- Control flow

double trip_count(const Node& node) {
  const bool is_call = node.is(kCallScan, kDomain);
  if (is_call || node.is("Scan")) {
    const Value* last = node.inputs().empty() ? nullptr : node.inputs().back();
    if (is_call) last = node.input(static_cast<int>(node.attr("states", 0)));
    return last && last->has_rank() && last->rank() > 0 ? size_or_one(last->type().dims->front()) : 1;
  }
  const Tensor count = node.input(0) ? constant_of(node.input(0)) : Tensor();
  return count.empty() ? 1 : std::max(count.at(0), 0.0);
}

// Whether the node is a recurrence on bfloat16.
bool has_narrow_operands(const Node& node) {
  if (node.domain() != kDomain) return false;
  const std::vector<int>& narrow = operator_of(node).narrow_inputs;
  return std::any_of(narrow.begin(), narrow.end(), [&](int i) {
    return i < node.num_inputs() && node.input(i) && node.input(i)->dtype() == DType::kBFloat16;
  });
}

Flops flops_of(const Node& node) {
  if (const auto count = operator_of(node).multiply_adds) {
    const double multiply_adds = count(node);
    return multiply_adds > 0 ? Flops{{node.input(0)->dtype(), 2 * multiply_adds}} : Flops{};
  }
  if (const onnx::FunctionProto* function = function_of(node)) {
    const Flops flops = flops_of_body(node, *function);
    // The body of a node with narrow operands converts them to float32, the kernel does not.
    if (flops.empty() || !has_narrow_operands(node)) return flops;
    double sum = 0;
    for (const auto& [dtype, count] : flops) sum += count;
    return {{DType::kBFloat16, sum}};
  }
  Flops flops;
  for (const Node::Subgraph& subgraph : node.subgraphs()) {
    const Flops inside = flops_of(*subgraph.graph);
    if (node.is("If") || node.is(kCallIf, kDomain)) {
      for (const auto& [dtype, count] : inside) flops[dtype] = std::max(flops[dtype], count);
    } else {
      add(inside, trip_count(node), &flops);
    }
  }
  return flops;
}

// ---- Bytes

double bytes_of(const Value* value) {
  if (!value || !value->has_rank()) return 0;
  const DType dtype = value->dtype();
  const bool sized = is_float(dtype) || is_integer(dtype) || dtype == DType::kBool;
  return sized ? elements_or_one(*value) * static_cast<double>(size_of(dtype)) : 0;
}

double bytes_of(const Node& node) {
  const Traffic traffic = operator_of(node).traffic;
  if (is_view(node) || traffic == Traffic::kNone) return 0;
  if (traffic == Traffic::kGiven) {
    const int tensors = 1 + 2 * node.num_outputs();  // what is given, and what each update reads and writes
    return tensors * bytes_of(node.input(1)) + bytes_of(node.input(2));
  }
  double written = 0, read = 0;
  for (const Value* output : node.outputs()) written += bytes_of(output);
  for (const Value* input : node.inputs()) read += bytes_of(input);
  const double all = bytes_of(node.input(0));
  if (traffic == Traffic::kWritten && all > 0) {
    const Value* y = node.output();
    const double count = y && y->has_rank() ? elements_or_one(*y) : 0;
    read -= std::max(all - count * static_cast<double>(size_of(node.input(0)->dtype())), 0.0);
  }
  return read + written;
}

}  // namespace

double NodeCost::total_flops() const {
  double total = 0;
  for (const auto& [dtype, count] : flops) total += count;
  return total;
}

NodeCost cost_of(const Node& node) { return {flops_of(node), bytes_of(node)}; }

}  // namespace onnx_train
