#include <cstdio>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/tokenizer/tokenizer.h"
#include "runtime/generation/generate.h"
#include "runtime/session/session.h"
#include "runtime/training/checkpoint.h"
#include "tools/interrupt.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

constexpr int64_t kBytes = 256;

struct SampleArguments {
  std::string model, prompt, tokenizer;
  std::vector<std::string> prompt_ids;
  int64_t texts = 1;
  bool ids = false;
  GenerationOptions generation;
  SessionSettings runtime;
};

std::vector<int64_t> bytes_of(const std::string& text) {
  std::vector<int64_t> bytes;
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

std::vector<int64_t> prompt_of(const SampleArguments& arguments, Tokenizer* tokenizer) {
  if (arguments.prompt.empty() == arguments.prompt_ids.empty())
    throw UsageError("a text begins with --prompt, or with --prompt-ids");
  if (!arguments.prompt.empty())
    return tokenizer ? tokenizer->encode(arguments.prompt, "--prompt") : bytes_of(arguments.prompt);
  std::vector<int64_t> ids;
  for (const std::string& id : arguments.prompt_ids) {
    size_t end = 0;
    try {
      ids.push_back(std::stoll(id, &end));
    } catch (const std::exception&) {
    }
    if (end != id.size()) throw UsageError(concat("--prompt-ids is whole numbers separated by commas, not '", id, "'"));
  }
  return ids;
}

// Prints a text as it is written, or numbers.
class Printer {
 public:
  Printer(bool ids, const Tokenizer* tokenizer) : ids_(ids), tokenizer_(tokenizer) {}

  void operator()(int64_t token) {
    if (ids_) {
      std::printf("%s%lld", first_ ? "" : " ", static_cast<long long>(token));
    } else if (tokenizer_) {
      text_.push_back(token);
      print_rest(/*all=*/false);
    } else {
      if (token < 0 || token >= kBytes)
        fail("token ", token,
             " is no byte: --tokenizer names the tokenizer.json that belongs to the model, or give --prompt-ids");
      std::putchar(static_cast<int>(token));
    }
    first_ = false;
    std::fflush(stdout);
  }
  void end() {
    if (tokenizer_ && !ids_) print_rest(/*all=*/true);
    std::printf("\n");
  }

 private:
  // Prints what the text has more than was printed, but for a character at its end of which there is but a part.
  void print_rest(bool all) {
    const std::string text = tokenizer_->decode(text_);
    if (text.size() <= printed_ || (!all && text.ends_with("\xEF\xBF\xBD"))) return;
    std::fwrite(text.data() + printed_, 1, text.size() - printed_, stdout);
    printed_ = text.size();
  }

  bool ids_, first_ = true;
  const Tokenizer* tokenizer_;
  std::vector<int64_t> text_;
  size_t printed_ = 0;
};

// Whether the model's tokens are those that are printed, as far as it knows.
void check_tokens(const Session& session, const std::string& path, const Tokenizer* tokenizer, bool ids) {
  const std::string trained = session.model().metadata(kTokenizer);
  const int64_t vocabulary = vocabulary_of(session);
  if (!ids && !tokenizer && (vocabulary > kMostOfBytes || !trained.empty())) {
    throw UsageError(
        concat(path,
               trained.empty() ? concat(" tells ", vocabulary, " tokens apart")
                               : concat(" was trained with the tokens of ", trained),
               ", so they are no bytes: --tokenizer names the tokenizer.json that belongs to it, or give the "
               "prompt as --prompt-ids"));
  }
  if (tokenizer && !trained.empty() && trained != tokenizer->identity()) {
    print_notes(
        {concat(tokenizer->path(), " is ", tokenizer->identity(), ", and the model was trained with ", trained)});
  }
}

int run(const SampleArguments& arguments) {
  const auto tokenizer = arguments.tokenizer.empty() ? nullptr : std::make_unique<Tokenizer>(arguments.tokenizer);
  const std::vector<int64_t> prompt = prompt_of(arguments, tokenizer.get());
  const bool ids = arguments.ids || (!tokenizer && !arguments.prompt_ids.empty());
  GenerationOptions generation = arguments.generation;
  if (tokenizer && !generation.end) generation.end = tokenizer->end();
  Session session(in_precision(load_any_model(arguments.model), "float32"), options_of_session(arguments.runtime));
  check_tokens(session, arguments.model, tokenizer.get(), ids);
  const std::atomic<bool>& is_stopped = catch_interrupts();
  const auto print_all = [&](const std::vector<int64_t>& text) {
    Printer printer(ids, tokenizer.get());
    for (const int64_t token : text) printer(token);
    printer.end();
  };
  if (arguments.texts == 1) {
    Printer printer(ids, tokenizer.get());
    for (const int64_t token : prompt) printer(token);
    generate(&session, {prompt}, generation, [&](size_t, int64_t token) {
      printer(token);
      return !is_stopped;
    });
    printer.end();
    return 0;
  }
  const std::vector<std::vector<int64_t>> prompts(static_cast<size_t>(arguments.texts), prompt);
  const auto written = generate(&session, prompts, generation, [&](size_t, int64_t) { return !is_stopped; });
  for (size_t i = 0; i < written.size(); ++i) {
    std::vector<int64_t> text = prompt;
    text.insert(text.end(), written[i].begin(), written[i].end());
    if (!ids) std::printf("%s--- %zu\n", i > 0 ? "\n" : "", i + 1);
    print_all(text);
  }
  return 0;
}

}  // namespace

Subcommand sample_command() {
  auto a = std::make_shared<SampleArguments>();
  std::vector<CommandOption> options = {
      {"MODEL", &a->model, "a causal language model, a training model of one or a checkpoint", "FILE", true},
      {"--prompt", &a->prompt, "what the text begins with; its bytes are its tokens, without --tokenizer", "TEXT"},
      {"--prompt-ids", &a->prompt_ids, "the same as tokens: 15496,995; without --tokenizer tokens are printed, too",
       "IDS"},
      {"--tokenizer", &a->tokenizer,
       "makes the tokens of texts: a tokenizer.json, or the folder of a model that holds it; texts end as its "
       "tokenizer_config.json says",
       "FILE"},
      {"--texts", {&a->texts, kCount}, "texts, drawn side by side [1]", "N"},
      {"--ids", &a->ids, "print tokens as numbers"},
  };
  for (CommandOption& option : generation_options(&a->generation)) options.push_back(std::move(option));
  return {"sample", "Text that a trained language model writes",
          "  onnx-train sample run/best.onnx --prompt 'LOVE, n.  ' --tokens 300 --temperature 0.7\n"
          "  onnx-train sample gpt2.onnx --tokenizer gpt2/ --prompt 'Once upon a time' --top-p 0.9\n"
          "  onnx-train sample gpt2.onnx --prompt-ids 15496,995 --top-p 0.9 --texts 4 --end 50256",
          with_session_options(std::move(options), &a->runtime), [a] { return run(*a); }};
}

}  // namespace onnx_train
