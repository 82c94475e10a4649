// Texts that a causal language model writes, a token at a time. The model maps int[batch, tokens] to logits
// float[batch, tokens, vocabulary]; inputs named as masks, positions and token types are filled as for training
// (runtime/data/files/tokens.h).
//
// With a cache of keys and values (cached_reader.h), which is made of the model's graph, a prompt is read at once and
// then each token alone; prompts of one length are side by side, others one after the other. Of a model that has none,
// or whose logits are others with it, all tokens are read anew for each one, in one batch that is as long as the
// longest text, rounded up so that few plans are made; masks are 0 after a text. The caller owns the session, which one
// thread uses at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "runtime/generation/logits.h"
#include "runtime/generation/token_sampler.h"
#include "runtime/session/session.h"
#include "runtime/support/options.h"

namespace onnx_train {

struct GenerationOptions {
  int64_t tokens = 100;  // at most, after each prompt
  int64_t context = 0;   // tokens before the next one that are read; 0: as many as the model's input or its table of
                         // positions has, else 1024
  std::optional<int64_t> end = {};     // the token that completes a text
  std::vector<std::string> stop = {};  // tokens, "198,198", with which a text is complete when it ends with them
  bool no_cache = false;
  uint64_t seed = 0;  // text i draws from a stream of its own, of (seed, i)
  SamplingOptions sampling = {};
};

// As options of the command and of programs: --tokens, --temperature, --top-k, --top-p, --end, --stop, --context,
// --seed,
// --no-cache.
std::vector<CommandOption> generation_options(GenerationOptions* options);

// Loads a model for generate(): as load_any_model does (runtime/training/checkpoint.h), and an export with a cache of
// its own without it, whose twin has one again.
Model load_text_model(const std::string& path);

// The tokens of "15496,995". Throws UsageError that names the option.
std::vector<int64_t> tokens_of(const std::string& option, const std::string& text);

inline constexpr const char* kNoCache = "--no-cache";

// What was read of prompts, and what was written after them, with the seconds that it took; with a cache without those
// to plan.
struct GenerationReport {
  std::string uncached;  // why all tokens were read anew; "" with a cache
  int64_t context = 0;   // where a text became longer, and was read anew from then on; else 0
  int64_t read = 0, written = 0;
  double reading = 0, writing = 0;
};

// Why the tokens were not written as fast as with a cache, in a line; "" if they were, or if nobody asked for one.
std::string note_of(const GenerationReport& report);

// Called with each token that is drawn and the number of its text; false ends all.
using OnToken = std::function<bool(size_t text, int64_t token)>;

// The tokens after each prompt, with `end` or `stop` if that was drawn. Prompts have at least one token. Throws Error
// (kUnsupported) for a model of another form, or whose logits depend on what comes after them.
Texts generate(Session* session, const Texts& prompts, const GenerationOptions& options, const OnToken& on_token = {},
               GenerationReport* report = nullptr);

// How many tokens the model's declared output tells apart; 0 where it does not say. Throws as generate() does.
int64_t vocabulary_of(const Session& session);

}  // namespace onnx_train
