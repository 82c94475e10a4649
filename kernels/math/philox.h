// Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy
// as 1, 2, 3; SC 2011): a pure function of a key and a counter, so the number of any element can be computed by any
// thread. The bodies of the random functions (onnx_passes/functions/random.cc) compute the same bits with ONNX
// operators.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace onnx_train {

struct Words4 {
  uint32_t w0, w1, w2, w3;
};

ONNX_TRAIN_HD inline Words4 philox4x32_10(Words4 counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.w0, product1 = uint64_t{0xCD9E8D57u} * counter.w2;
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter.w1 ^ key0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter.w3 ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// The contents of state/random_key: {seed, counter}; the counter changes every step.
struct RandomKey {
  uint64_t seed, counter;
};

// The words of elements 4 block ... 4 block + 3 of a stream.
ONNX_TRAIN_HD inline Words4 random_words(RandomKey key, uint32_t stream, uint64_t block) {
  const Words4 counter = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream,
                          static_cast<uint32_t>(key.counter)};
  return philox4x32_10(counter, static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32));
}

// Uniform in [0, 1), a multiple of 2^-24.
ONNX_TRAIN_HD inline float uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace onnx_train
