#include "onnx_passes/operators/multiply_adds.h"

#include <algorithm>
#include <map>

#include "onnx_passes/operators/einsum.h"

namespace onnx_train {
namespace {

double size_of_axis(const Value& value, int64_t axis) {
  return size_or_one((*value.type().dims)[static_cast<size_t>(axis)]);
}

// Whether the first `inputs` inputs and output 0 have a rank.
bool have_ranks(const Node& node, int inputs) {
  for (int i = 0; i < inputs; ++i) {
    if (!node.input(i) || !node.input(i)->has_rank()) return false;
  }
  return node.output() && node.output()->has_rank();
}

// `filter` is [M, C/group, k...] (for ConvTranspose [C, M/group, k...]): each element of the side with as many channels
// as the filter's first axis is multiplied by all other elements of the filter.
double of_filter(const Value& side, const Value& filter) {
  if (filter.rank() == 0) return 0;
  return elements_or_one(side) * elements_or_one(filter) / std::max(size_of_axis(filter, 0), 1.0);
}

}  // namespace

double size_or_one(const Dim& dim) { return dim.known() ? static_cast<double>(dim.value()) : 1; }

double elements_or_one(const Value& value) {
  double count = 1;
  for (const Dim& dim : *value.type().dims) count *= size_or_one(dim);
  return count;
}

double multiply_adds_of_matmul(const Node& n) {
  if (!have_ranks(n, 2)) return 0;
  const Value& a = *n.input(0);
  return a.rank() > 0 ? elements_or_one(*n.output()) * size_of_axis(a, a.rank() - 1) : 0;
}

double multiply_adds_of_gemm(const Node& n) {
  if (!have_ranks(n, 2) || n.input(0)->rank() != 2) return 0;
  return elements_or_one(*n.output()) * size_of_axis(*n.input(0), n.attr("transA", 0) ? 0 : 1);
}

double multiply_adds_of_transposed_matmul(const Node& n) {
  const std::vector<int64_t> perm = n.attr("perm_a", std::vector<int64_t>());
  if (!have_ranks(n, 2) || perm.empty()) return 0;
  return elements_or_one(*n.output()) * size_of_axis(*n.input(0), perm.back());
}

// The product of the sizes of all indices, counted once per operand after the first.
double multiply_adds_of_einsum(const Node& n) {
  if (!have_ranks(n, n.num_inputs())) return 0;
  const Einsum einsum = parse_einsum(n);
  std::map<char, double> sizes;
  for (size_t i = 0; i < einsum.inputs.size(); ++i) {
    for (size_t axis = 0; axis < einsum.inputs[i].size(); ++axis) {
      double& size = sizes[einsum.inputs[i][axis]];
      size = std::max(size, size_of_axis(*n.input(static_cast<int>(i)), static_cast<int64_t>(axis)));
    }
  }
  double product = n.num_inputs() - 1;
  for (const auto& [letter, size] : sizes) product *= size;
  return product;
}

// X [steps, batch, inputs], W [directions, gates * hidden, inputs], R [directions, gates * hidden, hidden].
double multiply_adds_of_recurrence(const Node& n) {
  if (!have_ranks(n, 3) || n.input(0)->rank() != 3) return 0;
  const double positions = size_of_axis(*n.input(0), 0) * size_of_axis(*n.input(0), 1);
  return positions * (elements_or_one(*n.input(1)) + elements_or_one(*n.input(2)));
}

double multiply_adds_of_conv(const Node& n) { return have_ranks(n, 2) ? of_filter(*n.output(), *n.input(1)) : 0; }

double multiply_adds_of_transposed_conv(const Node& n) {
  return have_ranks(n, 2) ? of_filter(*n.input(0), *n.input(1)) : 0;
}

double multiply_adds_of_weight_gradient(const Node& n) {
  return have_ranks(n, 2) ? of_filter(*n.input(1), *n.output()) : 0;
}

double no_multiply_adds(const Node&) { return 0; }

}  // namespace onnx_train
