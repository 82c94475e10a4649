// A checkpoint: the training model with its state as initializers and two metadata entries, the position of the
// training (onnx_train.checkpoint, JSON) and checksums of every stored tensor and the position
// (checkpoint_checksum.h). There is no second format: a checkpoint can be served, evaluated, exported and trained like
// any training model, also one whose tensors are in files that ranks have written (checkpoint_shards.h), or whose
// frozen weights are in the file that the run started from (checkpoint_base.h). Writing is atomic (loading.h). Files
// contain no dates, so equal trainings give equal files.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/session/session.h"
#include "runtime/training/means.h"
#include "runtime/training/schedule.h"

namespace onnx_train {

struct ModelMessage;

// The position of a training, exact to the sample.
struct TrainingPosition {
  int64_t epoch = 0;           // complete epochs
  int64_t step = 0;            // optimizer steps
  int64_t sample = 0;          // samples of the current epoch's order that have been used
  std::string place;           // of the source of batches, after these samples (BatchSource::place); "": none
  RunningLoss loss;            // of the steps since the last evaluation
  std::optional<double> best;  // lowest evaluation loss: on the evaluation data, or the mean training loss without them
  std::optional<double> mark;  // the best when `stale` was last 0: with --min-delta, a later one may be a little better
  int64_t stale = 0;           // evaluations since then
  ScheduleState schedule;      // of a schedule that reads the evaluations
  std::map<std::string, std::string> settings;  // settings of the run: run_settings.h
};

// The value of a state.
using StateContents = std::function<Tensor(const std::string& name)>;

// Whether it is a checkpoint, or else a training model before its first step, or a forward model.
bool is_checkpoint(const onnx::ModelProto& model);
// Whether an initializer of a session's model is a state, whose value the session has.
bool is_state_of_session(const onnx::TensorProto& tensor);
// Writes the position into the metadata, and takes out what an earlier checkpoint says of its tensors.
void set_position(const TrainingPosition& position, ModelMessage* message);
// Returns the session's model with `state` as its states, to be written at any later time. It shares what does not
// change and no longer reads the session.
ModelMessage checkpoint_message(const Model& model, const StateContents& state, const TrainingPosition& position);
// Writes a checkpoint and computes its checksum on the way. Any thread.
void write_checkpoint(const ModelMessage& message, const std::string& path);
// Writes the model of a checkpoint some of whose tensors are in the files of ranks or in a base, under each of the
// names. `checksums` are those of checksums_text.
void write_sharded_checkpoint(ModelMessage message, const std::vector<std::string>& checksums,
                              const std::vector<std::string>& paths);
// Both steps in one, with a copy of the session's current state.
void save_checkpoint(const Session& session, const TrainingPosition& position, const std::string& path);

// Loads a training model, new or a checkpoint. Throws Error that names the file if it is neither, or if the tensors of
// a checkpoint do not match their checksums. Of a checkpoint that ranks have written, a rank of `ranks` reads the
// states alone that it keeps; a session of the model must be one of these ranks.
Model load_training_model(const std::string& path, const TopologyOptions& ranks = {});
// Loads a model for what only needs inference (predict, show --plan): a training model is verified and returned as it
// is; any other model is imported and brought into inference form, also from an export in training mode. `path` is a
// file, or a folder that holds the model (model_folder.h).
Model load_any_model(const std::string& path);
// The same as load_training_model for a model that has been loaded; `name` is used in messages.
Model training_model(ModelMessage message, const std::string& name, const TopologyOptions& ranks = {});
// Nothing if `model` is not a checkpoint.
std::optional<TrainingPosition> checkpoint_position(const Model& model);

}  // namespace onnx_train
