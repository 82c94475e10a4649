// The cached twin of a causal language model: it reads the tokens that are new, and the keys and values of those before
// them, which it has given earlier. Passes on an imported inference model that one caller owns; one thread. They throw
// Error "[Cache] ..." that names the node where tokens are mixed in another way than by attention (token_axes.h); the
// model is of no use then.
//
// What depends on positions alone (position embeddings, angles, causal masks, windows, ALiBi) is computed for all
// tokens, earlier and new, and the rows of the new ones are taken where it meets values of tokens. Inputs that are
// masks have the length of all tokens, positions and token types that of the new ones.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

enum class CacheForm {
  // Inputs past_key_values.N.key and .value, outputs present.N.key and .value, which are the former with the new keys
  // and values at the end: the form that Optimum and ONNX Runtime GenAI read. Any length, also 0.
  kGrowing,
  // Inputs of the same names have a fixed number of places, of which the first past_length int64[1] are in use; outputs
  // present.N.* are the new keys and values alone, and the caller puts them there. One plan serves all tokens.
  // Masks are as long as places and new tokens together, by position.
  kPlaces,
};

inline constexpr const char* kPastLength = "past_length";

struct CachedTensor {
  std::string past, present;  // names of the input and the output
  int64_t axis;               // of tokens
  struct Size {
    int64_t number;
    bool each_text;  // number times the texts
  };
  std::vector<Size> sizes;  // that of `axis` does not count
  DType dtype;
};

// Returns the keys and values in their order, at least two.
std::vector<CachedTensor> add_cache(Model* model, CacheForm form);

}  // namespace onnx_train
