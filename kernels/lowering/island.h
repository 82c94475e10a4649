// Which nodes can be computed together, block by block: the geometry of an island, a group of element-wise nodes.
//
// An island has one iteration space: `size` elements, which are every element of its full values in order. If it holds
// a reduction over the innermost axes whose result is used again, the space is cut into lines of `line` elements.
// What a value looks like in the space:
//
//   full     one number for each element
//   line     one number for each line: a reduction of lines, and what is computed from it
//   closed   the result of any other reduction; known only when all elements are, so nobody in the island reads it
//
// Values that only come in from outside need no place: they are broadcast to whoever reads them.
//
// The pass that makes islands and the kernels that run them ask the same function; given the nodes in the same order
// it gives the same answers. Types and shapes must be known. Plain functions; any thread.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

enum class Residence { kFull, kLine, kClosed };

struct Space {
  int64_t size = 0;  // 0: not known yet, nothing is in the island
  int64_t line = 0;  // 0: none
};

// Where values made in the island live; nothing for those from outside.
using ResidenceOf = std::function<std::optional<Residence>(const Value*)>;

// The residence of the node's outputs, if the node fits into the island; `space` is then extended as it needs.
std::optional<Residence> fit(const Node& node, const ResidenceOf& residence_of, Space* space);

// The space of both islands, if they can be one.
std::optional<Space> merge(const Space& a, const Space& b);

// The reductions over axes that an island may hold: ReduceSum, ReduceMean, ReduceMax, ...
bool is_reduction(const Node& node);
// Which axes of its input a reduction reduces; nothing when they are not constant.
std::optional<std::vector<bool>> reduced_axes(const Node& node);
// The inputs that are operands; the others are shapes and axes.
int num_operands(const Node& node);
// Of a value whose shape is known.
inline int64_t num_elements_of(const Value& value) { return num_elements(value.type().shape()); }

}  // namespace onnx_train
