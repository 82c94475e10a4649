// The reductions of fused programs, with their types erased. Float sums are accumulated in float64, as in
// reductions.cc. The functions are pure; any thread may call them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "onnx_passes/ir/graph.h"

namespace onnx_train::cpu {

struct Reducer {
  size_t element_bytes, accumulator_bytes;
  void (*start)(int64_t n, void* accumulators);
  // accumulators[j] = add(accumulators[j], x[j])
  void (*add)(int64_t n, const void* x, void* accumulators);
  // Adds all n elements of x to one accumulator: in 32 lanes, which are then added pairwise (reduce_line of reduce.h).
  void (*add_row)(int64_t n, const void* x, void* accumulator);
  // accumulators[j] = merge(accumulators[j], more[j])
  void (*merge)(int64_t n, const void* more, void* accumulators);
  // y[j] = finish(accumulators[j]), where each accumulator has taken `count` elements.
  void (*finish)(int64_t n, const void* accumulators, int64_t count, void* y);
  // *y = the reduction of one row of n elements.
  void (*row)(int64_t n, const void* x, void* y);
};

// Null if there is no reducer for the node's operator and type.
const Reducer* find_reducer(const Node& node);

}  // namespace onnx_train::cpu
