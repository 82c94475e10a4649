#include "onnx_passes/io/hash.h"

#include <xxhash.h>

#include <cstdio>

namespace onnx_train {
namespace {

XXH3_state_t* as_state(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

Hash::Hash() : state_(XXH3_createState(), [](void* state) { XXH3_freeState(as_state(state)); }) {
  XXH3_128bits_reset(as_state(state_.get()));
}

void Hash::add_bytes(const void* bytes, size_t size) { XXH3_128bits_update(as_state(state_.get()), bytes, size); }

std::string Hash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(as_state(state_.get()));
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace onnx_train
