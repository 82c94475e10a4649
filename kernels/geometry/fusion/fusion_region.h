// The geometry of a fusion region, a group of element-wise nodes that can be computed together, block by block.
//
// A region has one iteration space of `size` elements, which are the elements of its full values in order. If the
// region contains a reduction over the innermost axes whose result is used inside, the space is divided into rows of
// `row_size` elements. The extent of a value in the space is
//
//   full      one number per element
//   row       one number per row: a reduction of rows, or a value computed from one
//   terminal  the result of any other reduction; it is complete only after the last element, so no node of the region
//             may read it
//
// Values from outside the region need no extent: they are broadcast to their readers.
//
// The pass that forms regions and the kernels that run them call the same function, which gives the same answers for
// the same sequence of nodes. Types and shapes must be known. Pure functions; any thread.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

enum class ValueExtent { kFull, kRow, kTerminal };

struct Space {
  int64_t size = 0;      // 0: no node is in the region yet
  int64_t row_size = 0;  // 0: no rows
};

// Returns the extent of a value computed in the region; nothing for values from outside.
using ValueExtentOf = std::function<std::optional<ValueExtent>(const Value*)>;

// Returns the extent of the node's output if the node fits into the region, and extends `space` as needed.
std::optional<ValueExtent> fit(const Node& node, const ValueExtentOf& value_extent_of, Space* space);

// Returns the common space of two regions, or nothing if they cannot be merged.
std::optional<Space> merge(const Space& a, const Space& b);

// Number of leading inputs that are operands; the others are shapes, axes and examples of a type.
int num_operands(const Node& node);
// Requires a known shape.
inline int64_t num_elements_of(const Value& value) { return num_elements(value.type().shape()); }

}  // namespace onnx_train
