// What `fit` prints when a run ends. One thread.
#pragma once

#include "runtime/training/trainer.h"
#include "tools/fit/fit_arguments.h"

namespace onnx_train {

// Why the run ended, its best evaluation, and its files; `is_built`: train.onnx is one of them. `bad_pictures`
// were left out of the data.
void print_outcome(const FitArguments& arguments, StopReason reason, const Model& model, const Trainer& trainer,
                   bool is_built, int64_t bad_pictures);

}  // namespace onnx_train
