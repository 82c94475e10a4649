#include "kernels/cost.h"

#include <algorithm>
#include <cctype>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

using Flops = std::map<DType, double>;

double size_or_one(const Dim& dim) { return dim.known() ? static_cast<double>(dim.value()) : 1; }

double size_of_axis(const Value& value, int64_t axis) {
  return size_or_one((*value.type().dims)[static_cast<size_t>(axis)]);
}

double elements(const Value& value) {
  double count = 1;
  for (const Dim& dim : *value.type().dims) count *= size_or_one(dim);
  return count;
}

bool have_ranks(const Node& node, int inputs) {
  for (int i = 0; i < inputs; ++i) {
    if (!node.input(i) || !node.input(i)->has_rank()) return false;
  }
  return node.output() && node.output()->has_rank();
}

// ---- Operators. Each function counts the multiply-adds of a node whose first inputs and first output have a rank.

double matmul(const Node& n) {
  const Value& a = *n.input(0);
  return a.rank() > 0 ? elements(*n.output()) * size_of_axis(a, a.rank() - 1) : 0;
}

double gemm(const Node& n) {
  return n.input(0)->rank() == 2 ? elements(*n.output()) * size_of_axis(*n.input(0), n.attr("transA", 0) ? 0 : 1) : 0;
}

double transposed_matmul(const Node& n) {
  const std::vector<int64_t> perm = n.attr("perm_a", std::vector<int64_t>());
  return perm.empty() ? 0 : elements(*n.output()) * size_of_axis(*n.input(0), perm.back());
}

// `filter` is [M, C/group, k...] (for ConvTranspose [C, M/group, k...]): each element of the side with as many channels
// as the filter's first axis is multiplied by all other elements of the filter.
double convolution(const Value& side, const Value& filter) {
  return filter.rank() > 0 ? elements(side) * elements(filter) / std::max(size_of_axis(filter, 0), 1.0) : 0;
}

// X [steps, batch, inputs], W [directions, gates * hidden, inputs], R [directions, gates * hidden, hidden].
double recurrent(const Node& n) {
  if (n.input(0)->rank() != 3) return 0;
  const double positions = size_of_axis(*n.input(0), 0) * size_of_axis(*n.input(0), 1);
  return positions * (elements(*n.input(1)) + elements(*n.input(2)));
}

// The product of the sizes of all indices (an ellipsis stands for the remaining axes), counted once per operand after
// the first.
double einsum(const Node& n) {
  std::map<std::string, double> sizes;
  const std::string equation = n.attr("equation", "");
  const std::string terms = equation.substr(0, equation.find("->")) + ",";
  int operand = 0;
  std::string term;
  for (const char c : terms) {
    if (c != ',') {
      if (!std::isspace(static_cast<unsigned char>(c))) term += c;
      continue;
    }
    const Value* value = n.input(operand++);
    if (!value || !value->has_rank()) return 0;
    const int64_t rank = value->rank();
    const auto dots = term.find("...");
    const auto letters = static_cast<int64_t>(dots == std::string::npos ? term.size() : term.size() - 3);
    int64_t axis = 0;
    for (size_t i = 0; i < term.size() && axis < rank; ++i) {
      if (i == dots) {
        for (int64_t k = 0; k < rank - letters; ++k, ++axis) {
          double& size = sizes["..." + std::to_string(rank - letters - k)];
          size = std::max(size, size_of_axis(*value, axis));
        }
        i += 2;
      } else {
        double& size = sizes[std::string(1, term[i])];
        size = std::max(size, size_of_axis(*value, axis++));
      }
    }
    term.clear();
  }
  double product = operand - 1;
  for (const auto& [letter, size] : sizes) product *= size;
  return product;
}

// Operators of ONNX and of our domain. Bodies convert narrow operands to float32; kernels do not.
struct ProductRow {
  const char* op;
  int inputs;  // leading inputs that must have a rank
  double (*multiply_adds)(const Node&);
};

const ProductRow kProducts[] = {
    {"MatMul", 2, matmul},
    {"Gemm", 2, gemm},
    {"Einsum", 1, einsum},
    {"TransposedMatMul", 2, transposed_matmul},
    {"Conv", 2, [](const Node& n) { return convolution(*n.output(), *n.input(1)); }},
    {"ConvTranspose", 2, [](const Node& n) { return convolution(*n.input(0), *n.input(1)); }},
    {"ConvGradInput", 2, [](const Node& n) { return convolution(*n.input(0), *n.input(1)); }},
    {"ConvGradWeight", 2, [](const Node& n) { return convolution(*n.input(1), *n.output()); }},
    {"LSTM", 3, recurrent},
    {"GRU", 3, recurrent},
    {"RNN", 3, recurrent},
    // Their bodies count the elements of a window with convolutions and multiply by nearly empty matrices; that is not
    // arithmetic of the model.
    {"AveragePoolGrad", 1, [](const Node&) { return 0.0; }},
    {"ResizeGrad", 1, [](const Node&) { return 0.0; }},
};

const ProductRow* find_product(std::string_view op, std::string_view domain) {
  for (const ProductRow& row : kProducts) {
    if (op == row.op && (domain.empty() || domain == kDomain)) return &row;
  }
  return nullptr;
}

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
    if (find_product(node.op_type(), node.domain())) return true;
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
  if (node.is("Scan")) {
    const Value* last = node.inputs().empty() ? nullptr : node.inputs().back();
    return last && last->has_rank() && last->rank() > 0 ? size_of_axis(*last, 0) : 1;
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
  if (const ProductRow* row = find_product(node.op(), node.domain())) {
    if (!have_ranks(node, row->inputs)) return {};
    const double multiply_adds = row->multiply_adds(node);
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
    if (node.is("If")) {
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
  return sized ? elements(*value) * static_cast<double>(size_of(dtype)) : 0;
}

double bytes_of(const Node& node) {
  if (is_view(node) || node.is("Shape") || node.is("Size")) return 0;
  // SparseSgd reads the gradient's rows and reads and writes as many rows of the table.
  if (node.is("SparseSgd", kDomain)) return 3 * bytes_of(node.input(1)) + bytes_of(node.input(2));
  double written = 0, read = 0;
  for (const Value* output : node.outputs()) written += bytes_of(output);
  for (const Value* input : node.inputs()) read += bytes_of(input);
  // These read at most as many elements of their first input as they write; our Gather writes 16 bits for each.
  const bool rounds = node.is("Gather", kDomain);
  const bool selects =
      rounds || node.is("Gather") || node.is("GatherElements") || node.is("GatherND") || node.is("Slice");
  if (selects) read -= std::max(bytes_of(node.input(0)) - written * (rounds ? 2 : 1), 0.0);
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
