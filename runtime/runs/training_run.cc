#include "runtime/runs/training_run.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "kernels/collectives.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/class_names.h"
#include "runtime/data/selection.h"
#include "runtime/generation/causality.h"
#include "runtime/runs/metrics_log.h"
#include "runtime/runs/resume.h"
#include "runtime/runs/same_start.h"
#include "runtime/runs/utilization.h"
#include "runtime/training/controls.h"

namespace onnx_train {
namespace {

// The least of all ranks' numbers, each above 0.
int64_t least_of_ranks(const Session& session, const std::string& what, int64_t number) {
  if (session.topology().ranks() == 1) return number;
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  const std::vector<uint32_t> all =
      session.topology().collectives()->gather(what, static_cast<uint32_t>(std::min(number, kMost)));
  return *std::min_element(all.begin(), all.end());
}

// Writes the metrics of a run, and passes everything on.
class LoggedEvents : public TrainerEvents {
 public:
  LoggedEvents(const Session& session, MetricsLog* log, TrainerEvents* next)
      : utilization_(session), log_(*log), next_(*next) {}

  void on_step(const StepReport& given) override {
    StepReport report = given;
    report.utilization = utilization_.of(given);
    log_.add(report);
    next_.on_step(report);
  }
  void on_evaluation(const EvaluationReport& report) override {
    log_.add(report);
    next_.on_evaluation(report);
  }
  void on_note(const std::string& text) override { next_.on_note(text); }
  void on_checkpoint(const std::string& path) override { next_.on_checkpoint(path); }
  bool stop() const override { return next_.stop(); }

