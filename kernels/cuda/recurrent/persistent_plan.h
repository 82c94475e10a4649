// How the persistent kernels of recurrent operators (persistent.h) divide their work into blocks of threads. Plain
// values and a pure function; any thread.
#pragma once

#include <cuda_runtime.h>

#include <optional>
#include <span>
#include <string>

#include "kernels/geometry/recurrent.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {

// The rows of R in a phase's product: `gates` gates of each unit, from `first_gate` on.
struct GateRows {
  int first_gate, gates;
};

inline constexpr int kLanes = 32;  // of a warp
inline constexpr int kWalkThreads = 256, kWalkWarps = kWalkThreads / kLanes;
inline constexpr int kWarpRows = 8, kWarpSamples = 4;  // of a warp's product: a sum for each lane
static_assert(kWarpRows * kWarpSamples == kLanes);
inline constexpr int kCounterStride = 32;  // integers between counters, which have a cache line each

// How a walk is divided. A task is a warp's part of a phase's product: kWarpRows rows and 128 kVectors elements of k.
struct PersistentPlan {
  int vectors = 0;          // kVectors: float4s of a row of R in a lane's registers
  int units = 0, tile = 0;  // hidden units and samples of a block; multiples of kWarpRows and kWarpSamples
  int unit_blocks = 0, tiles = 0;
  int pass = 0;       // samples whose operand is in shared memory at once
  int parts[2] = {};  // into which k is divided, per phase
  int tasks[2] = {};
  int row = 0;        // float4s of a sample's operand in shared memory
  int pitch = 0;      // floats between samples of the published operand
  bool pads = false;  // whether the operand ends within a float4

  int64_t blocks(const Extents& e) const { return e.directions * unit_blocks * tiles; }
  size_t shared_bytes() const {
    return static_cast<size_t>(pass) * static_cast<size_t>(row) * sizeof(float4) +
           static_cast<size_t>(pass / kWarpSamples * kWalkWarps * kLanes) * sizeof(float);
  }
  size_t counter_bytes(const Extents& e) const {
    return static_cast<size_t>(e.directions * tiles * kCounterStride) * sizeof(int);
  }
  size_t workspace(const Extents& e) const {
    return counter_bytes(e) + static_cast<size_t>(2 * e.directions * e.batch * pitch) * sizeof(float);
  }
  std::string name(const Extents& e) const {
    return concat("one kernel of ", blocks(e), " blocks, ", units, " units of ", tile, " samples each");
  }
};

// Returns the division with the least work of a block, or nothing if R does not fit the registers of all
// multiprocessors, with a block on each. `phases` has one or two elements.
std::optional<PersistentPlan> plan_persistent(const Extents& e, bool is_forward, std::span<const GateRows> phases,
                                              int64_t multiprocessors);

}  // namespace onnx_train::cuda
