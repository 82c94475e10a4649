// What a run starts from: a training model, a forward model that is built first, or the run's own last checkpoint. One
// thread. Functions throw Error that names the file, and UsageError.
#pragma once

#include <optional>
#include <string>

#include "onnx_passes/ir/model.h"
#include "runtime/training/checkpoint.h"
#include "tools/fit/fit_arguments.h"

namespace onnx_train {

// How a forward model has been built.
struct BuiltForRun {
  std::string loss;       // why a guessed loss fits; "" for one that was given
  std::string precision;  // why --precision auto is what it is; "" otherwise
  std::string options;    // with which `build` does the same
  std::string chosen_loss;
  std::string sizes;  // which sizes of the data it has, and why; mostly ""
};

// The model to start from, as the run's settings know it. A run may be resumed with the model that it started from, and
// with any of its own checkpoints.
struct Start {
  Model model;
  std::string identity;
  std::optional<TrainingPosition> position;  // when it goes on with a run
  std::optional<BuiltForRun> built;          // when a new run is given a forward model
};

Start start_anew(const FitArguments& arguments);
Start start_where_it_stopped(const FitArguments& arguments, Collectives* collectives);
// The training model of a new run, once more: what RUN/train.onnx holds where a forward model is given. A session has
// taken the state of the first.
Model model_of_run(const FitArguments& arguments);

// Besides what runtime/runs/resume.h takes over from a run: the options of `build` that are not given, so that of a
// forward model the same training model is built again.
void adopt_build(FitArguments* arguments);
// The same of --threads: by another number of them, sums are rounded otherwise.
void adopt_threads(FitArguments* arguments);
// The same of --offload, on a device that has its own memory.
void adopt_offload(FitArguments* arguments);
// The same of --eval-data, whose identity must be what it was.
void adopt_eval_data(FitArguments* arguments);

}  // namespace onnx_train
