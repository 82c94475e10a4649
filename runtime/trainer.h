// Trains a session's model on a dataset: batches in a seeded order, learning rates, evaluations, checkpoints. No
// mathematics: that is all in the model.
//
// A run folder gets `last.onnx` (at the start, every `checkpoint_every` steps, after each epoch, at the end) and
// `best.onnx` (the epoch's end with the lowest loss: of the evaluation, or the training mean where there is none; a
// training that ends before its first epoch does leaves its last state there); they are written while training goes on
// (checkpoint_writer.h). A training that is interrupted and resumed gives the same bytes as one that is not. One thread
// at a time; `interrupt` may be set from anywhere.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>

#include "runtime/checkpoint_writer.h"
#include "runtime/dataset.h"
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
  int64_t early_stop = 0;        // epochs without a lower loss after which to stop; 0: never
  std::string folder;            // of the checkpoints; empty: none are written
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

struct EpochReport {
  int64_t epoch;  // counted from 1
  int64_t step;
  double train_loss;   // mean over the epoch's samples
  Metrics evaluation;  // empty without evaluation data
  bool best;
};

// What a caller wants to hear of.
class TrainerEvents {
 public:
  virtual ~TrainerEvents() = default;
  virtual void on_step(const StepReport&) {}
  virtual void on_epoch(const EpochReport&) {}
  virtual void on_checkpoint(const std::string& /*path*/) {}  // its writing begins
};

enum class StopReason { kFinished, kInterrupted, kEarlyStop, kTimeLimit };

class Trainer {
 public:
  // `evaluation` may be null. All outlive the trainer. Throws Error when the options and the model do not fit.
  Trainer(Session* session, const Dataset* training, const Dataset* evaluation, const TrainerOptions& options);

  // Goes on where a checkpoint stands whose state the session holds. Throws Error that names the setting when the data
  // order would not be the same.
  void resume(const TrainingPosition& position);

  // Runs until a limit is met or `interrupt` is set, which ends it after the current step. Throws Error when the loss
  // or the gradient's norm is no longer finite; `last.onnx` then holds the last state that was saved before.
  StopReason run(TrainerEvents* events, const std::atomic<bool>& interrupt);

  const TrainingPosition& position() const { return position_; }
  size_t checkpoint_bytes() const { return options_.folder.empty() ? 0 : checkpoints_.copy_bytes(); }  // of memory
  const TrainerOptions& options() const { return options_; }
  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  int64_t total_steps() const;  // 0 when only time or the user ends the training

 private:
  StepReport step();
  bool end_epoch(TrainerEvents* events);  // true when it is the best so far
  bool finished() const;
  Metrics evaluate_now() const;
  void save(const std::vector<const char*>& names, TrainerEvents* events);

  Session& session_;
  const Dataset& training_;
  const Dataset* evaluation_;
  TrainerOptions options_;
  CheckpointWriter checkpoints_;
  int64_t samples_per_epoch_ = 0, steps_per_epoch_ = 0;
  DType scalar_type_ = DType::kFloat;      // of the inputs with these roles:
  std::string learning_rate_, clip_norm_;  // their names
  TrainingPosition position_;
  std::vector<int64_t> order_;
  int64_t order_epoch_ = -1;  // the epoch that order_ is of
  TensorMap inputs_;
  bool epoch_seen_ = false;  // an epoch has ended, so that best.onnx is there
};

// The entry point that reads the training data: "step", or "accumulate" in a model built to accumulate.
std::string training_entry(const Session& session);

// Runs `evaluate` over all samples, the last batch short if need be. Scalar outputs that are means are weighted by
// samples, sums are summed (metadata onnx_train.outputs says which they are).
Metrics evaluate(Session* session, const Dataset& data, int64_t batch_size);

}  // namespace onnx_train
