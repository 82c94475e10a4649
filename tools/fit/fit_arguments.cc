#include "tools/fit/fit_arguments.h"

#include <algorithm>
#include <filesystem>

#include "kernels/device.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/metrics/metrics.h"
#include "runtime/data/images/augment.h"
#include "runtime/data/selection.h"
#include "runtime/report_text.h"
#include "tools/config.h"
#include "tools/run_report/report_page.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

// A run leaves several files, so that the name of one is a mistake.
void check_folder(const std::string& text) {
  const std::string suffix = fs::path(text).extension().string();
  for (const char* kind : {".onnx", ".npz", ".npy", ".csv", ".safetensors", ".pt", ".pth", ".ckpt"}) {
    if (suffix == kind) fail("the name of a folder, in which the trained model is best.onnx");
  }
}

}  // namespace

void check_usage(FitArguments* a) {
  TrainerOptions& o = a->trainer;
  o.shuffle = !a->no_shuffle;
  o.seed = static_cast<uint64_t>(a->seed.value_or(0));
  o.time_limit = parse_duration(a->time_limit);
  o.schedule = resolve(a->schedule, Schedule().peak);
  if (o.epochs == 0 && o.steps == 0 && o.time_limit == 0) {
    throw UsageError("fit needs an end: give --epochs, --steps or --time-limit");
  }
  if (a->tui) expect_reports("--tui");
  if (a->tensorboard) expect_reports("--tensorboard");
  if (a->tui && a->json) throw UsageError("--tui is for people, --json for programs; leave out one of them");
  if (a->given->count("lr") > 0 && !o.schedule.curve.file.empty()) {
    throw UsageError("a table of rates holds the rates themselves; leave out --lr");
  }
  if (!a->memory_limit.empty() && !a->find_batch && !a->resume) {
    throw UsageError("--memory-limit is the limit of --batch-size auto; --memory is one of activations");
  }
  if (a->find_batch && o.samples.overfit_batches > 0) {
    throw UsageError("--overfit-batches needs to know the size of a batch: give --batch-size as a number");
  }
  check_samples(o.samples, !a->eval_data.empty());
  o.recorded = fixed_settings(data_options(&a->reading));
  for (const Setting& setting : fixed_settings(sample_options(&o.samples))) o.recorded.push_back(setting);
  for (const Setting& setting : fixed_settings({tta_option(&a->runtime)})) o.recorded.push_back(setting);
}

