// A plan within a budget of memory: values that wait long for their next reader are dropped and computed again.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// What recomputing costs and brings, by the shapes of the graph alone: kernels' scratch memory and what they write in
// place are not known yet, so the arena of the plan will be another number, though one that goes with it.
struct Recomputation {
  size_t before = 0, after = 0;             // bytes of values alive at the fullest node
  size_t nodes = 0;                         // that run a second time
  double flops = 0;                         // of their products and convolutions
  double bytes = 0;                         // that the others of them read and write
  std::map<std::string, size_t> operators;  // how many of each
};

// Until no more than `budget` bytes of values are alive at any node, or nothing more can be done: takes the fullest
// node, and of the values that wait across it the one whose recomputation costs least for the bytes that it frees. The
// nodes that compute it are copied in front of its next reader, back to values that are still there by then (or that
// are worth keeping, or have a copy already). Copies compute what the originals did, bit for bit: nodes that draw
// random numbers from anywhere but their inputs are never copied. Deterministic.
//
// Belongs behind the passes that fuse: what lives inside an island is no buffer, and counting it would promise bytes
// that are not there. No pass behind it may merge equal nodes.
Recomputation recompute(Model& model, size_t budget);

}  // namespace onnx_train
