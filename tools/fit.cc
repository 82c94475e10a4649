#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/data/data_check.h"
#include "runtime/data/selection.h"
#include "runtime/data/source.h"
#include "runtime/example_inputs.h"
#include "runtime/report_text.h"
#include "runtime/training/fingerprint.h"
#include "runtime/training/trainer.h"
#include "tools/arguments.h"
#include "tools/config.h"
#include "tools/dry_run.h"
#include "tools/interrupt.h"
#include "tools/report/banner.h"
#include "tools/report/output.h"
#include "tools/report/progress.h"
#include "tools/report/tensorboard_log.h"
#include "tools/resolved_options.h"
#include "tools/run_folder.h"
#include "tools/run_report/report_page.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

struct FitArguments {
  std::string model, data, eval_data, time_limit, config, dtype = "float32";
  TrainerOptions trainer;
  bool no_shuffle = false, no_data_check = false, resume = false, overwrite = false, json = false;
  bool dry_run = false, tensorboard = false;
  RuntimeOptions runtime;
  DataOptions reading;
  ScheduleSettings schedule;
  std::optional<int64_t> batch_size, seed;
  std::vector<CommandOption> described;  // to write the resolved options
  std::shared_ptr<std::set<std::string>> given = std::make_shared<std::set<std::string>>();
};

// "90", "90s", "15m", "2h"
double parse_duration(const std::string& text) {
  if (text.empty()) return 0;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (error != std::errc() || factor == 0 || !(value > 0) || !std::isfinite(value * factor)) {
    fail("a duration such as 90s, 15m or 2h");
  }
  return value * factor;
}

// A run leaves several files, so that the name of one is a mistake.
void check_folder(const std::string& text) {
  const std::string suffix = fs::path(text).extension().string();
  for (const char* kind : {".onnx", ".npz", ".npy", ".csv", ".safetensors", ".pt", ".pth", ".ckpt"}) {
    if (suffix == kind) fail("the name of a folder, in which the trained model is best.onnx");
  }
}

void check_usage(FitArguments* a) {
  TrainerOptions& o = a->trainer;
  o.shuffle = !a->no_shuffle;
  o.seed = static_cast<uint64_t>(a->seed.value_or(0));
  o.time_limit = parse_duration(a->time_limit);
  o.schedule = resolve(a->schedule, Schedule().peak);
  if (o.epochs == 0 && o.steps == 0 && o.time_limit == 0) {
    throw UsageError("fit needs an end: give --epochs, --steps or --time-limit");
  }
  if (a->given->count("lr") > 0 && !o.schedule.curve.file.empty()) {
    throw UsageError("a table of rates holds the rates themselves; leave out --lr");
  }
  check_samples(o.samples, !a->eval_data.empty());
  o.recorded = fixed_settings(data_options(&a->reading));
  for (const Setting& setting : fixed_settings(sample_options(&o.samples))) o.recorded.push_back(setting);
}

std::string last_checkpoint(const FitArguments& a) { return a.trainer.folder + "/last.onnx"; }

// Whether the folder holds a run to go on with.
bool finds_run(const FitArguments& a) {
  std::error_code error;
  const bool exists = fs::exists(last_checkpoint(a), error);
  if (exists && !a.resume && !a.overwrite) {
    throw UsageError(a.trainer.folder +
                     " holds a run; go on with --resume, start anew with --overwrite, or take another --out");
  }
  return exists && a.resume;
}

// The model to start from, as the run's settings know it. A run may be resumed with the model that it started from, and
// with any of its own checkpoints.
struct Start {
  Model model;
  std::string identity;
  std::optional<TrainingPosition> position;  // when it goes on with a run
};

Start start_anew(const FitArguments& a) {
  Start start{load_training_model(a.model), "", {}};
  start.identity = fingerprint(start.model);
  start.model = in_precision(std::move(start.model), a.dtype);
  return start;
}

constexpr const char* kBuiltWith[] = {"loss",       "optimizer", "groups", "layer_decay",
                                      "clip_value", "ema",       "mode",   "precision"};

