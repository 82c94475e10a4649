#include "runtime/generation/generate.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/import/import.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/training/strip_training.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/generation/cached_reader.h"
#include "runtime/generation/logits.h"
#include "runtime/generation/text_windows.h"
#include "runtime/models/model_folder.h"
#include "runtime/training/checkpoint.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// TextWindows are longer than texts, so logits must not depend on the positions after a text.
void check_is_causal(const Logits& one, const Logits& other) {
  constexpr double kRounding = 1e-3;
  if (relative_difference(one, other) > kRounding)
    fail("the logits of a token change with the tokens after it: the model is not causal, and writes no text");
}

// The model of an export with a cache of its own, without it; null for any other model.
std::unique_ptr<Session> without_own_cache(const Session& session) {
  if (!has_cache(*session.model().graph)) return nullptr;
  Model model = strip_training(session.snapshot());
  infer_types(model.graph.get());
  if (!drop_cache(&model)) return nullptr;
  return std::make_unique<Session>(std::move(model), session.options());
}

// The logits that follow the texts, in one batch of all without a cache, and in one for each length of a prompt with
// it.
class NextLogits {
 public:
  NextLogits(Session* session, const Texts& prompts, const GenerationOptions& options, GenerationReport* report)
      : plain_(without_own_cache(*session)),
        session_(plain_ ? *plain_ : *session),
        windows_(session_, std::ssize(prompts), options.context),
        report_(*report) {
    report_ = {};
    if (options.no_cache) {
      report_.uncached = kNoCache;
    } else {
      try {
        cached_ = std::make_unique<CachedModel>(session_);
      } catch (const Error& error) {
        report_.uncached = error.what();
      }
    }
    for (size_t i = 0; i < prompts.size(); ++i) groups_[std::ssize(prompts[i])].texts.push_back(i);
  }

  Logits operator()(const Texts& texts, const std::vector<bool>& is_complete) {
    if (cached_) {
      Logits logits = with_cache(texts, is_complete);
      if (cached_) return logits;
    }
    std::vector<int64_t> places;
    for (const auto& text : texts) places.push_back(windows_.last_of(text));
    const auto read = [&](int64_t padding) {
      return logits_at(session_.run(Entry::kPredict, windows_.of(texts, padding)), places);
    };
    const Clock::time_point start = Clock::now();
    Logits logits = read(0);
    int64_t tokens = 0;
    for (size_t i = 0; i < texts.size(); ++i) tokens += is_complete[i] ? 0 : is_checked_ ? 1 : std::ssize(texts[i]);
    count(!is_checked_, tokens, seconds_since(start));
    // Any other token; a vocabulary of one has none.
    if (!is_checked_) check_is_causal(logits, read(std::ssize(logits[0]) > 1 ? 1 : 0));
    is_checked_ = true;
    return logits;
  }

 private:
  struct Group {
    std::vector<size_t> texts;
    int64_t length = 0;  // of the texts now, and of those that are complete if they went on
    std::unique_ptr<CachedReader> reader;
  };

  // Without a result, and without a cache from then on, if the cache gives other logits.
  Logits with_cache(const Texts& texts, const std::vector<bool>& is_complete) {
    Logits logits(texts.size());
    for (auto& [prompt, group] : groups_) {
      if (std::ranges::all_of(group.texts, [&](size_t i) { return is_complete[i]; })) continue;
      const bool is_prompt = !group.reader;
      if (is_prompt) {
        group.reader = std::make_unique<CachedReader>(*cached_, windows_.context());
        group.length = prompt;
      }
      const Texts read = side_by_side(texts, group);
      try {
        const Clock::time_point start = Clock::now();
        const double planned = group.reader->planning();
        const Logits next = group.reader->next(read);
        const double seconds = seconds_since(start) - (group.reader->planning() - planned);
        count(is_prompt, std::ssize(group.texts) * (is_prompt ? prompt : 1), seconds);
        for (size_t i = 0; i < group.texts.size(); ++i) logits[group.texts[i]] = next[i];
        check(group, read);
      } catch (const Error& error) {
        if (is_checked_) throw;
        give_up(error.what());
        break;
      }
      if (++group.length > windows_.context() + 1) report_.context = windows_.context();
    }
    return logits;
  }

  // Those that are complete go on with any token. A model of a fixed number of texts reads the last one several times.
  Texts side_by_side(const Texts& texts, const Group& group) const {
    Texts read;
    for (const size_t i : group.texts) {
      read.push_back(texts[i]);
      read.back().resize(static_cast<size_t>(group.length));
    }
    if (windows_.has_fixed_rows()) read.resize(static_cast<size_t>(windows_.rows()), read.back());
    return read;
  }

  // Once, when there are two tokens.
  void check(const Group& group, const Texts& read) {
    if (is_checked_ || group.length < 2) return;
    if (!group.reader->agrees(read)) fail("[Cache] the logits with a cache are not those without");
    is_checked_ = true;
  }

  void give_up(const std::string& why) {
    report_ = {.uncached = why};
    groups_.clear();
    cached_ = nullptr;
  }

