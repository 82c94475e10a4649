// Collectives at work while a rank computes: a sum of gradients is started where its terms are known, and awaited where
// its result is read, at the end, or where too much is under way. Passes on a flattened entry point that one caller
// owns, before order_collectives. They throw nothing.
#pragma once

#include <cstdint>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Moves each AllReduce, with what serves it alone, to where all else that it reads is computed. Before what makes the
// graphs of ranks differ: the order of collectives follows from it.
void sum_early(Model* flat);

// What is under way at one time, but for a single sum: at most this, an eighth of all sums where that is less, and 4
// MiB where that is less, too. The terms of the sums stay in memory until then. A network of 10 GB/s moves 64 MiB in
// some milliseconds.
inline constexpr int64_t kBytesUnderWay = int64_t{64} << 20;

// The attribute that names a collective whose output was renamed, so that all ranks have one name for it.
inline constexpr const char* kPlace = "place";

// Whether the collective's result goes to Await: it is started, and the plan goes on.
bool is_awaited(const Node& node);

// With `receives_weights`, after gather_weights, also what it receives.
void overlap_collectives(Model* flat, bool receives_weights = false, int64_t bytes_under_way = kBytesUnderWay);

}  // namespace onnx_train
