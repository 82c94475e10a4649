// Where random numbers are drawn from a key: in whole graphs, and in the bodies of control flow, where each step of a
// Scan draws other ones. One caller owns the graph.
#pragma once

#include <functional>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Replaces the nodes for which `draws` is true in the subgraphs of the node, Dropouts and ONNX's random operators, by
// ones that draw from `key`, an outer value; their streams are numbered from `*stream` on. A Scan carries the key and
// changes it from step to step: another node takes its place. Returns the node that stands there now. Throws Error for
// such a node in other control flow than Scan and If.
Node* draw_in_subgraphs(Node* node, Value* key, const std::function<bool(const Node&)>& draws, int* stream);

// Whether a subgraph of the node has such a node.
bool draws_inside(const Node& node, const std::function<bool(const Node&)>& draws);

// Replaces ONNX's random operators in the graph and its subgraphs by functions of a key, for which it calls `key` if
// there are any; their streams are numbered from `stream` on. Throws Error as draw_in_subgraphs.
bool draw_random_numbers(Graph* graph, const std::function<Value*()>& key, int stream);
// Whether the graph or a subgraph has one.
bool has_random_operators(const Graph& graph);

// The input, uint64[2], that a plain model has for the key: its seed, and the number of the run.
inline constexpr const char* kRandomKeyInput = "onnx_train/random_key";
// Draws what its random operators draw from that input, which is added if there are any.
bool draw_from_input(Graph* graph);

}  // namespace onnx_train
