// Indices as kernels use them: non-negative int64, checked against the size of the axis. An index out of range becomes
// 0, so that later kernels of the node stay inside memory, and the first one is reported to the run's Fault. The
// functions enqueue work for a run; `scratch` has kIndexScratch elements of workspace, `results` one per index.
#pragma once

#include "kernels/cuda/support/launch.h"
#include "kernels/geometry/indexing/indexing.h"

namespace onnx_train::cuda {

inline constexpr int64_t kIndexScratch = 512;

// Bytes of workspace for `count` results and the scratch memory after them, rounded up so that other workspace can
// follow.
inline size_t index_workspace(int64_t count) {
  return align_up(static_cast<size_t>(count + kIndexScratch) * sizeof(int64_t));
}

// The indices in one input of a node, of type int32 or int64.
struct IndexInput {
  int input;
  DType type;
  int64_t count;
};

// Each index must be in [-size, size); those below 0 count from the end of the axis.
void read_indices(const Launch& launch, const IndexInput& indices, int64_t size, int64_t* results, int64_t* scratch);

// Reads indices of an axis whose size is stored in the device's memory.
void read_indices(const Launch& launch, const IndexInput& indices, const int64_t* size, int64_t* results,
                  int64_t* scratch);

// Each number must be in [low, high) and stays unchanged. Without `results` the numbers are only checked.
void read_numbers(const Launch& launch, const IndexInput& numbers, int64_t low, int64_t high, int64_t* results,
                  int64_t* scratch);

// Numbers that are stored as floats, each `stride` elements after the one before.
struct StoredNumbers {
  int input;
  int64_t count, stride;
};

// Each number, rounded toward zero, must be in [0, high).
template <typename T>
void read_stored_numbers(const Launch& launch, const StoredNumbers& numbers, int64_t high, int64_t* results,
                         int64_t* scratch);

// Computes the data's row number, counted in rows of places.row elements, that each tuple of input 1 selects.
void read_tuples(const Launch& launch, const TuplePlaces& places, int64_t* results, int64_t* scratch);

// Throws Error that names the node if its tuples cover more axes than read_tuples supports.
void check_tuples(const NodeSpec& spec, const TuplePlaces& places);

}  // namespace onnx_train::cuda
