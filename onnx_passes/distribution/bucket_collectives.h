// Small collectives of one kind as one, so that a training of many small tensors does not wait for the network once for
// each (the buckets of PyTorch's DistributedDataParallel: Li et al. 2020, arXiv:2006.15704). A pass on a flattened
// entry point that one caller owns, before overlap_collectives; it throws nothing.
#pragma once

#include <cstdint>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// A tensor of more bytes is exchanged alone: then its copies into a bucket and out of it cost more than a message.
inline constexpr int64_t kBytesInBucket = int64_t{1} << 20;
// What an exchange takes together, at most, and an eighth of all where that is less, so that most of them travel while
// others are computed; but where all are few, they travel at once: an exchange takes 0.1 ms, and 1 ms where all cores
// compute. The terms stay in memory until the last of them is known.
inline constexpr int64_t kBytesOfBucket = int64_t{25} << 20, kFewBytes = int64_t{4} << 20;

// Sums, gathers and broadcasts along this axis of a mesh, of tensors whose sizes are known: where nothing reads one
// result before the last of them is reached, their inputs are joined there, and the result is split. It changes no bit.
// All ranks have to have the same nodes: the order of collectives follows.
void bucket_collectives(Model* flat, const std::string& mesh_axis = "", int64_t bytes_of_bucket = kBytesOfBucket);

}  // namespace onnx_train
