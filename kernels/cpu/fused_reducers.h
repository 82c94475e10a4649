// Reductions inside of fused programs, with their types erased. Sums of floats are carried in float64, as in
// reductions.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "onnx_passes/ir/graph.h"

namespace onnx_train::cpu {

struct Reducer {
  size_t element_bytes, accumulator_bytes;
  void (*start)(int64_t n, void* accumulators);
  // accumulators[j] takes x[j].
  void (*add)(int64_t n, const void* x, void* accumulators);
  // One accumulator takes all n of x: in 32 lanes, whose sums are then added pairwise (reduce_line of reduce.h).
  void (*add_line)(int64_t n, const void* x, void* accumulator);
  // accumulators[j] takes more[j].
  void (*merge)(int64_t n, const void* more, void* accumulators);
  // `count` elements make one y.
  void (*finish)(int64_t n, const void* accumulators, int64_t count, void* y);
  // y is what one line of n elements comes to.
  void (*line)(int64_t n, const void* x, void* y);
};

// Null when there is none for the node's operator and type.
const Reducer* find_reducer(const Node& node);

}  // namespace onnx_train::cpu
