#include "tools/fit/outcome.h"

#include <filesystem>

#include "onnx_passes/ir/error.h"
#include "runtime/data/selection.h"
#include "runtime/support/report_text.h"
#include "runtime/training/metric_sums.h"
#include "tools/report/output.h"

namespace onnx_train {
namespace {

// "lower loss", "higher accuracy"; with an end of "est", "lowest loss".
std::string better_than(const Trainer& trainer, const char* end = "er") {
  const std::string& best = trainer.options().best;
  return concat(trainer.more_of_best_is_better() ? "high" : "low", end, " ", best);
}

std::string outcome(StopReason reason, const Trainer& trainer) {
  const std::string at = concat(" at step ", trainer.position().step);
  switch (reason) {
    case StopReason::kFinished: return "finished" + at;
    case StopReason::kInterrupted: return concat("interrupted", at, "; go on with --resume");
    case StopReason::kEarlyStop:
      return concat("stopped early", at, ": no ", better_than(trainer), " for ", trainer.position().stale,
                    " evaluations");
    case StopReason::kTarget:
      return concat("reached ", trainer.options().stop_at, at, " after ", format_duration(trainer.seconds()));
    case StopReason::kTimeLimit: return concat("stopped by the time limit", at);
    case StopReason::kStopped: break;
  }
  return "stopped" + at;
}

}  // namespace

// Without evaluation data the best state is that of the lowest training loss, which says nothing of other data.
void print_outcome(const FitArguments& a, StopReason reason, const Model& model, const Trainer& trainer, bool is_built,
                   int64_t bad_pictures) {
  const bool evaluates = !a.eval_data.empty() || splits(a.trainer.samples);
  std::string which = better_than(trainer, "est");
  which.insert(which.find(' ') + 1, evaluates ? "evaluation " : "training ");
  std::string text = outcome(reason, trainer);
  if (trainer.position().best) text += concat(", ", which, " ", format_number(*trainer.position().best));
  if (trainer.skipped_steps() > 0) {
    text += concat(", ", trainer.skipped_steps(), " updates skipped whose gradients overflowed in 16 bits");
  }
  if (bad_pictures > 0) {
    text += concat(", ", bad_pictures, bad_pictures == 1 ? " picture" : " pictures", " left out that cannot be read");
  }
  TextTable files("lw");
  const std::string best =
      trainer.position().best ? concat("the state with the ", which) : "the last state; nothing has been evaluated yet";
  if (trainer.has_best()) files.add({"best.onnx", best + (evaluates ? "" : " (without --eval-data)")});
  files.add({"last.onnx", "the last state"});
  if (trainer.writes_shards()) files.add({"step-*/", "the tensors of these checkpoints; copy them with their folder"});
  if (is_built) files.add({"train.onnx", "the training model before the first step"});
  files.add({"metrics.jsonl", "one line a step; metrics.csv, epochs.jsonl, options.json"});
  if (!MetricSums(model).empty()) files.add({"evaluation.json", "the metrics of the best evaluation, by class"});
  if (std::filesystem::is_regular_file(a.trainer.folder + "/report.html")) {
    files.add({"report.html", "curves, memory and options, for a browser"});
  }
  print(concat(wrap(text, text_width(), 0, 2), "\nin ", a.trainer.folder, ":\n", files.text(2, text_width())));
}

}  // namespace onnx_train
