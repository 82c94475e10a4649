// Convolutions of float32 images that lie channels last, and their gradients, on AMX (amx_product.h says how float32
// numbers are multiplied there). A matrix has a row for each image: the channels of one of its elements. So
//
//   y[p] = Σ over the taps k that lead from p to an element q of x: x[q] w[k],
//   dx[q] = Σ over the taps k that lead from an element p of y to q: dy[p] w[k]ᵀ,
//   dw[k] = Σ over the elements p of y that k leads from to an element q of x: dy[p]ᵀ x[q],
//
// which are sums over pairs of panels, found when the kernel is prepared: what is padding is left out.
//
// Threads share the output. Each splits what it reads for itself, into its L2 cache, element after element, and keeps
// the panels of those only that the next windows read: some rows of the images. No sum depends on the number of
// threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace onnx_train::cpu::amx {

// Neighbouring elements of one image, and the elements of the other that they and later ones meet: those in places
// [first, last) of Meetings::used.
struct Chunk {
  int64_t begin, end;
  int64_t first, last;
};

// Which elements of two images meet. Panels of the second one's elements are kept in slots, which they take in turn.
struct Meetings {
  std::vector<int32_t> used;    // elements of the second image that meet any, in order
  std::vector<int32_t> places;  // [elements of the first][taps]: in `used`, or -1
  std::vector<Chunk> chunks;
  int64_t slots = 1;

  // find(i, tap) is the element that i meets at a tap, or -1.
  template <typename Find>
  Meetings(int64_t elements, int64_t others, int64_t taps, int64_t chunk_size, const Find& find) {
    std::vector<int32_t> place_of(static_cast<size_t>(others), -1);
    for (int64_t i = 0; i < elements * taps; ++i) {
      places.push_back(static_cast<int32_t>(find(i / taps, i % taps)));
      if (places.back() >= 0) place_of[static_cast<size_t>(places.back())] = 0;
    }
    for (size_t other = 0; other < place_of.size(); ++other) {
      if (place_of[other] < 0) continue;
      place_of[other] = static_cast<int32_t>(used.size());
      used.push_back(static_cast<int32_t>(other));
    }
    for (int32_t& place : places) place = place < 0 ? -1 : place_of[static_cast<size_t>(place)];
    find_chunks(elements, taps, chunk_size);
  }

  int32_t slot(int64_t place) const { return static_cast<int32_t>(place % slots); }
  int64_t element(int64_t place) const { return used[static_cast<size_t>(place)]; }

 private:
  void find_chunks(int64_t elements, int64_t taps, int64_t chunk_size) {
    int64_t last = 0;
    for (int64_t begin = 0; begin < elements; begin += chunk_size) {
      Chunk chunk{begin, std::min(elements, begin + chunk_size), static_cast<int64_t>(used.size()), 0};
      for (int64_t i = chunk.begin * taps; i < chunk.end * taps; ++i) {
        const int64_t place = places[static_cast<size_t>(i)];
        if (place >= 0) chunk.first = std::min(chunk.first, place);
        last = std::max(last, place + 1);
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
