#include "kernels/cuda/support/sort.h"

#include <cub/device/device_for.cuh>
#include <cub/device/device_radix_sort.cuh>

namespace onnx_train::cuda {
namespace {

// Sorts with the library's own memory; without `memory`, it stores the number of bytes that it needs in `bytes`.
void sort_pairs(void* memory, size_t& bytes, cub::DoubleBuffer<uint64_t>& keys, cub::DoubleBuffer<int64_t>& places,
                int64_t count, int bits, cudaStream_t stream) {
  check(cub::DeviceRadixSort::SortPairs(memory, bytes, keys, places, count, 0, bits, stream), "cub::DeviceRadixSort");
}

}  // namespace

Sort::Sort(int64_t count, int bits) : count_(count), bits_(bits) {
  cub::DoubleBuffer<uint64_t> keys;
  cub::DoubleBuffer<int64_t> places;
  sort_pairs(nullptr, library_bytes_, keys, places, count, bits, nullptr);
}

// The workspace holds spare keys, spare places, the positions, and the library's memory.
Sort::Result Sort::run(const Launch& launch, uint64_t* keys, void* workspace, int64_t* places) const {
  auto* const numbers = static_cast<int64_t*>(workspace);
  const cudaStream_t stream = stream_of(launch);
  if (!places) {
    places = numbers + 2 * count_;
    check(cub::DeviceFor::Bulk(
              count_, [places] __device__(int64_t i) { places[i] = i; }, stream),
          "cub::DeviceFor");
  }
  cub::DoubleBuffer<uint64_t> sorted_keys(keys, reinterpret_cast<uint64_t*>(numbers));
  cub::DoubleBuffer<int64_t> sorted_places(places, numbers + count_);
  size_t bytes = library_bytes_;
  sort_pairs(numbers + 3 * count_, bytes, sorted_keys, sorted_places, count_, bits_, stream);
  return {sorted_keys.Current(), sorted_places.Current()};
}

}  // namespace onnx_train::cuda
