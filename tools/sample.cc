#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/tokenizer/tokenizer.h"
#include "runtime/generation/chat.h"
#include "runtime/generation/generate.h"
#include "runtime/generation/written_text.h"
#include "runtime/session/session.h"
#include "runtime/training/checkpoint.h"
#include "tools/converse.h"
#include "tools/interrupt.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct SampleArguments {
  std::string model, tokenizer;
  std::vector<std::string> prompts, prompt_ids;
  int64_t texts = 1;
  bool ids = false, chat = false;
  std::string system;
  GenerationOptions generation;
  SessionSettings runtime;
  std::shared_ptr<std::set<std::string>> given = std::make_shared<std::set<std::string>>();
};

std::vector<int64_t> bytes_of(const std::string& text) {
  std::vector<int64_t> bytes;
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

OptionTarget whole(std::vector<std::string>* texts) {
  OptionTarget target{texts};
  target.whole = true;
  return target;
}

// Each prompt as often as --texts says.
Texts prompts_of(const SampleArguments& arguments, Tokenizer* tokenizer) {
  if (arguments.prompts.empty() == arguments.prompt_ids.empty())
    throw UsageError("a text begins with --prompt, or with --prompt-ids");
  Texts prompts;
  const auto add = [&](const std::vector<int64_t>& prompt) {
    prompts.insert(prompts.end(), static_cast<size_t>(arguments.texts), prompt);
  };
  for (const std::string& text : arguments.prompts)
    add(tokenizer ? tokenizer->encode(text, "--prompt") : bytes_of(text));
  for (const std::string& ids : arguments.prompt_ids) add(tokens_of("--prompt-ids", ids));
  return prompts;
}

bool has_tokenizer(const std::string& folder) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::path(folder) / "tokenizer.json", error);
}

// How texts are shown, and the texts that complete them.
struct Shown {
  bool ids;
  const Tokenizer* tokenizer;
  std::vector<std::string> stops;
};

// A text with its prompt, or its tokens as numbers, as it is written.
class Sample {
 public:
  Sample(const Shown& shown, const std::vector<int64_t>& prompt) : ids_(shown.ids) {
    if (!ids_ || !shown.stops.empty()) text_.emplace(shown.tokenizer, prompt, shown.stops, WrittenText::Stops::kShown);
    for (const int64_t token : prompt) add_number(token);
  }

  // Returns whether it is complete.
  bool add(int64_t token) {
    add_number(token);
    return text_ && text_->add(token);
  }
  std::string more(bool all) { return ids_ ? std::exchange(numbers_, "") : text_->more(all); }

 private:
  void add_number(int64_t token) {
    numbers_ += concat(is_first_ ? "" : " ", token);
    is_first_ = false;
  }

  const bool ids_;
  bool is_first_ = true;
  std::string numbers_;  // that `more` has not given
  std::optional<WrittenText> text_;
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

// Shows a single text while it is written, several ones at the end.
void write(Session* session, const Texts& prompts, const GenerationOptions& options, const Shown& shown) {
  std::vector<Sample> samples;
  for (const std::vector<int64_t>& prompt : prompts) samples.emplace_back(shown, prompt);
  const std::atomic<bool>& is_stopped = catch_interrupts();
  const bool is_one = samples.size() == 1;
  const auto show = [&](Sample& sample, bool all) {
    const std::string more = sample.more(all);
    std::fwrite(more.data(), 1, more.size(), stdout);
    std::fflush(stdout);
  };
  if (is_one) show(samples[0], false);
  GenerationReport report;
  const auto on_token = [&](size_t text, int64_t token) {
    const bool is_complete = samples[text].add(token);
    if (is_one) show(samples[0], false);
    return is_stopped ? AfterToken::kEndAll : is_complete ? AfterToken::kEndText : AfterToken::kGoOn;
  };
  generate(session, prompts, options, on_token, &report);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!is_one && !shown.ids) std::printf("%s--- %zu\n", i > 0 ? "\n" : "", i + 1);
    show(samples[i], true);
    std::printf("\n");
  }
  say(report);
}

