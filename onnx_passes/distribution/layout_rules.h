// One rule for each family of operators: from how ranks have a node's inputs to how they have its outputs (GSPMD: Xu et
// al. 2021, arXiv:2105.04663). A rule knows nothing of training: those of the backward pass are the same. Pure
// functions; any thread. They throw Error for nodes that are not valid.
#pragma once

#include <optional>
#include <vector>

#include "onnx_passes/distribution/tensor_layout.h"
#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// How a node wants its inputs, and has its outputs then. Of absent ones there are entries, too.
struct NodeLayouts {
  std::vector<Layout> inputs, outputs;
  bool by_body = false;  // there is no rule, and the body of the function says it
};

// `given` has a layout for each input, of which some is not whole. What is given whole may be wanted as a part or as a
// term, which a rank makes of it alone. A node without a rule wants all inputs whole.
NodeLayouts layouts_of(const Node& node, const std::vector<Layout>& given, int64_t parts);

// Where the elements of a tensor of sizes `from` with this cut are in one of sizes `to` that has them in the same
// order; none where ranks would have no run of equal shares.
std::optional<Cut> cut_of_view(const Dims& from, const Cut& cut, const Dims& to, int64_t parts);

// Whether an element of the output is a function of the element at its place in input 0 alone, as where a weight is
// rounded.
bool keeps_places(const Node& node);

// The constant integers that the node reads there; none if it reads none, or others.
std::optional<std::vector<int64_t>> constant_ints(const Node& node, int input);

}  // namespace onnx_train
