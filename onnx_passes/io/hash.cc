#include "onnx_passes/io/hash.h"

#include <xxhash.h>

#include <cstdio>

namespace onnx_train {

Hash::Hash() : state_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {
  XXH3_128bits_reset(state_.get());
}

void Hash::add_bytes(const void* bytes, size_t size) { XXH3_128bits_update(state_.get(), bytes, size); }

std::string Hash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace onnx_train
