// Trains a session's model on a dataset: batches in a seeded order, learning rates, evaluations, checkpoints. No
// mathematics: that is all in the model.
//
// Evaluations take place after each epoch, or every `eval_every` steps instead, and at the end, unless the training is
// interrupted. A run folder gets `last.onnx` (at the start, every `checkpoint_every` steps, after each epoch, at the
// end) and `best.onnx` (the evaluation with the lowest loss: on the evaluation's data, or the training mean since the
// evaluation before where there are none; an interrupted training without one leaves its last state there). A training
// that is interrupted and resumed gives the same bytes as one that is not. Checkpoints are written while training goes
// on (checkpoint_writer.h). One thread at a time; `interrupt` may be set from anywhere.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>

#include "runtime/checkpoint_writer.h"
#include "runtime/data_check.h"
#include "runtime/dataset.h"
#include "runtime/run_settings.h"
#include "runtime/schedule.h"
#include "runtime/session.h"

namespace onnx_train {

struct TrainerOptions {
  int64_t epochs = 0;     // 0: no limit
  int64_t steps = 0;      // 0: no limit; all counted from the beginning, also after resuming
  double time_limit = 0;  // seconds of this run; 0: no limit
  int64_t batch_size = 32;
  int64_t accumulate = 1;  // batches whose gradients make one step; more than 1 needs a model built to accumulate
  Schedule schedule;       // `total` is filled in
  std::optional<double> clip_norm;  // instead of the model's own
  bool shuffle = true;
  uint64_t seed = 0;             // of the data order
  int64_t checkpoint_every = 0;  // steps; 0: after epochs only
  int64_t eval_every = 0;        // steps; 0: after epochs
  int64_t early_stop = 0;        // evaluations without a lower loss after which to stop; 0: never
  std::string folder;            // of the checkpoints; empty: none are written
  std::string model;             // identity of the model that the run starts from: fingerprint.h
};

struct StepReport {
  int64_t step;     // counted from 1
  int64_t epoch;    // counted from 1
  int64_t samples;  // in this step
  double loss;
  double learning_rate;
  std::optional<double> accuracy;
  double grad_norm;
  double milliseconds;
};

using Metrics = std::map<std::string, double>;

struct EvaluationReport {
  int64_t epoch;  // of the step, counted from 1
  int64_t step;
  double train_loss;   // mean over the samples since the evaluation before
  Metrics evaluation;  // empty without evaluation data
  bool best;
};

// What a caller wants to hear of.
class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  virtual void on_step(const StepReport&) {}
  virtual void on_evaluation(const EvaluationReport&) {}
  virtual void on_checkpoint(const std::string& /*path*/) {}  // its writing begins
};

enum class StopReason { kFinished, kInterrupted, kEarlyStop, kTimeLimit };

class Trainer {
 public:
  // `evaluation` may be null. All outlive the trainer. Throws Error when the options and the model do not fit.
  Trainer(Session* session, const Dataset* training, const Dataset* evaluation, const TrainerOptions& options);

  // Goes on where a checkpoint stands whose state the session holds. Returns the settings that have changed since, as
  // run_settings.h writes them. Throws Error that names every setting that must not.
  std::vector<std::string> resume(const TrainingPosition& position);

  // Runs until a limit is met or `interrupt` is set, which ends it after the current step. Throws Error, with the
  // samples of the step, when it refuses its data, and when the loss or the gradient's norm is no longer finite;
  // `last.onnx` then holds the last state that was saved before.
  StopReason run(TrainerEvents* events, const std::atomic<bool>& interrupt);

  const TrainingPosition& position() const { return position_; }
  size_t checkpoint_bytes() const { return options_.folder.empty() ? 0 : checkpoints_.copy_bytes(); }  // of memory
  const TrainerOptions& options() const { return options_; }
  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  int64_t total_steps() const;  // 0 when only time or the user ends the training

 private:
  StepReport step();
  bool evaluate_now(int64_t epoch, bool at_end, TrainerEvents* events);  // true when it is the best so far
  void check_schedule();
  const TensorMap& run_batch(const std::string& entry, int64_t samples);
  void check_finite(const StepReport& report) const;
  bool finished() const;
  void save(bool best, bool last, bool at_end, TrainerEvents* events);

  Session& session_;
  const Dataset& training_;
  const Dataset* evaluation_;
  TrainerOptions options_;
  CheckpointWriter checkpoints_;
  DataCheck check_;  // says which sample it was when a step fails
  int64_t samples_per_epoch_ = 0, steps_per_epoch_ = 0;
  DType scalar_type_ = DType::kFloat;      // of the inputs with these roles:
  std::string learning_rate_, clip_norm_;  // their names
  TrainingPosition position_;
  std::vector<int64_t> order_;
  int64_t order_epoch_ = -1;  // the epoch that order_ is of
  int64_t step_begin_ = 0;    // the first sample of the last step, in order_
  TensorMap inputs_;
  std::vector<Setting> settings_;
};

// The entry point that reads the training data: "step", or "accumulate" in a model built to accumulate.
std::string training_entry(const Session& session);

// Runs `evaluate` over all samples, the last batch short if need be. Scalar outputs that are means are weighted by
// samples, sums are summed (metadata onnx_train.outputs says which they are).
Metrics evaluate(Session* session, const Dataset& data, int64_t batch_size);

}  // namespace onnx_train
