// How the iteration space of a fused program is cut into blocks. Immutable; any thread may read it.
#pragma once

#include <vector>

#include "kernels/geometry/fusion/fusion_region.h"
#include "kernels/geometry/indexing/broadcast.h"

namespace onnx_train::cpu {

struct Geometry {
  int64_t size = 1;  // elements of the space
  int64_t run = 1;   // no block crosses a multiple of it
  int64_t unit = 1;  // the size of a block is a multiple of it
  int64_t rows = 0;  // rows in a block; 0 in a space without rows

  // `patterns` are the broadcasts of the inputs that the space reads, and of terminal reductions.
  Geometry(const Space& space, const std::vector<Broadcast>& patterns);

  // Whether every block starts at a multiple of `length`.
  bool aligns(int64_t length) const { return unit % length == 0 && (run == size || run % unit == 0); }
  // Whether a block is inside one run of the pattern, so that the operand can be read in place.
  bool reads_in_place(const Broadcast& pattern) const { return pattern.run_length() % run == 0; }

  // Elements in a block, given how many bytes of cache an element needs in total.
  int64_t block(size_t bytes_per_element) const;
};

}  // namespace onnx_train::cpu
