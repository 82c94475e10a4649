// A checkpoint is the training model with its state as initializers and two entries of metadata: where training stands
// (onnx_train.checkpoint, JSON) and a checksum of every stored tensor and of that entry (onnx_train.checksum,
// XXH3-128). There is no second format: a checkpoint is served, evaluated, exported and trained on like any other
// training model. Writing is atomic (loading.h). Times and dates are not in it: equal trainings give equal files.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "runtime/session.h"

namespace onnx_train {

struct ModelMessage;

// Where training stands, to the sample.
struct TrainingPosition {
  int64_t epoch = 0;           // complete epochs
  int64_t step = 0;            // optimizer steps
  int64_t sample = 0;          // samples of the current epoch's order that are used up
  double loss_sum = 0;         // over the samples since the last evaluation, for their mean
  int64_t loss_samples = 0;    // those samples
  std::optional<double> best;  // lowest loss of an evaluation: on its data, or the training mean without them
  int64_t stale = 0;           // evaluations since then
  std::map<std::string, std::string> settings;  // what the run was made with: run_settings.h
};

// The value of a state.
using StateContents = std::function<Tensor(const std::string& name)>;

// A session's model with `state` for its states, to be written at any time after: it shares what does not change, and
// reads the session no more.
ModelMessage checkpoint_message(const Model& model, const StateContents& state, const TrainingPosition& position);
// Writes it, with the checksum that is taken on the way. Any thread.
void write_checkpoint(const ModelMessage& message, const std::string& path);
// The two in one, with a copy of the session's state as it is.
void save_checkpoint(const Session& session, const TrainingPosition& position, const std::string& path);

// Loads a training model, a checkpoint or a new one. Throws Error that names the file when it is neither or when a
// checkpoint's tensors are not those that were written.
Model load_training_model(const std::string& path);
// The same for a message that is loaded; `name` is for messages.
Model training_model(ModelMessage message, const std::string& name);
// Empty when `model` is no checkpoint.
std::optional<TrainingPosition> checkpoint_position(const Model& model);

}  // namespace onnx_train
