// How the space of a fused program is cut into blocks.
#pragma once

#include <vector>

#include "kernels/cpu/broadcast.h"
#include "kernels/lowering/island.h"

namespace onnx_train::cpu {

struct Geometry {
  int64_t size = 1;   // of the space
  int64_t run = 1;    // blocks do not cross its multiples
  int64_t unit = 1;   // blocks are multiples of this
  int64_t lines = 0;  // in a block; 0 in a space without

  // `patterns` are those of the inputs that elements of the space read, and of closing reductions.
  Geometry(const Space& space, const std::vector<Broadcast>& patterns);

  // Every block begins at a multiple of `length`.
  bool aligns(int64_t length) const { return unit % length == 0 && (run == size || run % unit == 0); }
  // A block lies in one run of the pattern: the operand is read in place.
  bool reads_in_place(const Broadcast& pattern) const { return pattern.run_length() % run == 0; }

  // Elements of a block when each takes so many bytes of cache.
  int64_t block(size_t bytes_per_element) const;
};

}  // namespace onnx_train::cpu
