// Trains a session's model on the batches of a data source: learning rates, evaluations, checkpoints. It contains no
// mathematics; that is all in the model.
//
// Evaluations take place after each epoch, or every `eval_every` steps instead, and at the end unless the training is
// interrupted. The run folder receives `last.onnx` (at the start, every `checkpoint_every` steps, after each epoch, at
// the end) and `best.onnx` (the evaluation with the lowest loss, or with the best value of another metric, if any is
// finite: on the evaluation data, or the mean training loss since the previous evaluation if there are none; an
// interrupted training without an evaluation stores its last state). A training that is interrupted and resumed gives
// the same bytes as one that is not. Checkpoints are written in the background (checkpoint_writer.h), of several ranks
// by rank 0 or by all. The caller owns the trainer and uses it from one thread at a time; any thread may set
// `interrupt`.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "onnx_passes/ir/error.h"
#include "runtime/data/data_options.h"
#include "runtime/data/loading/batch_source.h"
#include "runtime/session/session.h"
#include "runtime/support/run_settings.h"
#include "runtime/training/checkpoint_writer.h"
#include "runtime/training/evaluation.h"
#include "runtime/training/means.h"
#include "runtime/training/schedule.h"
#include "runtime/training/stop_target.h"

namespace onnx_train {

struct TrainerOptions {
  int64_t epochs = 0;     // 0: no limit
  int64_t steps = 0;      // 0: no limit; counted from the beginning, also after resuming
  double time_limit = 0;  // seconds of this run; 0: no limit
  int64_t batch_size = 32;
  int64_t accumulate = 1;           // batches per step; more than 1 needs a model built to accumulate gradients
  Schedule schedule;                // the trainer sets `total`
  std::optional<double> clip_norm;  // replaces the model's own
  bool shuffle = true;
  uint64_t seed = 0;              // of the data order
  int64_t checkpoint_every = 0;   // steps; 0: after epochs only
  int64_t eval_every = 0;         // steps; 0: after epochs
  int64_t early_stop = 0;         // evaluations without a better `best` before the training stops; 0: never
  double min_delta = 0;           // by how much an evaluation must be better for early_stop to start counting again
  std::string best = "loss";      // what the best evaluation is best in, and early_stop follows
  std::string stop_at;            // "accuracy>=0.94": the evaluation that ends the training (stop_target.h); "": none
  SampleOptions samples;          // of a dataset that is selected already: how batches are cut
  std::vector<Setting> recorded;  // further settings that the run records
  std::string folder;             // of the checkpoints; empty: no checkpoints, or this is a rank above 0
  std::string shard_folder;       // of a rank above 0: the same folder, for its shards
  std::string checkpoint_shards = "auto";  // CheckpointWriter
  BaseOptions checkpoint_base;             // CheckpointBase
  std::string model;                       // identity of the model that the run starts from: fingerprint.h
  bool wait_for_steps = false;  // each step is complete before the next one starts, so that events may use the session
};

struct StepReport {
  int64_t step;        // counted from 1
  int64_t epoch;       // counted from 1
  int64_t samples;     // in this step
  int64_t tokens = 0;  // of these samples, of a model that reads texts; 0: of another one
  // What the products and convolutions of this rank have computed, by the operands' element type (kernels/cost.h).
  std::map<DType, double> operations = {};
  std::optional<double> utilization = {};  // runtime/runs/utilization.h
  double loss;
  double learning_rate;
  std::optional<double> accuracy;
  double grad_norm;
  double milliseconds;
  std::optional<double> loss_scale = {};  // of a model with loss scaling
  bool skipped = false;                   // with loss scaling: the gradients overflow, the weights stay as they are
  std::map<std::string, double> metrics = {};  // what the loss computes besides: "rewards/margins"
};

struct EvaluationReport {
  int64_t epoch;  // of the step, counted from 1
  int64_t step;
  double train_loss;    // over all that counts since the previous evaluation; for a loss that sums, the mean of a step
  Metrics evaluation;   // empty without evaluation data
  MetricTables tables;  // what its metrics say by class
  bool best;            // the best so far, in TrainerOptions::best
};

// Callbacks of a training.
class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  virtual void on_step(const StepReport&) {}
  virtual void on_evaluation(const EvaluationReport&) {}
  virtual void on_note(const std::string& /*text*/) {}        // something unusual that the run goes on from
  virtual void on_checkpoint(const std::string& /*path*/) {}  // when its writing starts
  virtual bool stop() const { return false; }                 // asked after each step; true ends the training
};

enum class StopReason { kFinished, kInterrupted, kEarlyStop, kTimeLimit, kStopped, kTarget };

class Trainer {
 public:
  // `evaluation` may be null. The session must outlive the trainer. Throws Error when the options do not fit the model
  // or the data. A source makes its own batches: `batch_size`, `seed` and `shuffle` are only recorded.
  Trainer(Session* session, std::unique_ptr<BatchSource> training, std::unique_ptr<BatchSource> evaluation,
          const TrainerOptions& options);
  // The same for datasets, which must outlive the trainer.
  Trainer(Session* session, const Dataset* training, const Dataset* evaluation, const TrainerOptions& options);