// What resuming needs to know of MODEL, which is gone before the run's own model is loaded.
struct GivenModel {
  std::string identity;
  std::map<std::string, std::string> built_with;
  std::optional<TrainingPosition> position;
};

GivenModel look_at(const std::string& path) {
  const Model model = load_training_model(path);
  GivenModel given{fingerprint(model), {}, checkpoint_position(model)};
  for (const std::string what : kBuiltWith) given.built_with[what] = model.metadata("onnx_train." + what);
  return given;
}

Start start_where_it_stopped(const FitArguments& a) {
  const GivenModel given = look_at(a.model);
  Start start{load_training_model(last_checkpoint(a)), given.identity, {}};
  start.position = checkpoint_position(start.model);
  if (!start.position) fail(last_checkpoint(a), " does not say where its training stands; it is no checkpoint");
  for (const std::string what : kBuiltWith) {
    const std::string before = start.model.metadata("onnx_train." + what), &now = given.built_with.at(what);
    if (before == now) continue;
    fail("cannot resume: ", last_checkpoint(a), " was built with ", what, " ", before, ", ", a.model, " with ", now);
  }
  const auto model_of = [](const TrainingPosition& position) {
    const auto found = position.settings.find("model");
    return found == position.settings.end() ? "" : found->second;
  };
  if (given.position && model_of(*given.position) == model_of(*start.position)) {
    start.identity = model_of(*start.position);
  }
  return start;
}

// What is not given stays as the run has it.
void adopt_settings(FitArguments* a, const std::map<std::string, std::string>& settings) {
  for (const CommandOption& option : a->described) {
    const auto saved = settings.find(key_of(option));
    // Of the files, settings hold the identity.
    const bool is_setting = saved != settings.end() && option.value != "FILE" && option.value != "PATH";
    if (!is_setting || saved->second == "none" || a->given->count(saved->first)) continue;
    try {
      assign(option, saved->second);
    } catch (const UsageError& e) {
      fail("cannot resume: ", last_checkpoint(*a), " is damaged: ", e.what());
    }
  }
}

// "lower loss", "higher accuracy"; with an end of "est", "lowest loss".
std::string better_than(const Trainer& trainer, const char* end = "er") {
  const std::string& best = trainer.options().best;
  return concat(more_is_better(best) ? "high" : "low", end, " ", best);
}

std::string outcome(StopReason reason, const Trainer& trainer) {
  const std::string at = concat(" at step ", trainer.position().step);
  switch (reason) {
    case StopReason::kFinished: return "finished" + at;
    case StopReason::kInterrupted: return concat("interrupted", at, "; go on with --resume");
    case StopReason::kEarlyStop:
      return concat("stopped early", at, ": no ", better_than(trainer), " for ", trainer.position().stale,
                    " evaluations");
    case StopReason::kTimeLimit: return concat("stopped by the time limit", at);
    case StopReason::kStopped: break;
  }
  return "stopped" + at;
}

// Without evaluation data the best state is that of the lowest training loss, which says nothing of other data.
void print_outcome(const FitArguments& a, StopReason reason, const Trainer& trainer) {
  const bool evaluates = !a.eval_data.empty() || splits(a.trainer.samples);
  std::string which = better_than(trainer, "est");
  which.insert(which.find(' ') + 1, evaluates ? "evaluation " : "training ");
  std::string text = outcome(reason, trainer);
  if (trainer.position().best) text += concat(", ", which, " ", format_number(*trainer.position().best));
  if (trainer.skipped_steps() > 0) {
    text += concat(", ", trainer.skipped_steps(), " updates skipped whose gradients overflowed in 16 bits");
  }
  TextTable files("lw");
  const std::string best =
      trainer.position().best ? concat("the state with the ", which) : "the last state; nothing has been evaluated yet";
  if (trainer.has_best()) files.add({"best.onnx", best + (evaluates ? "" : " (without --eval-data)")});
  files.add({"last.onnx", "the last state"});
  files.add({"metrics.jsonl", "one line a step; metrics.csv, epochs.jsonl, options.json"});
  files.add({"report.html", "curves, memory and options, for a browser"});
  print(concat(wrap(text, text_width(), 0, 2), "\nin ", a.trainer.folder, ":\n", files.text(2, text_width())));
}

