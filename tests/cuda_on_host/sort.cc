// Sort on the host, in the place of kernels/cuda/support/sort.cu, which calls CUB.
#include "kernels/cuda/support/sort.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace onnx_train::cuda {

Sort::Sort(int64_t count, int bits) : count_(count), bits_(bits) {}

Sort::Result Sort::run(const Launch& launch, uint64_t* keys, void* workspace, int64_t* places) const {
  auto* const numbers = static_cast<int64_t*>(workspace);
  const Result sorted{reinterpret_cast<uint64_t*>(numbers), numbers + count_};
  const auto sort = [=, n = static_cast<size_t>(count_), bits = bits_] {
    const auto digits = [=](size_t i) { return bits < 64 ? keys[i] & ((uint64_t{1} << bits) - 1) : keys[i]; };
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return digits(a) < digits(b); });
    for (size_t i = 0; i < n; ++i) {
      sorted.keys[i] = keys[order[i]];
      sorted.places[i] = places ? places[order[i]] : static_cast<int64_t>(order[i]);
    }
    std::fill_n(keys, n, ~uint64_t{0});  // the library overwrites its operands
    if (places) std::fill_n(places, n, int64_t{-1});
  };
  check(gpu_host::enqueue_launch(stream_of(launch), nullptr, {}, {}, 0, sort), "sort");
  return sorted;
}

}  // namespace onnx_train::cuda
