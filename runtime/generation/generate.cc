#include "runtime/generation/generate.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/texts/position_table.h"

namespace onnx_train {
namespace {

using Texts = std::vector<std::vector<int64_t>>;

constexpr int64_t kUsualContext = 1024;
constexpr int64_t kShortestWindow = 16;

// What the model reads: the last tokens of each text, from the left, in a batch of one length.
class Windows {
 public:
  Windows(const Session& session, int64_t texts, int64_t context)
      : inputs_(entry_inputs(session.model(), Entry::kPredict)) {
    tokens_ = token_inputs(inputs_).tokens;
    if (!tokens_) fail("a model that writes text has an input int64[batch, tokens]; this one takes ", names());
    const Dim &batch = (*tokens_->type.dims)[0], &length = (*tokens_->type.dims)[1];
    rows_ = batch.known() ? batch.value() : texts;
    if (texts > rows_) {
      throw UsageError(
          concat("the model takes ", rows_, " texts at a time, ", to_string(tokens_->type), ", not ", texts));
    }
    if (length.known()) fixed_ = length.value();
    if (fixed_ > 0 && context > fixed_)
      throw UsageError(concat("--context is ", context, ", but '", tokens_->name, "' takes ", fixed_, " tokens"));
    const PositionTable table = position_table(session.model());
    if (table.positions > 0 && context > table.positions) {
      throw UsageError(concat("--context is ", context, ", but '", table.weight, "' has ", table.positions,
                              " positions: --context ", table.positions, " at most"));
    }
    const int64_t usual = table.positions > 0 ? std::min(table.positions, kUsualContext) : kUsualContext;
    context_ = context > 0 ? context : fixed_ > 0 ? fixed_ : usual;
    for (const InputSpec& spec : inputs_) {
      if (&spec == tokens_ || spec.has_default || is_filled(spec)) continue;
      fail("the model also takes '", spec.name, "' ", to_string(spec.type),
           ", which is no part of a text: export it without a cache of earlier tokens");
    }
  }

  // How many tokens at the end of a text are read.
  int64_t read_of(const std::vector<int64_t>& text) const {
    return std::min(static_cast<int64_t>(text.size()), context_);
  }

  // The inputs for the texts. Positions after the end of a text hold `padding`.
  const TensorMap& of(const Texts& texts, int64_t padding) {
    int64_t longest = 1;
    for (const auto& text : texts) longest = std::max(longest, read_of(text));
    const auto rounded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest)));
    const int64_t length = fixed_ > 0 ? fixed_ : std::min(context_, std::max(rounded, kShortestWindow));
    const Shape shape{rows_, length};
    for (const InputSpec& spec : inputs_) {
      if (spec.has_default) continue;
      Tensor& input = made_[spec.name];
      if (input.shape() != shape) input = &spec == tokens_ ? Tensor(spec.type.dtype, shape) : filled_input(spec, shape);
    }
    for (int64_t row = 0; row < rows_; ++row) {
      const std::vector<int64_t>& text = texts[static_cast<size_t>(std::min<int64_t>(row, std::ssize(texts) - 1))];
      const int64_t read = read_of(text), from = std::ssize(text) - read;
      for (int64_t t = 0; t < length; ++t) {
        const int64_t token = t < read ? text[static_cast<size_t>(from + t)] : padding;
        made_.at(tokens_->name).set(row * length + t, static_cast<double>(token));
        for (const InputSpec& spec : inputs_) {
          if (is_mask(spec)) made_.at(spec.name).set(row * length + t, t < read ? 1 : 0);
        }
      }
    }
    return made_;
  }

 private:
  std::string names() const {
    std::string names;
    for (const InputSpec& spec : inputs_)
      names += concat(names.empty() ? "" : ", ", spec.name, " ", to_string(spec.type));
    return names;
  }

  std::vector<InputSpec> inputs_;
  const InputSpec* tokens_;
  int64_t rows_, fixed_ = 0, context_;
  TensorMap made_;
};

bool are_logits(DType dtype, size_t rank) { return is_float(dtype) && rank == 3; }