// A fresh training model draws its state as it was built to: weights with --init, and the key of dropout.
void initialize(const FitArguments& a, Session* session) {
  const auto& entries = session->model().entry_points;
  const bool draws = std::any_of(entries.begin(), entries.end(),
                                 [](const EntryPoint& entry) { return !entry.initialization_bindings.empty(); });
  if (!draws) return;
  TensorMap inputs;
  for (const InputSpec& spec : entry_inputs(session->model(), "initialize")) {
    if (spec.role == roles::kSeed && a.seed) inputs[spec.name] = Tensor::scalar(static_cast<uint64_t>(*a.seed));
  }
  session->run("initialize", inputs);
}

// What the model and the data say where the user did not.
void resolve_defaults(FitArguments* a, const Model& model, const Dataset& training) {
  std::optional<double>& rate = a->schedule.rate;
  if (!rate) rate = built_control(model, roles::kLearningRate).value_or(Schedule().peak);
  if (!a->batch_size) a->batch_size = training.usual_batch();
  a->trainer.schedule.peak = *rate;
  a->trainer.batch_size = *a->batch_size;
}

void print_resumed(const FitArguments& a, const TrainingPosition& position, const std::vector<std::string>& changes) {
  if (a.json) return print(nlohmann::ordered_json{{"resumed", position.step}, {"changes", changes}}.dump() + "\n");
  std::string text = concat("resumed from last.onnx at step ", position.step, "\n");
  for (const std::string& change : changes) text += wrap(concat("changed: ", change), text_width(), 2, 2) + "\n";
  print(text);
}

// One pass over the data before the first step, unless this run made it already.
void check_data(const FitArguments& a, const Dataset& data, const std::string& path, const std::string& entry,
                const Session& session, std::vector<std::string>* checked) {
  if (a.no_data_check) return;
  const std::string& identity = data.fingerprint();
  if (std::count(checked->begin(), checked->end(), identity) > 0) return;
  const std::string fault = DataCheck(&data, session.model(), entry).first_fault();
  if (!fault.empty()) fail(path, ": ", fault, " (--no-data-check trains on it nevertheless)");
  checked->push_back(identity);
}

// The samples to train on, and those to evaluate on. The session's model keeps what the training data say.
SelectedData load(const FitArguments& a, Session* session, DataNotes* notes) {
  ReadOptions options{a.reading, DataRole::kTrain, {}, {}};
  const Dataset all = load_dataset(a.data, session->model(), training_entry(*session), options, notes);
  session->set_metadata(kPreprocess, all.preprocess().json());
  for (const auto& [key, value] : all.metadata()) session->set_metadata(key, value);
  // The model says by now how its data are preprocessed.
  options.scales.clear();
  options.preprocess.clear();
  options.augment.clear();
  std::optional<Dataset> evaluation;
  DataNotes hints;
  if (!a.eval_data.empty()) {
    options.role = DataRole::kEvaluate;
    evaluation.emplace(load_dataset(a.eval_data, session->model(), "evaluate", options, &hints));
    if (!a.reading.says_how()) notes->insert(notes->end(), hints.begin(), hints.end());
  } else if (splits(a.trainer.samples)) {
    evaluation.emplace(load_dataset(a.data, session->model(), "evaluate", options, &hints));
  }
  SelectedData selected =
      select_samples(all, evaluation ? &*evaluation : nullptr, a.trainer.samples, a.trainer.seed, a.batch_size);
  if (!a.eval_data.empty()) selected.evaluation = std::move(evaluation);
  return selected;
}

