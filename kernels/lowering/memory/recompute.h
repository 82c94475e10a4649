// Rematerialization under a memory budget: drops and recomputes values that wait long for their next reader. Runs on
// the thread that builds the plan.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Cost and gain of recomputation, estimated from the shapes of the graph. Scratch memory of kernels and in-place
// results are unknown at this point, so the plan's arena has a similar but different size.
struct Recomputation {
  size_t before = 0, after = 0;             // bytes alive at the peak step
  size_t nodes = 0;                         // nodes that run twice
  double flops = 0;                         // flops of the copied products and convolutions
  double bytes = 0;                         // bytes that the other copied nodes read and write
  std::map<std::string, size_t> operators;  // number of copies by operator
};

// Repeats until at most `budget` bytes are alive at every node or nothing helps: of the values that are alive across
// the peak step, selects the one whose recomputation costs least per byte freed, and copies the nodes that compute it
// before its next reader, starting from values that are still alive there (or worth keeping, or copied). Copies compute
// the same bits as the originals: nodes whose random numbers do not depend on their inputs alone are never copied.
// Deterministic.
//
// Must run after fusion, as values inside a fusion region free no memory. No later pass may merge equal nodes.
Recomputation recompute(Model& model, size_t budget);

}  // namespace onnx_train
