// Texts that a causal language model writes, a token at a time. The model maps int[batch, tokens] to logits
// float[batch, tokens, vocabulary]; inputs named as masks, positions and token types are filled as for training
// (runtime/data/files/tokens.h).
//
// With a cache of keys and values (cached_reader.h), which is made of the model's graph, a prompt is read at once and
// then each token alone. Prompts of one length are side by side; those of others, too, if masks and positions are
// inputs of the model, which then hide what fills a shorter prompt up at its beginning; else they come one after the
// other. Each gives what it gives alone. Of a model that has no cache, or whose logits are others with it, all tokens
// are read anew for each one, in one batch that is as long as the longest text, rounded up so that few plans are made;
// masks are 0 after a text. The caller owns the session, which one thread uses at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/generation/logits.h"
#include "runtime/generation/next_logits.h"
#include "runtime/generation/token_sampler.h"
#include "runtime/session/session.h"
#include "runtime/support/options.h"

namespace onnx_train {

struct GenerationOptions {
  int64_t tokens = 100;  // at most, after each prompt
  int64_t context = 0;   // tokens before the next one that are read; 0: as many as the model's input or its table of
                         // positions has, else usual_context
  int64_t usual_context = 1024;
  std::optional<int64_t> end = {};     // the token that completes a text
  std::vector<int64_t> ends = {};      // further ones
  std::vector<std::string> stop = {};  // tokens, "198,198", with which a text is complete when it ends with them
  bool no_cache = false;
  uint64_t seed = 0;  // text i draws from a stream of its own, of (seed, i)
  SamplingOptions sampling = {};
};

// As options of the command and of programs: --tokens, --temperature, --top-k, --top-p, --end, --stop, --context,
// --seed, --no-cache.
std::vector<CommandOption> generation_options(GenerationOptions* options);

// Loads a model for generate(): as load_any_model does (runtime/training/checkpoint.h), that of a folder
// (runtime/models/model_folder.h), and an export with a cache of its own without it, whose twin has one again.
Model load_text_model(const std::string& path);

// The tokens of "15496,995". Throws UsageError that names the option.
std::vector<int64_t> tokens_of(const std::string& option, const std::string& text);

// Why the tokens were not written as fast as with a cache, in a line; "" if they were, or if nobody asked for one.
std::string note_of(const GenerationReport& report);

enum class AfterToken { kGoOn, kEndText, kEndAll };
// Called with each token that is drawn and the number of its text.
using OnToken = std::function<AfterToken(size_t text, int64_t token)>;

// Writes several times with one model. The session must outlive it.
class TextWriter {
 public:
  // `texts` at a time.
  TextWriter(Session* session, int64_t texts, const GenerationOptions& options);

  // At most `most` tokens after each prompt, with what ended it if that was drawn. Prompts have at least one token.
  // With what the prompts begin with as the texts before they are not read again.
  Texts write(const Texts& prompts, int64_t most, const OnToken& on_token);

  bool is_end(int64_t token) const;                                  // of a text, by the options
  int64_t context() const { return next_.context(); }                // tokens that are read
  const GenerationReport& report() const { return next_.report(); }  // of all texts until now

 private:
  const GenerationOptions options_;
  const Texts stops_;
  NextLogits next_;
  const int64_t vocabulary_;
  std::vector<SplitMix64> random_;
};

// The same once, at most options.tokens. Throws Error (kUnsupported) for a model of another form, or whose logits
// depend on what comes after them.
Texts generate(Session* session, const Texts& prompts, const GenerationOptions& options, const OnToken& on_token = {},
               GenerationReport* report = nullptr);

// How many tokens the model's declared output tells apart; 0 where it does not say. Throws as generate() does.
int64_t vocabulary_of(const Session& session);

}  // namespace onnx_train
