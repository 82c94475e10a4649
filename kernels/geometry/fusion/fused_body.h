// A fusion region that a kernel computes: the body of a call of `Fused`, with the types of the call's inputs, or a
// single element-wise node; and the extent of each value in the region's space. The caller owns the body, which refers
// to the node; read_body and body_of_node run while the kernel is prepared, on any thread.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/geometry/fusion/fusion_region.h"
#include "kernels/geometry/indexing/broadcast.h"
#include "kernels/kernel.h"

namespace onnx_train {

// The source of a value: `root`, an input or a computed value, broadcast by `pattern` to the elements of the reader;
// without a pattern the elements are read in order.
struct FusedSource {
  const Value* root;
  std::optional<Broadcast> pattern;
};

struct FusedBody {
  std::unique_ptr<Graph> graph;    // of a call: Constant nodes and the nodes of the region
  std::vector<const Node*> nodes;  // the nodes of the region, in order
  std::vector<Value*> inputs, outputs;
  Space space;
  std::unordered_map<const Value*, ValueExtent> value_extent;  // outputs of the region's nodes
  std::unordered_map<const Value*, FusedSource> aliases;       // outputs of is_alias nodes

  bool computes(const Value* value) const { return value_extent.count(value) > 0; }
  ValueExtent extent(const Value* value) const { return value_extent.at(value); }
  std::optional<ValueExtent> value_extent_of(const Value* value) const {
    const auto found = value_extent.find(value);
    return found == value_extent.end() ? std::nullopt : std::optional(found->second);
  }
  // Whether the node's output is only a view of its input: its readers read the source.
  bool is_alias(const Node& node) const;
  // The source of `value` for a reader with the shape of `reader`.
  FusedSource source(const Value* value, const Value& reader) const;
};

// Returns nothing if the call has no function, or if its nodes, all of which `can_fuse` must accept, form no fusion
// region.
std::optional<FusedBody> read_body(const NodeSpec& spec, bool (*can_fuse)(const Node&));

// Returns the region that consists of an element-wise node, whose output must not be empty.
FusedBody body_of_node(const NodeSpec& spec);

// Broadcasts the result of a reduction to the shape of its input: maps each element to its result.
Broadcast kept_axes(const Node& reduction);

}  // namespace onnx_train
