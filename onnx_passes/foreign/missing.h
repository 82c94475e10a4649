// What a user can do about an operator that nothing here implements. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Whether the node is a product of quantized operands, whose results are integers: MatMulInteger, QLinearConv, ...
bool computes_in_integers(const Node& node);

// The advice for an operator without a kernel or a gradient, by the kind of its operator: "this is a quantized model;
// take the float model that it was made from".
std::string replacement_advice(const Node& node);

// The options that make the condition of an If known: --dim for sizes that it depends on, --set for inputs.
std::string way_to_decide(const Node& branch);

// Why the rank of `value` is not known, and what to do: "it is lost at node 'f' (If): its condition depends on sizes:
// give them (--dim len=N)".
std::string unknown_rank_advice(const Value& value);

// "operator Thing of domain acme (node 'a')", or "operators Thing (2 nodes, the first is node 'a') and Other (node 'b')
// of domain acme, ...": each operator once, in order of appearance. `nodes` must not be empty.
std::string list_operators(const std::vector<const Node*>& nodes);

}  // namespace onnx_train
