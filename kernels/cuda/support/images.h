// Positions in batches of images, for kernels. Plain values, made by the host.
#pragma once

#include "kernels/cuda/support/indexing.h"

namespace onnx_train::cuda {

// An element of an image: its image, its channel, and its position along the three axes.
struct PlacedElement {
  int64_t image, channel;
  int64_t z, y, x;
};

// The axes of a tensor [images, channels, depth, height, width], all above 0.
struct ImageIndexing {
  Divider channels, depth, height, width;

  __device__ PlacedElement element(int64_t i) const {
    PlacedElement found;
    i = split(width, i, &found.x);
    i = split(height, i, &found.y);
    i = split(depth, i, &found.z);
    found.image = split(channels, i, &found.channel);
    return found;
  }

 private:
  // Returns the quotient; the remainder goes to `rest`.
  __device__ static int64_t split(const Divider& divider, int64_t i, int64_t* rest) {
    const int64_t quotient = divider.quotient(i);
    *rest = i - quotient * divider.divisor();
    return quotient;
  }
};

}  // namespace onnx_train::cuda
