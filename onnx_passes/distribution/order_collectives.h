// Collectives: nodes that all ranks run together. Functions on models that one caller owns; they throw nothing.
#pragma once

#include <cstdint>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Whether the node's result depends on what other ranks do at the same time.
bool is_collective(const Node& node);

// Of collectives between ranks that share out batches, where others are the stages of a pipeline.
inline constexpr const char* kMeshAxis = "mesh_axis";
inline constexpr const char* kDataAxis = "data";
// The attribute of AllReduce that is 1 where x is 0, all ranks are active, and any order of the terms will do.
inline constexpr const char* kAnyOrder = "any_order";

// Of a value whose sizes are known.
int64_t exchanged_bytes(const Value& value);

// Makes each collective read the result of the one before it: a plan may reorder nodes, and the collectives of all
// ranks must keep one order. Removes nodes whose results are not read.
void order_collectives(Model* flat);

}  // namespace onnx_train