// The logits after the last token of each text.
std::vector<std::vector<double>> next_logits(Session* session, const Windows& windows, const TensorMap& inputs,
                                             const Texts& texts) {
  for (const auto& [name, output] : session->run(Entry::kPredict, inputs)) {
    if (!are_logits(output.dtype(), output.shape().size())) continue;
    const int64_t length = output.shape()[1], vocabulary = output.shape()[2];
    std::vector<std::vector<double>> logits;
    for (size_t i = 0; i < texts.size(); ++i) {
      const int64_t last = windows.read_of(texts[i]) - 1;
      if (last >= length) {
        fail("the output '", name, "' ", to_string(output.shape()), " has no logits for each token of ",
             to_string(inputs.begin()->second.shape()));
      }
      const int64_t begin = (static_cast<int64_t>(i) * length + last) * vocabulary;
      logits.emplace_back(static_cast<size_t>(vocabulary));
      for (int64_t v = 0; v < vocabulary; ++v) logits.back()[static_cast<size_t>(v)] = output.at(begin + v);
    }
    return logits;
  }
  fail("the model has no output float[batch, tokens, vocabulary], the logits of the next tokens");
}

// Windows are longer than texts, so logits must not depend on the positions after a text.
void check_is_causal(const std::vector<std::vector<double>>& one, const std::vector<std::vector<double>>& other) {
  constexpr double kRounding = 1e-3;
  for (size_t i = 0; i < one.size(); ++i) {
    double size = 0, difference = 0;
    for (size_t v = 0; v < one[i].size(); ++v) {
      size = std::max(size, std::abs(one[i][v]));
      difference = std::max(difference, std::abs(one[i][v] - other[i][v]));
    }
    if (difference > kRounding * size)
      fail("the logits of a token change with the tokens after it: the model is not causal, and writes no text");
  }
}

}  // namespace

std::vector<CommandOption> generation_options(GenerationOptions* o) {
  return {
      {"--tokens", {&o->tokens, kCount}, "tokens after each prompt, at most [100]", "N"},
      {"--temperature", &o->sampling.temperature, "logits are divided by it; 0: always the most likely token [1]", "T"},
      {"--top-k", &o->sampling.top_k, "draw among the K most likely tokens; 0: among all [0]", "K"},
      {"--top-p",
       {&o->sampling.top_p, Range{0, true, 1}},
       "draw among the fewest tokens that have this probability together [1]",
       "P"},
      {"--end", &o->end, "the token that completes a text", "ID"},
      {"--context", &o->context, "tokens that are read [what the input or the table of positions has, else 1024]", "N"},
      {"--seed", &o->seed, "what is drawn depends on it [0]", "N"},
  };
}

std::vector<std::vector<int64_t>> generate(Session* session, const std::vector<std::vector<int64_t>>& prompts,
                                           const GenerationOptions& options, const OnToken& on_token) {
  for (const auto& prompt : prompts) {
    if (prompt.empty()) throw UsageError("a prompt has at least one token");
  }
  Texts texts = prompts, written(prompts.size());
  if (texts.empty()) return written;
  Windows windows(*session, std::ssize(texts), options.context);
  const int64_t vocabulary = vocabulary_of(*session);
  for (const auto& prompt : prompts) {
    for (const int64_t token : prompt) {
      if (token < 0 || (vocabulary > 0 && token >= vocabulary))
        throw UsageError(concat("a prompt holds the token ", token, "; the model has ",
                                vocabulary > 0 ? concat("0 to ", vocabulary - 1) : "none below 0"));
    }
  }
  std::vector<SplitMix64> random;
  for (uint64_t i = 0; i < texts.size(); ++i) random.emplace_back(SplitMix64{options.seed, i});
  std::vector<bool> is_complete(texts.size());
  for (int64_t step = 0; step < options.tokens; ++step) {
    auto logits = next_logits(session, windows, windows.of(texts, 0), texts);
    if (step == 0) {
      // Any other token; a vocabulary of one has none.
      const int64_t other = std::ssize(logits[0]) > 1 ? 1 : 0;
      check_is_causal(logits, next_logits(session, windows, windows.of(texts, other), texts));
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      if (is_complete[i]) continue;
      const int64_t token = draw_token(logits[i], options.sampling, &random[i]);
      texts[i].push_back(token);
      written[i].push_back(token);
      is_complete[i] = token == options.end;
      if (on_token && !on_token(i, token)) return written;
    }
    if (std::all_of(is_complete.begin(), is_complete.end(), [](bool done) { return done; })) break;
  }
  return written;
}

int64_t vocabulary_of(const Session& session) {
  for (const Value* output : session.model().graph->outputs()) {
    const TensorType& type = output->type();
    if (type.has_rank() && are_logits(type.dtype, static_cast<size_t>(type.rank())))
      return type.dims->back().known() ? type.dims->back().value() : 0;
  }
  fail("the model has no output float[batch, tokens, vocabulary], the logits of the next tokens");
}

}  // namespace onnx_train
