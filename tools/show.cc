#include <chrono>
#include <cstdio>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/passes.h"
#include "runtime/data/loading/source.h"
#include "runtime/models/example_inputs.h"
#include "runtime/plan/plan_report.h"
#include "runtime/session/session.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct ShowArguments {
  std::string model, entry, data;
  std::vector<std::string> sizes;
  int64_t batch = 1;
  bool plan = false, passes = false, arena = false, profile = false, json = false;
  SessionSettings runtime;
};

constexpr int kShownRuns = 5;
constexpr std::chrono::seconds kProfilingTime{2};  // no run starts later, but for the first one that is timed

// Runs of the plan that are timed node by node, after one that is not. They change the session's state, which nobody
// keeps.
void profile(Session* session, const EntryName& entry, const TensorMap& batch, Plan* plan) {
  const auto start = std::chrono::steady_clock::now();
  session->run(entry, batch);
  plan->set_profiling(true);
  do session->run(entry, batch);
  while (plan->profiled_runs() < kShownRuns && std::chrono::steady_clock::now() - start < kProfilingTime);
  plan->set_profiling(false);
}

int run(const ShowArguments& arguments) {
  if (arguments.profile && !arguments.plan) throw UsageError("--profile goes with --plan");
  if (arguments.passes && !arguments.plan) throw UsageError("--passes goes with --plan");
  if (arguments.json && (!arguments.plan || arguments.passes || arguments.arena)) {
    throw UsageError("--json goes with --plan alone");
  }
  if (!arguments.data.empty() && !arguments.profile) throw UsageError("--data goes with --plan --profile");
  if (!arguments.plan && !arguments.arena) {
    const Model model = load_model(arguments.model);
    const std::string text = arguments.entry.empty() ? to_text(model) : to_text(flatten(model, arguments.entry));
    std::printf("%s\n", text.c_str());
    return 0;
  }
  Session session(load_any_model(arguments.model), options_of_session(arguments.runtime));
  EntryName entry = session.has_entry(Entry::kStep) ? Entry::kStep : Entry::kPredict;
  if (!arguments.entry.empty()) entry = arguments.entry;
  const std::vector<InputSpec> inputs = entry_inputs(session.model(), entry);
  TensorMap batch;
  if (!arguments.data.empty()) {
    batch = first_batch(arguments.data, inputs, arguments.batch, Preprocess(session.model()));
  }
  const auto shapes = batch.empty() ? example_shapes(inputs, arguments.batch, arguments.sizes) : shapes_of(batch);
  Plan& plan = session.plan(entry, shapes);
  if (arguments.profile) {
    if (batch.empty()) batch = example_batch(inputs, shapes);
    // Guarded runs take the time of the guard.
    arguments.runtime.check_memory ? void(session.run(entry, batch)) : profile(&session, entry, batch, &plan);
  }
  if (arguments.json) {
    std::printf("%s\n", plan_json(plan, {}).c_str());
    return 0;
  }
  if (arguments.plan) std::printf("%s", plan_table(plan, table_width()).c_str());
  if (arguments.profile && arguments.runtime.check_memory) std::printf("not timed: --check-memory\n");
  if (arguments.passes) std::printf("%s", passes_table(plan, table_width()).c_str());
  if (arguments.arena) std::printf("%s", memory_chart(plan, table_width()).c_str());
  std::printf("%s", recomputation_text(plan, session.memory_budget(), text_width()).c_str());
  return 0;
}

}  // namespace

Subcommand show_command() {
  auto a = std::make_shared<ShowArguments>();
  return {
      "show", "A model as text, or what runs: its plan, its memory",
      "  onnx-train show model.onnx\n"
      "  onnx-train show train.onnx --entry step\n"
      "  onnx-train show train.onnx --plan --batch 64\n"
      "  onnx-train show train.onnx --plan --passes\n"
      "  onnx-train show train.onnx --plan --profile --data train.npz --batch 64\n"
      "  onnx-train show train.onnx --entry evaluate --arena --dim sequence=256",
      with_session_options(
          {{"FILE", &a->model, "any ONNX model", "FILE", true},
           {"--entry",
            &a->entry,
            "one entry point, flattened [the whole file; step for --plan and --arena]",
            "NAME",
            false,
            {},
            entry_names},
           {"--plan", &a->plan, "each node in the order in which it runs, with shapes, bytes and kernel"},
           {"--passes", &a->passes,
            "with --plan: also each lowering pass, the nodes before and after it, its time, and whether a plan without "
            "it "
            "computes the same bits"},
           {"--json", &a->json, "with --plan: an array with an object a node: kernel, FLOP, bytes"},
           {"--profile", &a->profile, "with --plan: run it, and show how many milliseconds each node takes"},
           {"--data", &a->data, "with --profile: the data to run on, as fit takes it [made up]", "PATH"},
           {"--arena", &a->arena, "where buffers lie in the arena while the nodes run"},
           {"--batch", {&a->batch, kCount}, "samples in the batch [1]", "N"},
           {"--dim", {&a->sizes, check_size}, "NAME=N: the size of another symbolic dimension [8]", "NAME=N"}},
          &a->runtime),
      [a] { return run(*a); }};
}

}  // namespace onnx_train
