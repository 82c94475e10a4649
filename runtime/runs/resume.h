// What a training that goes on with a run takes over from it: the model's identity, and every setting that is not
// given. The checkpoint holds the settings that decide what is trained, options.json the others. Stateless; one thread
// at a time. Functions throw Error that names the file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "runtime/runs/fit_settings.h"
#include "runtime/support/options.h"
#include "runtime/training/checkpoint.h"

namespace onnx_train {

// Whether the folder holds a run, which is resumed. Throws UsageError if neither --resume nor --overwrite is given for
// it, unless nothing is to be written.
bool finds_run(const FitSettings& settings, bool writes = true);

// Where the training of a run's checkpoint stands; `path` is its file.
TrainingPosition position_of_run(const Model& checkpoint, const std::string& path);

// What a model was built with, by name: all that must be equal in a run and in the model that it is resumed with.
using BuiltWith = std::map<std::string, std::string>;
BuiltWith built_with(const Model& model);
// Throws Error unless both are equal. `path` is the checkpoint's file, `given` what messages call the other model.
void expect_same_build(const BuiltWith& checkpoint, const std::string& path, const BuiltWith& now,
                       const std::string& given);

// The identity of the model that a run is resumed with, which is `identity`, unless that model is a checkpoint of the
// run itself. `given` is its position, if it is a checkpoint.
std::string identity_on_resume(const std::string& identity, const std::optional<TrainingPosition>& given,
                               const TrainingPosition& run);

// Gives the options that are not given, or are to be found, the values that `run` has.
void adopt_settings(const std::vector<CommandOption>& options, const TrainingPosition& run, FitSettings* settings);
// The same of the end: where none is given, or one in time alone of a schedule that counts steps, the run's own stays.
void adopt_end(FitSettings* settings);
// The same of the number of batches in a step, from options.json: a model may have to be built for them.
void adopt_accumulation(FitSettings* settings);

// An option of the run in `folder`, from its options.json: a text, and a count; nothing where it has none.
std::optional<std::string> recorded_text(const std::string& folder, const std::string& name);
std::optional<int64_t> recorded_count(const std::string& folder, const std::string& name);

}  // namespace onnx_train
