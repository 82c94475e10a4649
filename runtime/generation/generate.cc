#include "runtime/generation/generate.h"

#include <algorithm>
#include <charconv>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/import/import.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/models/model_folder.h"
#include "runtime/training/checkpoint.h"

namespace onnx_train {
namespace {

bool ends_with(const std::vector<int64_t>& text, const std::vector<int64_t>& stop) {
  return text.size() >= stop.size() && std::equal(stop.rbegin(), stop.rend(), text.rbegin());
}

Texts stops_of(const GenerationOptions& options) {
  Texts stops;
  for (const std::string& stop : options.stop) stops.push_back(tokens_of("--stop", stop));
  return stops;
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
      {"--tokens",
       {&o->tokens, kCount},
       "tokens after each prompt, at most [100; of --chat as many as there is room for]",
       "N"},
      {"--temperature", &o->sampling.temperature, "logits are divided by it; 0: always the most likely token [1]", "T"},
      {"--top-k", &o->sampling.top_k, "draw among the K most likely tokens; 0: among all [0]", "K"},
      {"--top-p",
       {&o->sampling.top_p, Range{0, true, 1}},
       "draw among the fewest tokens that have this probability together [1]",
       "P"},
      {"--end", &o->end, "the token that completes a text", "ID"},
      {"--stop", stops,
       "a text is complete where it has this: a text if the prompt is one, else tokens, 198,198; once for each",
       "TEXT"},
      {"--context", &o->context, "tokens that are read [what the input or the table of positions has, else 1024]", "N"},
      {"--seed", &o->seed, "what is drawn depends on it [0]", "N"},
      {kNoCache, &o->no_cache, "read all tokens anew for each one that is drawn, without their keys and values"},
  };
}

TextWriter::TextWriter(Session* session, int64_t texts, const GenerationOptions& options)
    : options_(options),
      stops_(stops_of(options)),
      next_(session, texts, options.context, options.usual_context, options.no_cache),
      vocabulary_(vocabulary_of(*session)) {}

Texts TextWriter::write(const Texts& prompts, int64_t most, const OnToken& on_token) {
  Texts texts = prompts, written(prompts.size());
  check_prompts(prompts);
  check_tokens(prompts, vocabulary_);
  next_.begin(prompts);
  while (random_.size() < texts.size()) random_.emplace_back(SplitMix64{options_.seed, random_.size()});
  std::vector<bool> is_complete(texts.size());
  for (int64_t step = 0; step < most; ++step) {
    const Logits logits = next_(texts, is_complete);
    for (size_t i = 0; i < texts.size(); ++i) {
      if (is_complete[i]) continue;
      const int64_t token = draw_token(logits[i], options_.sampling, &random_[i]);
      texts[i].push_back(token);
      written[i].push_back(token);
      const AfterToken then = on_token ? on_token(i, token) : AfterToken::kGoOn;
      if (then == AfterToken::kEndAll) return written;
      is_complete[i] = then == AfterToken::kEndText || is_end(token) ||
                       std::ranges::any_of(stops_, [&](const auto& stop) { return ends_with(written[i], stop); });
    }
    if (std::ranges::all_of(is_complete, [](bool done) { return done; })) break;
  }
  return written;
}

bool TextWriter::is_end(int64_t token) const {
  return token == options_.end || std::ranges::find(options_.ends, token) != options_.ends.end();
}

Texts generate(Session* session, const Texts& prompts, const GenerationOptions& options, const OnToken& on_token,
               GenerationReport* report) {
  if (prompts.empty()) return {};
  check_prompts(prompts);
  TextWriter writer(session, std::ssize(prompts), options);
  Texts written = writer.write(prompts, options.tokens, on_token);
  if (report) *report = writer.report();
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
