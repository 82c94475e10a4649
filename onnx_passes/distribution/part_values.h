// Values of a tensor-parallel group's graph: a rank's part of what all ranks have, and what all have of their parts.
// Functions on a graph that one caller owns; throw Error.
#pragma once

#include "onnx_passes/distribution/tensor_layout.h"
#include "onnx_passes/inference/builder.h"

namespace onnx_train {

// The ranks of a group, and this one.
struct PartOf {
  int64_t parts = 1, part = 0;
};

// This rank's elements of `whole`.
Var part_of(Var whole, const Cut& cut, const PartOf& rank);
// All elements, where each rank has its own ones of a tensor with this cut. Each gives the others its part.
Var gathered(Var own, const Cut& cut, const PartOf& rank);

// Indices into an axis of which each rank has one run, as they are into this rank's. A rank reads its first element in
// the place of another's; an index that is none of the whole axis is none of the part.
struct OwnIndices {
  Var indices, is_own;  // int64, bool
};
OwnIndices own_indices(Var indices, int64_t size, const PartOf& rank);

}  // namespace onnx_train
