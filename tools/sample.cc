#include <cstdio>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/files/tokens.h"
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
  std::string model, prompt;
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

std::vector<int64_t> prompt_of(const SampleArguments& arguments) {
  if (arguments.prompt.empty() == arguments.prompt_ids.empty())
    throw UsageError("a text begins with --prompt, or with --prompt-ids");
  if (!arguments.prompt.empty()) return bytes_of(arguments.prompt);
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

// Prints a text of bytes as it is written, or numbers.
class Printer {
 public:
  explicit Printer(bool ids) : ids_(ids) {}

  void operator()(int64_t token) {
    if (ids_) {
      std::printf("%s%lld", first_ ? "" : " ", static_cast<long long>(token));
    } else {
      if (token < 0 || token >= kBytes)
        fail("token ", token,
             " is no byte: give the prompt as --prompt-ids, or use generate() in Python with a tokenizer");
      std::putchar(static_cast<int>(token));
    }
    first_ = false;
    std::fflush(stdout);
  }

 private:
  bool ids_, first_ = true;
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

// --stop of a model of bytes, as the tokens that they are.
std::vector<std::string> as_tokens(const std::vector<std::string>& texts) {
  std::vector<std::string> tokens;
  for (const std::string& text : texts) {
    tokens.emplace_back();
    for (const int64_t byte : bytes_of(text)) tokens.back() += concat(tokens.back().empty() ? "" : ",", byte);
  }
  return tokens;
}

int run(const SampleArguments& arguments) {
  const std::vector<int64_t> prompt = prompt_of(arguments);
  const bool ids = arguments.ids || !arguments.prompt_ids.empty();
  Session session(in_precision(load_text_model(arguments.model), "float32"), options_of_session(arguments.runtime));
  const int64_t vocabulary = vocabulary_of(session);
  if (!ids && vocabulary > kMostOfBytes) {
    throw UsageError(concat(arguments.model, " tells ", vocabulary,
                            " tokens apart, so they are no bytes: give the prompt "
                            "as --prompt-ids, or use generate() in Python with a tokenizer"));
  }
  GenerationOptions options = arguments.generation;
  if (!arguments.prompt.empty()) options.stop = as_tokens(options.stop);
  GenerationReport report;
  const std::atomic<bool>& is_stopped = catch_interrupts();
  const auto print_all = [&](const std::vector<int64_t>& text) {
    Printer printer(ids);
    for (const int64_t token : text) printer(token);
  };
  if (arguments.texts == 1) {
    Printer printer(ids);
    for (const int64_t token : prompt) printer(token);
    const auto print = [&](size_t, int64_t token) {
      printer(token);
      return !is_stopped;
    };
    generate(&session, {prompt}, options, print, &report);
    std::printf("\n");
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
    std::printf("\n");
  }
  say(report);
  return 0;
}

}  // namespace

Subcommand sample_command() {
  auto a = std::make_shared<SampleArguments>();
  std::vector<CommandOption> options = {
      {"MODEL", &a->model, "a causal language model, a training model of one or a checkpoint", "FILE", true},
      {"--prompt", &a->prompt, "what the text begins with, of a model whose tokens are bytes", "TEXT"},
      {"--prompt-ids", &a->prompt_ids, "the same as tokens: 15496,995; tokens are printed, too", "IDS"},
      {"--texts", {&a->texts, kCount}, "texts, drawn side by side [1]", "N"},
      {"--ids", &a->ids, "print tokens as numbers"},
  };
  for (CommandOption& option : generation_options(&a->generation)) options.push_back(std::move(option));
  return {"sample", "Text that a trained language model writes",
          "  onnx-train sample run/best.onnx --prompt 'LOVE, n.  ' --tokens 300 --temperature 0.7\n"
          "  onnx-train sample gpt2.onnx --prompt-ids 15496,995 --top-p 0.9 --texts 4 --end 50256",
          with_session_options(std::move(options), &a->runtime), [a] { return run(*a); }};
}

}  // namespace onnx_train