 private:
  Utilization utilization_;
  MetricsLog& log_;
  TrainerEvents& next_;
};

}  // namespace

void RunEvents::on_resumed(const TrainingPosition& /*position*/, const std::vector<std::string>& changes) {
  for (const std::string& change : changes) on_note("resumed, and changed: " + change);
}

TrainingRun::TrainingRun(Session* session, FitSettings* settings, TrainingData data, int local_ranks)
    : session_(*session), settings_(*settings), data_(std::move(data)), local_ranks_(local_ranks) {
  found_.bad_pictures = data_.training.dataset ? data_.training.dataset->left_out : 0;
  const bool has_own_files = data_.evaluation && !splits(settings->trainer.samples);
  if (has_own_files && data_.evaluation->dataset) found_.bad_pictures += data_.evaluation->dataset->left_out;
}

void TrainingRun::resume(TrainingPosition position, std::function<void()> restore) {
  position_ = std::move(position);
  restore_ = std::move(restore);
  checked_ = checked_data(settings_.trainer.folder);
}

void TrainingRun::prepare(RunEvents* events, const std::atomic<bool>& interrupt) {
  TrainerOptions& options = settings_.trainer;
  // Rank 0 writes what a run writes, but for shards of its checkpoints.
  if (session_.topology().rank() > 0) options.shard_folder = std::exchange(options.folder, "");
  if (!settings_.schedule.rate) options.schedule.peak = built_rate(session_.model());
  find_batch(events);
  std::vector<std::string> changes;
  trainer_ = make_trainer(&changes);
  check_data();
  if (restore_) restore_();
  expect_same_start(session_, *trainer_);
  find_rate(events, interrupt);
  settings_.schedule.rate = options.schedule.peak;
  if (position_) events->on_resumed(*position_, changes);
}

void TrainingRun::find_batch(RunEvents* events) {
  const Dataset* const dataset = data_.training.dataset ? &*data_.training.dataset : nullptr;
  if (settings_.find_batch) {
    if (!dataset)
      throw UsageError("--batch-size auto is for arrays and files; batches of the program are what they are");
    const Dataset* const evaluation =
        data_.evaluation && data_.evaluation->dataset ? &*data_.evaluation->dataset : nullptr;
    FoundBatch found = find_largest_batch(
        &session_, {*dataset, evaluation, parse_bytes(settings_.memory_limit),
                    /*copies=*/!settings_.trainer.folder.empty(), local_ranks_, settings_.trainer.accumulate});
    found.batch = least_of_ranks(session_, "the largest batch", found.batch);
    settings_.batch_size = found.batch;
    events->on_batch(found);
    found_.batch = std::move(found);
  }
  if (!settings_.batch_size) settings_.batch_size = dataset ? dataset->usual_batch() : kUsualBatch;
  settings_.trainer.batch_size = *settings_.batch_size;
}

std::unique_ptr<Trainer> TrainingRun::make_trainer(std::vector<std::string>* changes) {
  const TrainerOptions& options = settings_.trainer;
  auto evaluation = data_.evaluation ? data_.evaluation->for_evaluation(session_, options.batch_size) : nullptr;
  auto trainer = std::make_unique<Trainer>(&session_, data_.training.for_training(session_, options),
                                           std::move(evaluation), options);
  if (position_) *changes = trainer->resume(*position_);
  return trainer;
}

// Ranks have the same data, of which one looks at all.
void TrainingRun::check_data() {
  if (settings_.no_data_check || session_.topology().rank() > 0) return;
  const size_t before = checked_.size();
  data_.training.check(session_, training_entry(session_), &checked_);
  // What is predicted takes all ranks.
  if (checked_.size() > before && session_.topology().ranks() == 1) {
    const std::string fault = seen_labels(&session_, *data_.training.dataset, training_entry(session_));
    if (!fault.empty())
      fail_as(ErrorCode::kData, data_.training.name, ": ", fault, " (--no-data-check leaves this check out)");
  }
  if (data_.evaluation) data_.evaluation->check(session_, Entry::kEvaluate, &checked_);
}

void TrainingRun::find_rate(RunEvents* events, const std::atomic<bool>& interrupt) {
  if (!settings_.schedule.find_rate) return;
  // A rank whose loss becomes infinite in the test leaves it, where the others wait for it.
  if (session_.topology().ranks() > 1)
    throw UsageError("--lr auto is for one process; run it on one, and give its result");
  if (!data_.training.dataset || data_.training.stream)
    throw UsageError(
        "--lr auto is for arrays and files, which can be read again; batches of the program, and streams, are not");
  events->on_rate_search();
  TrainerOptions& options = settings_.trainer;
  FoundRate found = onnx_train::find_rate(&session_, data_.training.for_training(session_, options), options,
                                          built_rate(session_.model()), interrupt);
  options.schedule.peak = found.rate;
  events->on_rate(found);
  found_.rate = std::move(found);
  std::vector<std::string> changes;
  trainer_ = make_trainer(&changes);
}

std::unique_ptr<Trainer> TrainingRun::rehearsal() {
  settings_.trainer.folder.clear();
  settings_.trainer.shard_folder.clear();
  std::vector<std::string> changes;
  return make_trainer(&changes);
}

void TrainingRun::open_folder(RunLock lock) {
  const std::string& folder = settings_.trainer.folder;
  if (folder.empty()) return;
  lock_ = std::move(lock);
  if (!lock_.is_held()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) prepare_folder(folder);  // which says it
    lock_ = RunLock(folder);
    // Another run may have begun, and ended, since this one looked.
    if (finds_run(settings_)) throw UsageError(folder + " holds a run that has begun meanwhile; start again");
  }
  prepare_folder(folder);
}

void TrainingRun::write_options(const std::vector<CommandOption>& options, const MemoryRows& memory) const {
  const std::string& folder = settings_.trainer.folder;
  if (folder.empty()) return;
  onnx_train::write_options(folder, options, session_, *trainer_, checked_, memory, found_);
}

StopReason TrainingRun::train(TrainerEvents* events, const std::atomic<bool>& interrupt) {
  const std::string& folder = settings_.trainer.folder;
  std::optional<MetricsLog> log;
  std::optional<LoggedEvents> logged;
  if (!folder.empty()) {
    log.emplace(folder, trainer_->position().step, classes_from_json(session_.model().metadata(kClassNames)),
                step_metrics(session_.model()));
    logged.emplace(session_, &*log, events);
  }
  return trainer_->run(logged ? &*logged : events, interrupt);
}

}  // namespace onnx_train
