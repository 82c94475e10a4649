// float32 convolutions of channels-last images, and their gradients, on AMX (amx_product.h explains how AMX multiplies
// float32 numbers). Each position of an image is a matrix with one row per image of the batch and one column per
// channel, so that
//
//   y[p]  = Σ over taps k that read a position q of x for p:  x[q] w[k],
//   dx[q] = Σ over taps k with which a position p reads q:    dy[p] w[k]ᵀ,
//   dw[k] = Σ over positions p that read q with tap k:        dy[p]ᵀ x[q].
//
// These are sums over pairs of packed panels. ConvIndexMap lists the pairs when the kernel is prepared and leaves out
// padding.
//
// Threads share the output. Each thread packs its inputs into its own L2 cache, position after position, and keeps only
// the panels that later windows read: a few rows of the images. No sum depends on the number of threads.
//
// A ConvIndexMap belongs to one prepared kernel and is not changed after construction, so any thread may read it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace onnx_train::cpu::amx {

// Output positions [begin, end), and the range [first, last) of ConvIndexMap::used that they and later chunks read.
struct Chunk {
  int64_t begin, end;
  int64_t first, last;
};

// Maps each output position and tap to the input position that it reads. Panels of input positions are stored in
// `slots` slots, which are reused cyclically.
struct ConvIndexMap {
  std::vector<int32_t> used;        // input positions that any tap reads, ascending
  std::vector<int32_t> used_index;  // [output positions][taps]: index into `used`, -1 in the padding
  std::vector<Chunk> chunks;
  int64_t slots = 1;

  // find(i, tap) returns the input position that output position i reads at `tap`, or -1.
  template <typename Find>
  ConvIndexMap(int64_t elements, int64_t others, int64_t taps, int64_t chunk_size, const Find& find) {
    std::vector<int32_t> index_of(static_cast<size_t>(others), -1);
    for (int64_t i = 0; i < elements * taps; ++i) {
      used_index.push_back(static_cast<int32_t>(find(i / taps, i % taps)));
      if (used_index.back() >= 0) index_of[static_cast<size_t>(used_index.back())] = 0;
    }
    for (size_t other = 0; other < index_of.size(); ++other) {
      if (index_of[other] < 0) continue;
      index_of[other] = static_cast<int32_t>(used.size());
      used.push_back(static_cast<int32_t>(other));
    }
    for (int32_t& index : used_index) index = index < 0 ? -1 : index_of[static_cast<size_t>(index)];
    find_chunks(elements, taps, chunk_size);
  }

  int32_t slot(int64_t index) const { return static_cast<int32_t>(index % slots); }
  int64_t element(int64_t index) const { return used[static_cast<size_t>(index)]; }

 private:
  void find_chunks(int64_t elements, int64_t taps, int64_t chunk_size) {
    int64_t last = 0;
    for (int64_t begin = 0; begin < elements; begin += chunk_size) {
      Chunk chunk{begin, std::min(elements, begin + chunk_size), static_cast<int64_t>(used.size()), 0};
      for (int64_t i = chunk.begin * taps; i < chunk.end * taps; ++i) {
        const int64_t index = used_index[static_cast<size_t>(i)];
        if (index >= 0) chunk.first = std::min(chunk.first, index);
        last = std::max(last, index + 1);
      }
      chunk.last = last;
      chunks.push_back(chunk);
    }
    int64_t first = static_cast<int64_t>(used.size());
    for (size_t i = chunks.size(); i-- > 0;) {
      first = std::min(first, chunks[i].first);
      chunks[i].first = first;
      slots = std::max(slots, chunks[i].last - first);
    }
  }
};

}  // namespace onnx_train::cpu::amx
