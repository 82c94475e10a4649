// The data of a run. One thread; functions throw Error that names the file.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/loading/source.h"
#include "runtime/runs/run_data.h"
#include "tools/fit/fit_arguments.h"

namespace onnx_train {

// Whether the samples are texts that are read while the training goes on. `inputs` are those of the model.
bool is_stream(const FitArguments& arguments, const std::vector<InputSpec>& inputs);

// The samples to train on, and those to evaluate on. The session's model keeps what the training data say. `notes`: of
// what was guessed.
TrainingData load_data(const FitArguments& arguments, Session* session, DataNotes* notes);

}  // namespace onnx_train
