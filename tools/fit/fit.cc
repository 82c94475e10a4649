#include <algorithm>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "platform/memory.h"
#include "runtime/runs/resume.h"
#include "runtime/runs/training_run.h"
#include "runtime/support/report_text.h"
#include "tools/dashboard/run_view.h"
#include "tools/fit/dry_run.h"
#include "tools/fit/fit_arguments.h"
#include "tools/fit/outcome.h"
#include "tools/fit/run_data.h"
#include "tools/fit/run_ranks.h"
#include "tools/fit/run_start.h"
#include "tools/interrupt.h"
#include "tools/report/banner.h"
#include "tools/report/output.h"
#include "tools/report/progress.h"
#include "tools/report/screen.h"
#include "tools/report/tensorboard_log.h"
#include "tools/run_report/report_page.h"

namespace onnx_train {
namespace {

// A fresh training model draws its state as it was built to: weights with --init, and the key of dropout.
void initialize(const FitArguments& a, Session* session) {
  const auto& entries = session->model().entry_points;
  const bool draws = std::any_of(entries.begin(), entries.end(),
                                 [](const EntryPoint& entry) { return !entry.initialization_bindings.empty(); });
  if (!draws) return;
  TensorMap inputs;
  for (const InputSpec& spec : entry_inputs(session->model(), Entry::kInitialize)) {
    if (spec.role == roles::kSeed && a.seed) inputs[spec.name] = Tensor::scalar(static_cast<uint64_t>(*a.seed));
  }
  session->run(Entry::kInitialize, inputs);
}

// One line, or a line of JSON with this key.
void say(const FitArguments& a, const char* key, const std::string& text) {
  print(a.json ? nlohmann::ordered_json{{key, text}}.dump() + "\n" : wrap(text, text_width(), 0, 2) + "\n");
}

// What has been built of a forward model, and the command that does the same.
void print_built(const FitArguments& a, const Model& model, const BuiltForRun& built) {
  const std::string command =
      concat("onnx-train build ", shell_quoted(a.model), " -o ", shell_quoted(a.trainer.folder + "/train.onnx"),
             built.options.empty() ? "" : " ", built.options);
  if (!built.sizes.empty()) say(a, "note", built.sizes);
  if (a.json) return say(a, "built", command);
  TextTable table("lw");
  for (const char* key : {"loss", "optimizer", "precision"}) {
    const std::string value = model.metadata(std::string("onnx_train.") + key);
    table.add({key, value.empty() ? "float32" : value});
    const std::string& why = std::string(key) == "loss" ? built.loss : built.precision;
    if (std::string(key) != "optimizer" && !why.empty()) table.add({"", why});
  }
  table.add({"the same", command});
  print(concat(a.model, " is a forward model, of which this training model is built:\n", table.text(2, text_width())));
}

// Says what a run finds before its first step.
class Announcements : public RunEvents {
 public:
  explicit Announcements(const FitArguments& a) : a_(a) {}

  void on_batch(const FoundBatch& found) override { say(a_, "batch-size", to_text(found)); }
  void on_rate_search() override {
    say(a_, "lr", concat("learning rate: range test of at most ", kRateSteps, " steps, which change nothing"));
  }
  void on_rate(const FoundRate& found) override {
    if (!a_.json) print(rate_table(found, text_width()));
    say(a_, "lr", concat("learning rate ", to_text(found)));
  }
  void on_resumed(const TrainingPosition& position, const std::vector<std::string>& changes) override {
    if (a_.json) {
      resumed_ = nlohmann::ordered_json{{"resumed", position.step}, {"changes", changes}}.dump() + "\n";
      return;
    }
    resumed_ = concat("resumed from last.onnx at step ", position.step, "\n");
    for (const std::string& change : changes) resumed_ += wrap("changed: " + change, text_width(), 2, 2) + "\n";
  }
  const std::string& resumed() const { return resumed_; }  // "" for a new run

