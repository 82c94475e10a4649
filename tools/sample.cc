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

// How fast it was, and why it was not faster, after the text.
void say(const GenerationReport& report) {
  if (const std::string note = note_of(report); !note.empty()) std::fprintf(stderr, "%s\n", note.c_str());
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  std::fprintf(stderr, "prompt: %lld tokens, %.4g/s; written one by one: %lld tokens, %.4g/s\n",
               static_cast<long long>(report.read), rate(report.read, report.reading),
               static_cast<long long>(report.written), rate(report.written, report.writing));
}

// --stop of texts, as the tokens that they are.
std::vector<std::string> as_tokens(const std::vector<std::string>& texts, Tokenizer* tokenizer) {
  std::vector<std::string> tokens;
  for (const std::string& text : texts) {
    tokens.emplace_back();
    for (const int64_t token : tokenizer ? tokenizer->encode(text, "--stop") : bytes_of(text))
      tokens.back() += concat(tokens.back().empty() ? "" : ",", token);
  }
  return tokens;
}

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
  GenerationOptions options = arguments.generation;
  if (tokenizer && !options.end) options.end = tokenizer->end();
  if (!arguments.prompt.empty()) options.stop = as_tokens(options.stop, tokenizer.get());
  Session session(in_precision(load_text_model(arguments.model), "float32"), options_of_session(arguments.runtime));
  check_tokens(session, arguments.model, tokenizer.get(), ids);
  GenerationReport report;
  const std::atomic<bool>& is_stopped = catch_interrupts();
  const auto print_all = [&](const std::vector<int64_t>& text) {
    Printer printer(ids, tokenizer.get());
    for (const int64_t token : text) printer(token);
    printer.end();
  };
  if (arguments.texts == 1) {
    Printer printer(ids, tokenizer.get());
    for (const int64_t token : prompt) printer(token);
    const auto print = [&](size_t, int64_t token) {
      printer(token);
      return !is_stopped;
    };
    generate(&session, {prompt}, options, print, &report);
    printer.end();
    say(report);
    return 0;
  }
  const std::vector<std::vector<int64_t>> prompts(static_cast<size_t>(arguments.texts), prompt);
  const auto written = generate(
      &session, prompts, options, [&](size_t, int64_t) { return !is_stopped; }, &report);
  for (size_t i = 0; i < written.size(); ++i) {
    std::vector<int64_t> text = prompt;
    text.insert(text.end(), written[i].begin(), written[i].end());
    if (!ids) std::printf("%s--- %zu\n", i > 0 ? "\n" : "", i + 1);
    print_all(text);
  }
  say(report);
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
