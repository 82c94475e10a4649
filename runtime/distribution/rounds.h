// How ranks share out the batches of a step: a round is one batch for each rank, in their order. A step of `per_step`
// batches takes as many rounds as it needs; in the last one some ranks may have no batch of their own. Pipelines take
// several rounds at once, and a rank here is a pipeline. Plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace onnx_train {

struct Rounds {
  int64_t rank = 0, ranks = 1;
  int64_t per_step = 1;  // batches in a step, over all ranks
  int64_t at_once = 1;   // rounds

  // The samples in each batch of the rounds that begin with batch `batch` of a step, where `left` samples are left.
  std::vector<int64_t> sizes(int64_t batch, int64_t left, int64_t batch_size) const {
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < std::min(ranks * at_once, per_step - batch) && left > 0; ++i) {
      sizes.push_back(std::min(left, batch_size));
      left -= sizes.back();
    }
    return sizes;
  }
  // Of these, those that this rank runs, one a round; in a round without one of its own, the last one again.
  std::vector<size_t> own(const std::vector<int64_t>& sizes) const {
    std::vector<size_t> own;
    for (size_t first = 0; first < sizes.size(); first += static_cast<size_t>(ranks))
      own.push_back(std::min(first + static_cast<size_t>(rank), sizes.size() - 1));
    return own;
  }
};

}  // namespace onnx_train
