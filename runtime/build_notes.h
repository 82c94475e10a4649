// What a training model's user should know of its forward model, since it changes what is trained: weights that the
// exporter merged or untied, layers that it left out. `build` prints it and keeps it in the training model (metadata
// onnx_train.notes: a JSON array), so that `fit` can repeat it. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/passes.h"
#include "onnx_passes/training/analysis.h"

namespace onnx_train {

// Reads every weight of an imported forward model once.
std::vector<Finding> build_notes(const Model& forward, const BuildOptions& options = {});

// Adds that a precision changes nothing of a training model.
void note_rounding(const Model& training, std::vector<Finding>* notes);

void record_notes(const std::vector<Finding>& notes, Model* training);
std::vector<Finding> recorded_notes(const Model& training);

// "Worth knowing:" and the first few, a paragraph each, of at most `width` columns; "" without any.
std::string notes_text(const std::vector<Finding>& notes, size_t width);

}  // namespace onnx_train
