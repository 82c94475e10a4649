// Weights that one rank alone keeps, for entry points that compute with them on every rank (ZeRO's stage 3: Rajbhandari
// et al. 2020, arXiv:1910.02054). A pass on a flattened entry point that one caller owns, before shard_states; it
// throws Error for a weight of unknown shape.
#pragma once

#include "onnx_passes/distribution/sharded_states.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Nodes between two reads of a weight that share what is received: a layer's forward pass reads it, and its backward
// pass some time later, when the memory has been given to other layers.
inline constexpr int kNodesOfALayer = 24;

// For each part of the graph that reads a weight of an owner, all ranks receive it by Broadcast, and nothing keeps it
// after the last read of that part. It is received where the weight before it is read: so two of them are in memory.
// `rank` is this one.
void gather_weights(Model* flat, const StateOwners& owners, int rank);

}  // namespace onnx_train