  // Waits for the runs that a failure left unfinished.
  ~Trainer();

  // Continues at the position of a checkpoint whose state the session holds. Returns the settings that have changed, in
  // the format of run_settings.h. Throws Error that names every setting that must not change.
  std::vector<std::string> resume(const TrainingPosition& position);

  // Runs until a limit is reached or `interrupt` is set, which stops after the current step. On a device that works
  // asynchronously, a step is started before the previous one is finished and reported, so that the device does not
  // wait for the host. Throws Error that names the samples of the step when the step rejects its data, and when the
  // loss or the gradient norm is not finite and no loss scaling skips the update, or skips one after the other without
  // end; `last.onnx` then contains the last saved state.
  StopReason run(TrainerEvents* events, const std::atomic<bool>& interrupt);

  double seconds() const { return seconds_; }               // that `run` took, evaluations included
  int64_t skipped_steps() const { return skipped_steps_; }  // of this run, StepReport::skipped
  const TrainingPosition& position() const { return position_; }
  size_t checkpoint_bytes() const { return options_.folder.empty() ? 0 : checkpoints_.copy_bytes(); }  // of memory
  bool writes_shards() const { return checkpoints_.writes_shards(); }
  bool has_best() const { return position_.best || never_evaluated(); }  // whether best.onnx belongs to this run
  const TrainerOptions& options() const { return options_; }
  bool more_of_best_is_better() const { return more_is_better(session_.model(), options_.best); }
  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  int64_t total_steps() const;  // 0 when it is not known, or only time or the user ends the training

 private:
  // A run that the session has started and not yet finished: a batch, or the update from the gradients of several
  // batches.
  struct BatchRun {
    Entry entry;
    int64_t step, first_sample, samples;  // of the batch, in the epoch
    int64_t step_begin;                   // the first sample of the step
    double learning_rate;
    bool ends_step;
    std::vector<int64_t> batches;                 // the samples of each rank's batch; none for the update
    std::chrono::steady_clock::time_point start;  // of the step
    bool is_last_round = false;                   // of its step, as far as that is known
    int64_t tokens_of_sample = 0;
  };
  bool start_step(TrainerEvents* events);  // false: the epoch had no more batches
  void start_run(BatchRun run, const TensorMap& inputs, TrainerEvents* events);
  void finish_run(TrainerEvents* events);
  void finish_runs(int64_t step, TrainerEvents* events);                 // of all steps up to `step`
  bool evaluate_now(int64_t epoch, bool at_end, TrainerEvents* events);  // returns true for the best so far
  void note_once(const char* what, const std::string& text, TrainerEvents* events);
  void check_schedule();
  void check_metric(const std::string& metric, const char* wanted) const;
  void add_batch(const BatchRun& run, int64_t samples, const TensorMap& outputs, TrainerEvents* events);
  std::optional<StopReason> agree(std::optional<StopReason> reason);
  void report_step(const BatchRun& run, TrainerEvents* events);
  [[noreturn]] void refuse(const BatchRun& run, const Error& error) const;
  void check_finite(const BatchRun& run, const StepReport& report);
  bool may_skip(const StepReport& report);
  bool finished() const;
  bool never_evaluated() const { return !position_.best && !evaluated_ && position_.stale == 0; }
  bool epoch_ended() const;
  void save(bool best, bool last, bool at_end, TrainerEvents* events);

  Session& session_;
  std::unique_ptr<BatchSource> training_, evaluation_;
  TrainerOptions options_;
  CheckpointWriter checkpoints_;
  int64_t samples_per_epoch_ = 0, steps_per_epoch_ = 0;  // 0: not known
  DType scalar_type_ = DType::kFloat;                    // of the inputs with these roles:
  std::string learning_rate_, clip_norm_;                // their names
  TrainingPosition position_;
  int64_t source_epoch_ = -1;  // the epoch that the source is in
  bool source_ended_ = false;  // it said that this epoch has no more batches
  TensorMap inputs_;
  std::deque<BatchRun> runs_;  // that the session has started
  StepReport report_{};        // of the step whose runs are being finished
  LossMean loss_;              // over the finished runs of that step
  Mean accuracy_;
  std::map<std::string, Mean> metrics_;  // of the outputs in metric_outputs_, likewise
  std::vector<std::string> metric_outputs_;
  int64_t rows_of_sample_ = 1;
  std::optional<LossReader> reader_;  // of the entry point that reads the training data
  std::set<std::string> noted_;       // what on_note has been told
  bool evaluated_ = false;            // in this run
  bool reached_ = false;              // stop_at, by the last evaluation
  double seconds_ = 0;
  int64_t skipped_steps_ = 0, skipped_in_a_row_ = 0, skipped_with_scale_ = 0;  // in a row with one scale
  double scale_of_skipped_ = 0;                                                // of the last one
  std::chrono::steady_clock::time_point last_report_;
  std::vector<Setting> settings_;
};

// The names of the metrics that the loss computes in each step, in their order: rewards of pairs (loss/pairs.h).
std::vector<std::string> step_metrics(const Model& model);

// Model::training_entry_point. Throws Error if the model has none.
Entry training_entry(const Session& session);

}  // namespace onnx_train
