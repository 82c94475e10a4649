// The data of a run. One thread; functions throw Error that names the file.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/selection.h"
#include "runtime/data/source.h"
#include "tools/fit/fit_arguments.h"

namespace onnx_train {

// The samples to train on, and those to evaluate on. The session's model keeps what the training data say. `notes`: of
// what was guessed.
SelectedData load_data(const FitArguments& arguments, Session* session, DataNotes* notes);

// One pass over the data before the first step, unless their fingerprint is among `checked`, to which it is added.
// Throws Error that names the first value that the model cannot use.
void check_data(const FitArguments& arguments, const SelectedData& data, const Session& session,
                std::vector<std::string>* checked);

}  // namespace onnx_train
