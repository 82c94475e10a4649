// Draws the next token of a text from the logits that a language model gives. Plain values; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/random.h"

namespace onnx_train {

struct SamplingOptions {
  double temperature = 1;  // logits are divided by it; 0: always the most likely token
  int64_t top_k = 0;       // among the k most likely alone (Fan et al. 2018); 0: among all
  double top_p = 1;        // among the fewest that have this probability together (Holtzman et al. 2020)
};

// First the k most likely are left, then of these the fewest with the probability, as in Hugging Face's `generate`.
// Tokens of equal logits are taken in their order. Throws Error for logits of which none is a number, or one is NaN.
int64_t draw_token(const std::vector<double>& logits, const SamplingOptions& options, SplitMix64* random);

}  // namespace onnx_train
