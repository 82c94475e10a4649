#include "onnx_passes/io/hash.h"

#include <xxhash.h>

#include <cstdio>

namespace onnx_train {

struct Hash::State {
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> own{XXH3_createState(), XXH3_freeState};
};

Hash::Hash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(state_->own.get()); }
Hash::~Hash() = default;

void Hash::add_bytes(const void* bytes, size_t size) { XXH3_128bits_update(state_->own.get(), bytes, size); }

std::string Hash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->own.get());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace onnx_train
