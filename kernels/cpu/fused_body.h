// The body of a call of `Fused` with the types that the call's inputs give it, and the place of each of its values in
// the island's space.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/lowering/island.h"

namespace onnx_train::cpu {

struct Body {
  std::unique_ptr<Graph> graph;  // Constant nodes and those of the island
  std::vector<Value*> inputs, outputs;
  Space space;
  std::unordered_map<const Value*, Residence> residence;  // of what the island's nodes make

  std::optional<Residence> residence_of(const Value* value) const {
    const auto found = residence.find(value);
    return found == residence.end() ? std::nullopt : std::optional(found->second);
  }
};

// Nothing when the call has no function, or its nodes are not an island that can be fused.
std::optional<Body> read_body(const NodeSpec& spec);

}  // namespace onnx_train::cpu
