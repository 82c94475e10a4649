// Rematerialization under a memory budget: values with a long wait for their next reader are dropped and recomputed.
// Runs on the thread that builds the plan.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Cost and gain of recomputation, by the shapes of the graph alone. Scratch memory of kernels and in-place results are
// not known yet, so the plan's arena will have another size, though a similar one.
struct Recomputation {
  size_t before = 0, after = 0;             // bytes alive at the peak step
  size_t nodes = 0;                         // nodes that run a second time
  double flops = 0;                         // of the copied products and convolutions
  double bytes = 0;                         // that the other copied nodes read and write
  std::map<std::string, size_t> operators;  // number of copies by operator
};

// Repeats, until at most `budget` bytes are alive at every node or nothing helps: takes the peak step, and of the
// values that are alive across it the one whose recomputation costs least per byte freed. The nodes that compute it are
// copied before its next reader, back to values that are still alive there (or are worth keeping, or have a copy).
// Copies compute the same bits as the originals: nodes that draw random numbers from anything but their inputs are
// never copied. Deterministic.
//
// Values inside a fusion region need no buffer, and counting them would promise bytes that do not exist. No later pass
// may merge equal nodes.
Recomputation recompute(Model& model, size_t budget);

}  // namespace onnx_train