 private:
  const FitArguments& a_;
  std::string resumed_;
};

ViewSettings view_of(const FitArguments& a, const std::atomic<bool>& interrupted) {
  ViewSettings view;
  view.folder = a.trainer.folder;
  view.keys = "q or Ctrl-C stops after this step; --resume goes on from there";
  view.state = [&interrupted](const RunFiles&) { return interrupted ? "stops after this step" : "running"; };
  view.peak_memory = platform::peak_memory;
  view.on_quit = request_interrupt;
  return view;
}

// Trains, and shows metrics as they come.
StopReason train_and_show(const FitArguments& a, TrainingRun* run) {
  std::vector<MetricsSink*> sinks;
  std::optional<TensorBoardLog> tensorboard;
  if (a.tensorboard) sinks.push_back(&tensorboard.emplace(a.trainer.folder, run->trainer().position().step));
  const bool view = a.tui && Screen::is_possible();
  if (a.tui && !view) {
    print_notes(
        {"--tui needs a terminal for input and output, with this process in its foreground; plain lines follow"});
  }
  Progress progress(run->trainer(), sinks,
                    a.json ? ProgressForm::kJson
                    : view ? ProgressForm::kEvaluations
                           : ProgressForm::kText);
  const std::atomic<bool>& interrupted = catch_interrupts();
  std::optional<RunView> shown;
  if (view) shown.emplace(view_of(a, interrupted));
  const StopReason reason = run->train(&progress, interrupted);
  shown.reset();
  keep_status();
  return reason;
}

// A report that cannot be written is no reason for a run to fail.
void report_run(const std::string& folder) {
  try {
    write_report({folder}, folder + "/report.html");
  } catch (const std::exception& e) {
    print_notes({concat("there is no report.html: ", e.what())});
  }
}

// Fills the run's folder; returns the exit status.
int train(const FitArguments& a, const Model& model, const MemoryRows& memory, bool is_built, RunLock lock,
          TrainingRun* run) {
  run->open_folder(std::move(lock));
  if (is_built) save_model(model_of_run(a), a.trainer.folder + "/train.onnx");
  run->write_options(recorded_options(a, is_built), memory);
  StopReason reason;
  try {
    reason = train_and_show(a, run);
  } catch (const Error&) {
    report_run(a.trainer.folder);
    throw;
  }
  report_run(a.trainer.folder);
  if (!a.json) print_outcome(a, reason, model, run->trainer(), is_built, run->found().bad_pictures);
  return reason == StopReason::kInterrupted ? kInterruptedStatus : 0;
}

// Locks a folder that is there already; the others are locked when they are made.
RunLock lock_early(const FitArguments& a) {
  return !a.dry_run && folder_exists(a.trainer.folder) ? RunLock(a.trainer.folder) : RunLock();
}

// Rank 0 writes what a run writes; the others train alone.
int follow(TrainingRun* run) {
  TrainerEvents silent;
  return run->train(&silent, catch_interrupts()) == StopReason::kInterrupted ? kInterruptedStatus : 0;
}

int rehearse_run(const FitArguments& a, TrainingRun* run) {
  print(rehearse(run->rehearsal().get(), a.json));
  return 0;
}

int run(FitArguments* a, const RunRanks& ranks) {
  RunLock lock = ranks.leads() ? lock_early(*a) : RunLock();
  const bool resumes = finds_run(*a, /*writes=*/!a->dry_run);
  if (!resumes) check_usage(a);
  if (resumes) adopt_accumulation(a);
  if (resumes) adopt_build(a);
  if (!resumes && ranks.several() && a->given->count("accumulate") == 0)
    a->trainer.accumulate = ranks.collectives()->size() / a->session.tensor_parallel;
  Start start = resumes ? start_where_it_stopped(*a, ranks.collectives()) : start_anew(*a);
  if (start.built) a->build.build.loss = start.built->chosen_loss;  // as options.json says
  if (start.position) {
    adopt_settings(a->described, *start.position, a);
    adopt_end(a);
    adopt_threads(a);
    adopt_offload(a);
    adopt_eval_data(a);
    check_usage(a);
    start.model = in_precision(std::move(start.model), a->dtype);
  }
  if (ranks.several() && a->session.threads == 0) a->session.threads = ranks.threads();
  SessionOptions options = options_of_session(a->session);
  options.topology.collectives = ranks.collectives();
  Session session(std::move(start.model), options);
  if (!checkpoint_position(session.model())) initialize(*a, &session);
  DataNotes notes;
  TrainingData data = load_data(*a, &session, &notes);
  const Dataset& samples = *data.training.dataset;
  a->reading.scales = {samples.preprocess().option()};  // as options.json says
  a->reading.preprocess = samples.preprocess().steps_option();
  a->trainer.model = start.identity;
  const std::string own = a->trainer.folder + "/train.onnx";
  a->trainer.checkpoint_base.file = start.built || (resumes && path_exists(own)) ? own : a->model;
  if (start.built) print_built(*a, session.model(), *start.built);
  if (const int64_t fixed = samples.fixed_batch(); start.built && fixed > 0 && a->build.import.batch.empty()) {
    notes.push_back(concat(a->model, " fixes a batch of ", fixed, fixed == 1 ? " sample" : " samples",
                           "; --batch dynamic lets --batch-size choose"));
  }
  TrainingRun training(&session, a, std::move(data), ranks.on_this_machine());
  if (start.position) training.resume(*start.position);
  Announcements announcements(*a);
  training.prepare(&announcements, catch_interrupts());
  if (!ranks.leads()) return a->dry_run ? rehearse_run(*a, &training) : follow(&training);
  MemoryRows memory;
  const std::optional<RunData>& evaluation = training.data().evaluation;
  const std::string banner = training_banner(&session, *training.data().training.dataset,
                                             evaluation ? &*evaluation->dataset : nullptr, training.trainer(), &memory);
  if (!a->json) print(banner);
  print_notes(notes);
  if (start.position) print(announcements.resumed());
  if (a->dry_run) {
    check_writable(a->trainer.folder);
    return rehearse_run(*a, &training);
  }
  return train(*a, session.model(), memory, start.built.has_value(), std::move(lock), &training);
}

int run(FitArguments* a) {
  RunRanks ranks(a);
  try {
    const int status = run(a, ranks);
    ranks.end();
    return ranks.join(status);
  } catch (const std::exception& error) {
    ranks.leave(error.what());
    if (a->elastic) ranks.go_on_without_killed(*a, error.what());
    throw;
  }
}

}  // namespace

Subcommand fit_command() {
  auto a = std::make_shared<FitArguments>();
  a->trainer.folder = "run";
  a->described = fit_options(a.get());
  return {"fit",
          "Train a training model, or a forward model, on data",
          "  onnx-train fit train.onnx --data train.npz --eval-data test.npz --epochs 10 --batch-size 64\n"
          "  onnx-train fit model.onnx --data train.npz --epochs 10 --batch-size auto --lr auto --out runs/quick\n"
          "  onnx-train fit train.onnx --data mnist/ --eval-data mnist/ --scale 1/255 --epochs 5 --lr 3e-4 "
          "--schedule cosine --warmup 100 --out runs/mnist\n"
          "  onnx-train fit train.onnx --data mnist/ --scale 1/255 --epochs 5 --out runs/mnist --resume",
          a->described,
          [a] { return run(a.get()); },
          a->given};
}

}  // namespace onnx_train