int chat(const SampleArguments& arguments) {
  const auto is_given = [&](const char* option) { return arguments.given->count(option) > 0; };
  for (const char* option : {"prompt", "prompt-ids", "texts", "ids"}) {
    if (is_given(option)) throw UsageError(concat("--chat reads messages from standard input: leave out --", option));
  }
  if (arguments.tokenizer.empty())
    throw UsageError("--chat needs the folder of the model's tokenizer, with its chat template: --tokenizer");
  GenerationOptions options = arguments.generation;
  if (!is_given("tokens")) options.tokens = std::numeric_limits<int64_t>::max();
  Session session(in_precision(load_text_model(arguments.model), "float32"), options_of_session(arguments.runtime));
  std::vector<std::string> notes;
  Chat conversation(&session, arguments.tokenizer, arguments.system, options,
                    [&](const std::string& note) { notes.push_back(note); });
  check_tokens(session, arguments.model, &conversation.tokenizer(), /*ids=*/false);
  const bool all_answered = converse(&conversation, &notes);
  say(conversation.report());
  return all_answered ? 0 : 1;
}

int run(SampleArguments arguments) {
  // A folder with a model may hold its tokenizer.
  const bool is_of_text = arguments.chat || !arguments.prompts.empty();
  if (is_of_text && arguments.tokenizer.empty() && has_tokenizer(arguments.model))
    arguments.tokenizer = arguments.model;
  if (arguments.chat) return chat(arguments);
  if (!arguments.system.empty()) throw UsageError("--system begins a conversation: give --chat, too");
  const auto tokenizer = arguments.tokenizer.empty() ? nullptr : std::make_unique<Tokenizer>(arguments.tokenizer);
  const Texts prompts = prompts_of(arguments, tokenizer.get());
  const bool is_text = !arguments.prompts.empty();
  Shown shown{arguments.ids || (!tokenizer && !is_text), tokenizer.get(), {}};
  GenerationOptions options = arguments.generation;
  if (tokenizer && !options.end) options.ends = tokenizer->ends();
  if (is_text) std::swap(options.stop, shown.stops);
  Session session(in_precision(load_text_model(arguments.model), "float32"), options_of_session(arguments.runtime));
  check_tokens(session, arguments.model, tokenizer.get(), shown.ids);
  write(&session, prompts, options, shown);
  return 0;
}

}  // namespace

Subcommand sample_command() {
  auto a = std::make_shared<SampleArguments>();
  std::vector<CommandOption> options = {
      {"MODEL", &a->model,
       "a causal language model, a training model of one or a checkpoint, or the folder of a model, whose tokenizer is "
       "taken, too",
       "FILE", true},
      {"--prompt", whole(&a->prompts),
       "what a text begins with, once for each; its bytes are its tokens, without --tokenizer", "TEXT"},
      {"--prompt-ids", whole(&a->prompt_ids),
       "the same as tokens: 15496,995; without --tokenizer tokens are printed, too", "IDS"},
      {"--tokenizer", &a->tokenizer,
       "makes the tokens of texts: a tokenizer.json, or the folder of a model that holds it; texts end as its "
       "tokenizer_config.json and generation_config.json say",
       "FILE"},
      {"--chat", &a->chat,
       "a conversation: a line of standard input is a message, and is answered; by the chat template in the folder of "
       "--tokenizer. Ctrl-C ends an answer, Ctrl-D the conversation"},
      {"--system", &a->system, "what the model is told before the conversation", "TEXT"},
      {"--texts", {&a->texts, kCount}, "texts of each prompt, drawn side by side [1]", "N"},
      {"--ids", &a->ids, "print tokens as numbers"},
  };
  for (CommandOption& option : generation_options(&a->generation)) options.push_back(std::move(option));
  Subcommand command = {"sample", "Text that a trained language model writes",
                        "  onnx-train sample run/best.onnx --prompt 'LOVE, n.  ' --tokens 300 --temperature 0.7\n"
                        "  onnx-train sample gpt2.onnx --tokenizer gpt2/ --prompt 'Once upon a time' --top-p 0.9\n"
                        "  onnx-train sample gpt2.onnx --prompt-ids 15496,995 --top-p 0.9 --texts 4 --end 50256\n"
                        "  onnx-train sample gpt2.onnx --tokenizer gpt2/ --chat --system 'You answer in one sentence.'",
                        with_session_options(std::move(options), &a->runtime), [a] { return run(*a); }};
  command.given = a->given;
  return command;
}

}  // namespace onnx_train
