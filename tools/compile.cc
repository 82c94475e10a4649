#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "onnx_passes/ir/error.h"
#include "platform/process.h"
#include "runtime/models/example_inputs.h"
#include "runtime/session/session.h"
#include "runtime/support/report_text.h"
#include "runtime/training/checkpoint.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

struct CompileArguments {
  std::string model, output;
  int64_t batch = 32;
  std::vector<std::string> sizes;
  SessionSettings runtime;
};

constexpr const char* kCacheVariable = "ONNX_TRAIN_CACHE";
constexpr const char* kChoicesVariable = "ONNX_TRAIN_TIMED_CHOICES";
constexpr const char* kEnoughSeconds = "600";

// The folder of caches in this process.
void keep_in(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder)) fail(folder, ": cannot be made: ", error.message());
  platform::set_variable(kCacheVariable, fs::absolute(folder).string().c_str(), /*overwrite=*/true);
  platform::set_variable(kChoicesVariable, kEnoughSeconds,
                         /*overwrite=*/false);  // this command is there to take the time
}

// "12 choice, 31 cubin": the numbers of files by ending.
std::string files_in(const std::string& folder) {
  std::map<std::string, int> counts;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string ending = entry.path().extension().string();
    if (entry.is_regular_file() && ending.size() > 1) ++counts[ending.substr(1)];
  }
  std::string text;
  for (const auto& [ending, count] : counts) text += concat(text.empty() ? "" : ", ", count, " ", ending);
  return text.empty() ? "nothing" : text;
}

int run(const CompileArguments& arguments) {
  const SessionOptions options = options_of_session(arguments.runtime);
  const auto start = std::chrono::steady_clock::now();
  Model model = load_any_model(arguments.model);
  keep_in(arguments.output);
  Session session(std::move(model), options);
  std::map<EntryName, std::vector<InputSpec>> entries;
  std::vector<InputSpec> inputs;
  for (const Entry entry : kEntries) {
    if (entry == Entry::kInitialize || !session.has_entry(entry)) continue;
    const auto& its = entries[entry] = entry_inputs(session.model(), entry);
    inputs.insert(inputs.end(), its.begin(), its.end());
  }
  const auto all = example_shapes(inputs, arguments.batch, arguments.sizes);
  for (const auto& [entry, its] : entries) {
    std::map<std::string, Shape> shapes;
    for (const InputSpec& input : its) {
      if (const auto shape = all.find(input.name); shape != all.end()) shapes.insert(*shape);
    }
    const auto plan = session.planned(entry, shapes);  // whose end waits for the compiler
    std::printf("%s: %zu nodes\n", entry.text().c_str(), plan->steps().size());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%s: %s, in %s\n", arguments.output.c_str(), files_in(arguments.output).c_str(),
              format_duration(seconds.count()).c_str());
  return 0;
}

}  // namespace

Subcommand compile_command() {
  auto a = std::make_shared<CompileArguments>();
  return {"compile",
          "Chooses between kernels, and compiles a GPU's, before the first run, into a folder to carry along",
          "  onnx-train compile train.onnx --device cuda --batch-size 64 -o train.kernels\n"
          "  ONNX_TRAIN_CACHE=train.kernels onnx-train fit train.onnx --data train.npz --epochs 10 --device cuda "
          "--batch-size 64",
          with_session_options(
              {{"MODEL", &a->model, "a training model, a checkpoint, or a forward model", "FILE", true},
               {"-o,--output", &a->output, "the folder, for ONNX_TRAIN_CACHE; files that are there stay", "DIR", true},
               {"--batch-size", {&a->batch, kCount}, "samples at a time, as the runs will have them [32]", "N"},
               {"--dim", {&a->sizes, check_size}, "NAME=N: the size of another symbolic dimension [8]", "NAME=N"}},
              &a->runtime),
          [a] { return run(*a); }};
}

}  // namespace onnx_train
