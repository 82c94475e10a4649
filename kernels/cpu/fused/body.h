// The body of a call of `Fused`, with the types of the call's inputs, and the extent of each of its values in the space
// of the fusion region. The caller owns the Body; read_body runs while the kernel is prepared, on any thread.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/lowering/fusion_region.h"

namespace onnx_train::cpu {

struct Body {
  std::unique_ptr<Graph> graph;  // Constant nodes and the nodes of the region
  std::vector<Value*> inputs, outputs;
  Space space;
  std::unordered_map<const Value*, ValueExtent> value_extent;  // of the outputs of the region's nodes

  std::optional<ValueExtent> value_extent_of(const Value* value) const {
    const auto found = value_extent.find(value);
    return found == value_extent.end() ? std::nullopt : std::optional(found->second);
  }
};

// Returns nothing when the call has no function or when its nodes do not form a fusion region.
std::optional<Body> read_body(const NodeSpec& spec);

}  // namespace onnx_train::cpu