  void count(bool is_prompt, int64_t tokens, double seconds) {
    (is_prompt ? report_.reading : report_.writing) += seconds;
    (is_prompt ? report_.read : report_.written) += tokens;
  }

  std::unique_ptr<Session> plain_;
  Session& session_;
  TextWindows windows_;
  GenerationReport& report_;
  std::unique_ptr<CachedModel> cached_;
  std::map<int64_t, Group> groups_;  // by the lengths of their prompts
  bool is_checked_ = false;
};

bool ends_with(const std::vector<int64_t>& text, const std::vector<int64_t>& stop) {
  return text.size() >= stop.size() && std::equal(stop.rbegin(), stop.rend(), text.rbegin());
}

void check_prompts(const Texts& prompts) {
  if (std::ranges::any_of(prompts, [](const auto& prompt) { return prompt.empty(); }))
    throw UsageError("a prompt has at least one token");
}

void check_tokens(const Texts& prompts, int64_t vocabulary) {
  for (const auto& prompt : prompts) {
    for (const int64_t token : prompt) {
      if (token < 0 || (vocabulary > 0 && token >= vocabulary))
        throw UsageError(concat("a prompt holds the token ", token, "; the model has ",
                                vocabulary > 0 ? concat("0 to ", vocabulary - 1) : "none below 0"));
    }
  }
}

}  // namespace

Model load_text_model(const std::string& path) {
  const std::string file = model_file(path);
  ModelMessage message = load_message(file);
  if (!message.proto.training_info().empty()) return load_training_model(file);
  const DroppedCache dropped = drop_operator_caches(message.proto.mutable_graph());
  Model model = import_model(std::move(message));
  infer_types(model.graph.get());
  drop_cache(&model, dropped);
  to_inference(*model.graph);
  return model;
}

std::vector<int64_t> tokens_of(const std::string& option, const std::string& text) {
  std::vector<int64_t> tokens;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const char* const stop = text.data() + end;
    int64_t token = 0;
    const auto [last, error] = std::from_chars(text.data() + start, stop, token);
    if (error != std::errc() || last != stop)
      throw UsageError(concat(option, " is whole numbers separated by commas, not '", text, "'"));
    tokens.push_back(token);
    start = end + 1;
  }
  return tokens;
}

std::vector<CommandOption> generation_options(GenerationOptions* o) {
  OptionTarget stops{&o->stop};
  stops.whole = true;
  return {
      {"--tokens", {&o->tokens, kCount}, "tokens after each prompt, at most [100]", "N"},
      {"--temperature", &o->sampling.temperature, "logits are divided by it; 0: always the most likely token [1]", "T"},
      {"--top-k", &o->sampling.top_k, "draw among the K most likely tokens; 0: among all [0]", "K"},
      {"--top-p",
       {&o->sampling.top_p, Range{0, true, 1}},
       "draw among the fewest tokens that have this probability together [1]",
       "P"},
      {"--end", &o->end, "the token that completes a text", "ID"},
      {"--stop", stops,
       "a text is complete when it ends with this: tokens, 198,198, or bytes if the prompt is; once for each", "TEXT"},
      {"--context", &o->context, "tokens that are read [what the input or the table of positions has, else 1024]", "N"},
      {"--seed", &o->seed, "what is drawn depends on it [0]", "N"},
      {kNoCache, &o->no_cache, "read all tokens anew for each one that is drawn, without their keys and values"},
  };
}

Texts generate(Session* session, const Texts& prompts, const GenerationOptions& options, const OnToken& on_token,
               GenerationReport* report) {
  Texts texts = prompts, written(prompts.size()), stops;
  if (texts.empty()) return written;
  for (const std::string& stop : options.stop) stops.push_back(tokens_of("--stop", stop));
  check_prompts(prompts);
  GenerationReport own;
  NextLogits next_logits(session, texts, options, report ? report : &own);
  check_tokens(prompts, vocabulary_of(*session));
  std::vector<SplitMix64> random;
  for (uint64_t i = 0; i < texts.size(); ++i) random.emplace_back(SplitMix64{options.seed, i});
  std::vector<bool> is_complete(texts.size());
  for (int64_t step = 0; step < options.tokens; ++step) {
    const Logits logits = next_logits(texts, is_complete);
    for (size_t i = 0; i < texts.size(); ++i) {
      if (is_complete[i]) continue;
      const int64_t token = draw_token(logits[i], options.sampling, &random[i]);
      texts[i].push_back(token);
      written[i].push_back(token);
      is_complete[i] = token == options.end ||
                       std::ranges::any_of(stops, [&](const auto& stop) { return ends_with(written[i], stop); });
      if (on_token && !on_token(i, token)) return written;
    }
    if (std::ranges::all_of(is_complete, [](bool done) { return done; })) break;
  }
  return written;
}

std::string note_of(const GenerationReport& report) {
  if (!report.uncached.empty() && report.uncached != kNoCache)
    return concat("without a cache, all tokens are read anew for each one: ", report.uncached);
  if (report.context == 0) return "";
  return concat("a text is longer than the ", report.context, " tokens of --context, which are read anew for each one");
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