// Trains, and writes metrics as they come.
StopReason train_and_log(const FitArguments& a, Trainer* trainer) {
  const int64_t step = trainer->position().step;
  MetricsLog log(a.trainer.folder, step);
  std::vector<MetricsSink*> sinks = {&log};
  std::optional<TensorBoardLog> tensorboard;
  if (a.tensorboard) sinks.push_back(&tensorboard.emplace(a.trainer.folder, step));
  Progress progress(*trainer, sinks, a.json);
  const StopReason reason = trainer->run(&progress, catch_interrupts());
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
int train(const FitArguments& a, const Session& session, const std::vector<std::string>& checked,
          const MemoryRows& memory, Trainer* trainer) {
  prepare_folder(a.trainer.folder);
  write_file(a.trainer.folder + "/options.json",
             options_to_json(a.described, derived_options(session, *trainer, checked, memory)));
  StopReason reason;
  try {
    reason = train_and_log(a, trainer);
  } catch (const Error&) {
    report_run(a.trainer.folder);
    throw;
  }
  report_run(a.trainer.folder);
  if (!a.json) print_outcome(a, reason, *trainer);
  return reason == StopReason::kInterrupted ? kInterruptedStatus : 0;
}

int run(FitArguments* a) {
  const bool resumes = finds_run(*a);
  if (!resumes) check_usage(a);
  Start start = resumes ? start_where_it_stopped(*a) : start_anew(*a);
  if (start.position) {
    adopt_settings(a, start.position->settings);
    check_usage(a);
    start.model = in_precision(std::move(start.model), a->dtype);
  }
  Session session(std::move(start.model), session_options(a->runtime));
  if (!checkpoint_position(session.model())) initialize(*a, &session);
  DataNotes notes;
  const SelectedData loaded = load(*a, &session, &notes);
  const Dataset& training = loaded.training;
  const std::optional<Dataset>& evaluation = loaded.evaluation;
  a->reading.scales = {training.preprocess().option()};  // as options.json says
  a->reading.preprocess = training.preprocess().steps_option();
  resolve_defaults(a, session.model(), training);
  a->trainer.model = start.identity;
  Trainer trainer(&session, &training, evaluation ? &*evaluation : nullptr, a->trainer);
  std::vector<std::string> changes, checked;
  if (start.position) {
    changes = trainer.resume(*start.position);
    checked = checked_data(a->trainer.folder);
  }
  check_data(*a, training, a->data, training_entry(session), session, &checked);
  if (evaluation) {
    check_data(*a, *evaluation, a->eval_data.empty() ? a->data : a->eval_data, "evaluate", session, &checked);
  }
  MemoryRows memory;
  const std::string banner = training_banner(&session, training, evaluation ? &*evaluation : nullptr, trainer, &memory);
  if (!a->json) print(banner);
  print_notes(notes);
  if (start.position) print_resumed(*a, *start.position, changes);
  if (a->dry_run) {
    check_writable(a->trainer.folder);
    a->trainer.folder.clear();
    Trainer rehearsal(&session, &training, evaluation ? &*evaluation : nullptr, a->trainer);
    if (start.position) rehearsal.resume(*start.position);
    print(rehearse(&rehearsal, a->json));
    return 0;
  }
  return train(*a, session, checked, memory, &trainer);
}

std::vector<CommandOption> options_of(FitArguments* a) {
  TrainerOptions& t = a->trainer;
  return with_runtime_options(
      {
          {"MODEL", &a->model, "the training model, from onnx-train build", "FILE", true},
          {"--data", &a->data,
           "X.npz, X.safetensors, X.csv, a folder of .npy files, MNIST (a folder, or IMAGES,LABELS), CIFAR-10 (a "
           "folder, or X.bin), or pictures in a folder for each class, or with boxes in X.json (COCO); for models of "
           "tokens X.bin, X.npy, X.txt, X.jsonl, or "
           "several: 'DIR/train_*.bin'",
           "PATH", true},
          {"--eval-data", &a->eval_data, "data to evaluate on after each epoch, and at the end", "PATH"},
          {"--eval-every", {&t.eval_every, kCount}, "evaluate every N steps instead of after each epoch", "N"},
          {"--out", {&t.folder, check_folder}, "the run's folder [run]", "DIR"},
          {"--epochs", {&t.epochs, kCount}, "passes over the data", "N"},
          {"--steps", {&t.steps, kCount}, "optimizer steps; with --epochs, whichever ends first", "N"},
          {"--time-limit",
           {&a->time_limit, [](const std::string& text) { parse_duration(text); }},
           "stop after this time: 90s, 15m, 2h",
           "TIME"},
          {"--batch-size", {&a->batch_size, kCount}, "samples at a time [the model's, if it is fixed, else 32]", "N"},
          {"--accumulate", {&t.accumulate, kCount}, "batches in a step, for models built with --accumulate [1]", "N"},
          {"--clip", {&t.clip_norm, kPositive}, "clip the gradient's global norm at this [as built]", "NORM"},
          {"--seed", &a->seed, "of the data order [0], and of dropout and drawn weights [as built]", "N"},
          {"--no-shuffle", &a->no_shuffle, "take the samples in their order"},
          scale_option(&a->reading.scales),
          preprocess_option(&a->reading.preprocess),
          {"--augment", &a->reading.augment,
           "random changes of pictures, such as 'random_resized_crop, flip, jitter(0.4)' (docs/data.md)", "STEPS"},
          {"--no-data-check", &a->no_data_check,
           "no pass over the data, before the first step, for labels and indices out of range, NaN and infinity"},
          {"--best", &t.best, "the metric that best.onnx and --early-stop follow, such as accuracy [loss]", "METRIC"},
          {"--early-stop", {&t.early_stop, kCount}, "stop after N evaluations without a better one", "N"},
          {"--checkpoint-every",
           {&t.checkpoint_every, kCount},
           "write last.onnx every N steps, not only after epochs",
           "N"},
          {"--resume", &a->resume,
           "go on from last.onnx in the run's folder, if there is one; what is not given stays as it was"},
          {"--overwrite", &a->overwrite, "start anew in a folder that holds a run"},
          {"--dtype",
           &a->dtype,
           "float64 trains in double precision, to verify with [float32]",
           "TYPE",
           false,
           {"float32", "float64"}},
          {"--json", &a->json, "one JSON object a step instead of text"},
          {"--tensorboard", &a->tensorboard, "write the metrics to RUN/tensorboard, too, for TensorBoard"},
          {"--dry-run", &a->dry_run,
           "check options, model, data and memory, time a step, say how long the training takes, and write nothing"},
          config_option(&a->config),
      },
      &a->runtime, &a->reading, &t.samples);
}

// Those of the learning rate follow each other, before the one of clipping.
std::vector<CommandOption> with_schedule_options(std::vector<CommandOption> options, ScheduleSettings* settings) {
  const auto clip = std::find_if(options.begin(), options.end(), [](const auto& o) { return o.names == "--clip"; });
  const std::vector<CommandOption> schedule = schedule_options(settings);
  options.insert(clip, schedule.begin(), schedule.end());
  return options;
}

}  // namespace

Subcommand fit_command() {
  auto a = std::make_shared<FitArguments>();
  a->trainer.folder = "run";
  a->described = with_schedule_options(options_of(a.get()), &a->schedule);
  return {"fit",
          "Train a training model on data",
          "  onnx-train fit train.onnx --data train.npz --eval-data test.npz --epochs 10 --batch-size 64\n"
          "  onnx-train fit train.onnx --data mnist/ --eval-data mnist/ --scale 1/255 --epochs 5 --lr 3e-4 "
          "--schedule cosine --warmup 100 --out runs/mnist\n"
          "  onnx-train fit train.onnx --data mnist/ --scale 1/255 --epochs 5 --out runs/mnist --resume",
          a->described,
          [a] { return run(a.get()); },
          a->given};
}

}  // namespace onnx_train
