// Texts that a causal language model writes, a token at a time. The model maps int[batch, tokens] to logits
// float[batch, tokens, vocabulary]; inputs named as masks, positions and token types are filled as for training
// (runtime/data/files/tokens.h), and masks are 0 after the text. All texts are in one batch, which is as long as the
// longest, rounded up so that few plans are made; nothing is kept between two tokens. The caller owns the session,
// which one thread uses at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "runtime/generation/token_sampler.h"
#include "runtime/session/session.h"
#include "runtime/support/options.h"

namespace onnx_train {

struct GenerationOptions {
  int64_t tokens = 100;  // at most, after each prompt
  int64_t context = 0;   // tokens before the next one that are read; 0: as many as the model's input or its table of
                         // positions has, else 1024
  std::optional<int64_t> end = {};  // the token that completes a text
  uint64_t seed = 0;                // text i draws from a stream of its own, of (seed, i)
  SamplingOptions sampling = {};
};

// As options of the command and of programs: --tokens, --temperature, --top-k, --top-p, --context, --end, --seed.
std::vector<CommandOption> generation_options(GenerationOptions* options);

// Called with each token that is drawn and the number of its text; false ends all.
using OnToken = std::function<bool(size_t text, int64_t token)>;

// The tokens after each prompt, with `end` if that was drawn. Prompts have at least one token. Throws Error
// (kUnsupported) for a model of another form, or whose logits depend on what comes after them.
std::vector<std::vector<int64_t>> generate(Session* session, const std::vector<std::vector<int64_t>>& prompts,
                                           const GenerationOptions& options, const OnToken& on_token = {});

// How many tokens the model's declared output tells apart; 0 where it does not say. Throws as generate() does.
int64_t vocabulary_of(const Session& session);

}  // namespace onnx_train