namespace {

std::vector<std::string> best_words() {
  std::vector<std::string> words = metric_names();
  words.insert(words.begin(), "loss");
  return words;
}

// Those of the data and the model, and of the training.
std::vector<CommandOption> options_of(FitArguments* a) {
  TrainerOptions& t = a->trainer;
  return with_runtime_options(
      {
          {"MODEL", &a->model,
           "the training model, from onnx-train build; or a forward model, which is built with defaults first", "FILE",
           true},
          {"--data", &a->data,
           "X.npz, X.safetensors, X.csv, a folder of .npy files, MNIST (a folder, or IMAGES,LABELS), CIFAR-10 (a "
           "folder, or X.bin), or pictures in a folder for each class, or with boxes in X.json (COCO); for models of "
           "tokens X.bin, X.npy, X.txt, X.jsonl, or several: 'DIR/train_*.bin', 'X.bin:0.7,Y.bin:0.3'",
           "PATH", true},
          {"--eval-data", &a->eval_data, "data to evaluate on after each epoch, and at the end", "PATH"},
          {"--eval-every", {&t.eval_every, kCount}, "evaluate every N steps instead of after each epoch", "N"},
          {"--out", {&t.folder, check_folder}, "the run's folder [run]", "DIR"},
          {"--epochs", {&t.epochs, kCount}, "passes over the data", "N"},
          {"--steps", {&t.steps, kCount}, "optimizer steps; with --epochs, whichever ends first", "N"},
          {"--time-limit", {&a->time_limit, check_duration}, "stop after this time: 90s, 15m, 2h", "TIME"},
          {"--batch-size", OptionTarget(&a->batch_size, kCount).or_auto(&a->find_batch),
           "samples at a time; auto: as many as fit in memory, found from plans [the model's, if it is fixed, else 32]",
           "N"},
          {"--memory-limit",
           {&a->memory_limit, check_bytes},
           "--batch-size auto: of the process, on a GPU of its memory there [what is available, less a reserve]",
           "SIZE"},
          {"--accumulate",
           {&t.accumulate, kCount},
           "batches in a step, for forward models and those built with --accumulate; several processes share them out "
           "[1, or the number of processes]",
           "N"},
          {"--devices",
           &a->devices,
           "train with one process for each of these, such as cpu,cpu; or start the processes with torchrun, mpirun or "
           "srun (docs/distributed.md)",
           "NAME,...",
           false,
           {},
           Device::names},
          {"--elastic", &a->elastic,
           "with --devices: where a process is killed, go on with the others from the last checkpoint"},
          {"--transport",
           &a->transport,
           "what carries what several processes exchange; auto: mpi where mpirun has started them and there is a "
           "module for its MPI, else tcp [auto]",
           "NAME",
           false,
           {"auto", "tcp", "mpi"}},
          {"--sync-batch-norm", &a->sync_batch_norm,
           "several processes: batch normalization over their batches as over one; the number of processes then "
           "matters"},
          {"--zero",
           {&a->zero, Range{0, false, 2}},
           "several processes keep one copy of the optimizer's states (1), and of the sums of gradients (2), together "
           "[0]",
           "STAGE"},
          {"--pipeline",
           {&a->pipeline, kCount},
           "several processes: each has a stage of the model, of as many layers as take about the same time, and the "
           "batches of a step go through all of them [1]",
           "STAGES"},
          {"--clip", {&t.clip_norm, kPositive}, "clip the gradient's global norm at this [as built]", "NORM"},
          {"--seed", &a->seed, "of the data order [0], and of dropout and drawn weights [as built]", "N"},
          {"--no-shuffle", &a->no_shuffle, "take the samples in their order"},
          scale_option(&a->reading.scales),
          preprocess_option(&a->reading.preprocess),
          {"--augment",
           &a->reading.augment,
           "random changes of pictures, such as 'random_resized_crop, flip, jitter(0.4)' (docs/data.md)",
           "STEPS",
           false,
           {},
           augment_step_names},
          tta_option(&a->runtime),
          {"--no-data-check", &a->no_data_check,
           "no pass over the data, before the first step, for labels and indices out of range, NaN and infinity"},
          {"--best",
           &t.best,
           "the metric that best.onnx and --early-stop follow, such as accuracy [loss]",
           "METRIC",
           false,
           {},
           best_words},
          {"--early-stop", {&t.early_stop, kCount}, "stop after N evaluations without a better one", "N"},
          {"--stop-at",
           {&t.stop_at, check_stop_target},
           "stop after the first evaluation with METRIC>=X or METRIC<=X, such as 'accuracy>=0.94'",
           "TARGET"},
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
          {"--tui", &a->tui,
           "show curves, rates and memory on the whole terminal while it trains; q stops as Ctrl-C does"},
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

// Of build's options, those with which most forward models are built. The others are for `build`.
std::vector<CommandOption> options_of_build(BuildSettings* settings) {
  return options_of_forward(settings, {"loss", "metric", "optimizer", "group", "precision", "ema", "batch", "head",
                                       "lora", "untie", "train", "freeze"});
}

}  // namespace

std::vector<CommandOption> fit_options(FitArguments* a) {
  std::vector<CommandOption> options = with_schedule_options(options_of(a), &a->schedule);
  const auto out = std::find_if(options.begin(), options.end(), [](const auto& o) { return o.names == "--out"; });
  const std::vector<CommandOption> build = options_of_build(&a->build);
  options.insert(out, build.begin(), build.end());
  return options;
}

std::vector<CommandOption> recorded_options(const FitArguments& a, bool is_built) {
  std::vector<CommandOption> recorded = a.described;
  if (is_built || a.has_recorded_build) return recorded;
  BuildSettings settings;
  for (const CommandOption& option : options_of_build(&settings)) {
    const std::string key = key_of(option);
    if (a.given->count(key) == 0) std::erase_if(recorded, [&](const CommandOption& o) { return key_of(o) == key; });
  }
  return recorded;
}

std::vector<CommandOption> build_options_of(FitArguments* a) { return options_of_build(&a->build); }

std::string given_build_options(const FitArguments& a) {
  BuildSettings settings = a.build;
  std::string text;
  for (const CommandOption& option : options_of_build(&settings)) {
    if (a.given->count(key_of(option)) == 0) continue;
    for (const std::string& value : values_of(option))
      text += concat(text.empty() ? "" : " ", "--", key_of(option), " ", shell_quoted(value));
  }
  return text;
}

}  // namespace onnx_train
