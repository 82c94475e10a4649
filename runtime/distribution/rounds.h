// How ranks share out the batches of a step: a round is one batch for each rank, in their order. A step of `per_step`
// batches takes as many rounds as it needs; in the last one some ranks may have no batch of their own. With `whole`
// each rank runs all batches of a round: the micro-batches of a pipeline. Plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace onnx_train {

struct Rounds {
  int64_t rank = 0, ranks = 1;  // with `whole`, the batches in a round
  int64_t per_step = 1;  // batches in a step, over all ranks
  bool whole = false;

  // The samples in each batch of the round that begins with batch `batch` of a step, where `left` samples are left.
  std::vector<int64_t> sizes(int64_t batch, int64_t left, int64_t batch_size) const {
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < std::min(ranks, per_step - batch) && left > 0; ++i) {
      sizes.push_back(std::min(left, batch_size));
      left -= sizes.back();
    }
    return sizes;
  }
  // The batch of a round that this rank runs; without one of its own, the last one again.
  size_t own(const std::vector<int64_t>& sizes) const { return std::min(static_cast<size_t>(rank), sizes.size() - 1); }
};

}  // namespace onnx_train
