// What a training model's user should know of its forward model: a softmax that the loss doubles, what is guessed to be
// no weight, weights that the exporter merged or untied, layers that it left out, what importing changed. `check` and
// every build (the command's, Python's, C's) say the same, from here. A training model keeps it (metadata
// onnx_train.notes: a JSON array), so that `fit` can repeat it. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/protobuf.h"
#include "onnx_passes/model/analysis.h"
#include "onnx_passes/passes.h"

namespace onnx_train {

// Of an imported forward model, whose weights are read once each, and what its import found. Throws Error for patterns
// of `train` and `freeze` that match nothing.
std::vector<Finding> build_notes(const Model& forward, const BuildOptions& options = {},
                                 std::vector<Finding> imported = {});
// Adds what only the training model tells: which statistics are kept, which weights the loss does not reach, a
// precision that changes nothing.
void add_built_notes(const Model& training, std::vector<Finding>* notes);

// build_training_model, with all notes recorded in the training model.
std::vector<PassTiming> build_with_notes(Model* model, const BuildOptions& options, std::vector<Finding> imported);

void record_notes(const std::vector<Finding>& notes, Model* training);
std::vector<Finding> recorded_notes(const Model& training);
std::vector<Finding> recorded_notes(const onnx::ModelProto& training);

// "Worth knowing:" and the first of them, a paragraph each, of at most `width` columns; "" without any.
std::string notes_text(const std::vector<Finding>& notes, size_t width, size_t shown = std::string::npos);

}  // namespace onnx_train
