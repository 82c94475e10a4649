#include "runtime/runs/fit_settings.h"

#include <filesystem>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/metrics/metrics.h"
#include "runtime/training/stop_target.h"

namespace onnx_train {
namespace {

// A run leaves several files, so that the name of one is a mistake.
void check_folder(const std::string& text) {
  const std::string suffix = std::filesystem::path(text).extension().string();
  for (const char* kind : {".onnx", ".npz", ".npy", ".csv", ".safetensors", ".pt", ".pth", ".ckpt"}) {
    if (suffix == kind) fail("the name of a folder, in which the trained model is best.onnx");
  }
}

std::vector<std::string> best_words() {
  std::vector<std::string> words = metric_names();
  words.insert(words.begin(), "loss");
  return words;
}

}  // namespace

std::vector<CommandOption> training_options(FitSettings* s) {
  TrainerOptions& t = s->trainer;
  const std::vector<CommandOption> options = {
      of_command(
          {"--data", &s->data,
           "X.npz, X.safetensors, X.csv, X.libsvm, a folder of .npy files, MNIST (a folder, or IMAGES,LABELS), "
           "CIFAR-10 (a folder, or X.bin), or pictures in a folder for each class, or with boxes in X.json (COCO); for "
           "models of tokens X.bin, X.npy, X.txt, X.jsonl, or several: 'DIR/train_*.bin', 'X.bin:0.7,Y.bin:0.3'",
           "PATH", true}),
      of_command({"--eval-data", &s->eval_data, "data to evaluate on after each epoch, and at the end", "PATH"}),
      {"--eval-every", {&t.eval_every, kCount}, "evaluate every N steps instead of after each epoch", "N"},
      {"--out", {&t.folder, check_folder}, "the run's folder [run]", "DIR"},
      {"--epochs", {&t.epochs, kCount}, "passes over the data", "N"},
      {"--steps", {&t.steps, kCount}, "optimizer steps; with --epochs, whichever ends first", "N"},
      {"--time-limit", {&s->time_limit, check_duration}, "stop after this time: 90s, 15m, 2h", "TIME"},
      {"--batch-size", OptionTarget(&s->batch_size, kCount).or_auto(&s->find_batch),
       "samples at a time; auto: as many as fit in memory, found from plans [the model's, if it is fixed, else 32]",
       "N"},
      {"--memory-limit",
       {&s->memory_limit, check_bytes},
       "--batch-size auto: of the process, on a GPU of its memory there [what is available, less a reserve]",
       "SIZE"},
      {"--accumulate",
       {&t.accumulate, kCount},
       "batches in a step, for forward models and those built with --accumulate; several processes share them out "
       "[1, or the number of processes]",
       "N"},
      {"--clip", {&t.clip_norm, kPositive}, "clip the gradient's global norm at this [as built]", "NORM"},
      {"--seed", &s->seed, "of the data order [0], and of dropout and drawn weights [as built]", "N"},
      {"--no-shuffle", &s->no_shuffle, "take the samples in their order"},
      scale_option(&s->reading.scales),
      preprocess_option(&s->reading.preprocess),
      augment_option(&s->reading.augment),
      {"--no-data-check", &s->no_data_check,
       "no pass over the data, before the first step, for labels and indices out of range, NaN and infinity"},
      {"--best",
       &t.best,
       "the metric that best.onnx and --early-stop follow, such as accuracy [loss]",
       "METRIC",
       false,
       {},
       best_words},
      {"--early-stop", {&t.early_stop, kCount}, "stop after N evaluations without a better one", "N"},
      {"--min-delta",
       {&t.min_delta, kPositive},
       "with --early-stop: by how much an evaluation must be better to count as a better one [0]",
       "X"},
      {"--stop-at",
       {&t.stop_at, check_stop_target},
       "stop after the first evaluation with METRIC>=X or METRIC<=X, such as 'accuracy>=0.94'",
       "TARGET"},
      {"--checkpoint-every",
       {&t.checkpoint_every, kCount},
       "write last.onnx every N steps, not only after epochs",
       "N"},
      {"--checkpoint-shards",
       &t.checkpoint_shards,
       "several processes: each writes its part of a checkpoint into a file of its own beside last.onnx (on), or one "
       "process collects and writes all (off); auto: on where --zero or --pipeline shares out states that one file "
       "cannot hold, 2 GiB [auto]",
       "WHEN",
       false,
       {"auto", "on", "off"}},
      {"--checkpoint-base",
       &t.checkpoint_base.when,
       "frozen weights: checkpoints refer to the training model's file, which they then need (refer), or hold them, "
       "too "
       "(whole); auto: refer where they are most of a checkpoint, and 16 MiB or more [auto]",
       "WHEN",
       false,
       {"auto", "refer", "whole"}},
      {"--resume", &s->resume,
       "go on from last.onnx in the run's folder, if there is one; what is not given stays as it was, and --config "
       "OUT/options.json gives model and data, too"},
      {"--overwrite", &s->overwrite, "start anew in a folder that holds a run"},
      of_library({"--wait-for-steps", &t.wait_for_steps,
                  "each step is complete before the next one starts, so that callbacks may use the session"}),
  };
  return inserted_before("clip", options, schedule_options(&s->schedule));
}

void complete(FitSettings* s, double built_rate) {
  TrainerOptions& t = s->trainer;
  t.shuffle = !s->no_shuffle;
  t.seed = static_cast<uint64_t>(s->seed.value_or(0));
  t.time_limit = parse_duration(s->time_limit);
  t.schedule = resolve(s->schedule, built_rate);
  if (t.epochs == 0 && t.steps == 0 && t.time_limit == 0)
    throw UsageError("a training needs an end: give --epochs, --steps or --time-limit", ErrorCode::kMissingOption);
  if (s->given->count("lr") > 0 && !t.schedule.curve.file.empty())
    throw UsageError("a table of rates holds the rates themselves; leave out --lr");
  if (!s->memory_limit.empty() && !s->find_batch && !s->resume)
    throw UsageError("--memory-limit is the limit of --batch-size auto; --memory is one of activations");
  if (t.min_delta > 0 && t.early_stop == 0 && !s->resume)
    throw UsageError("--min-delta is what --early-stop takes for a better evaluation: give --early-stop, too");
  if (s->find_batch && t.samples.overfit_batches > 0)
    throw UsageError("--overfit-batches needs to know the size of a batch: give --batch-size as a number");
}

}  // namespace onnx_train
