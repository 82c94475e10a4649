// Outputs of a file that are no tensors of numbers, as converters of scikit-learn write them: maps from classes to
// probabilities, and names of classes. Functions on a model that one caller owns.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/model/analysis.h"

namespace onnx_train {

// Chooses the outputs before operators are judged. If `cut` names inner values alone, these are the outputs. Maps that
// a ZipMap makes of a tensor are that tensor from now on, recorded so that restore_maps finds them; other maps,
// sequences and strings are no outputs any more where a tensor remains. Operators of unknown domains that only served
// the outputs which are gone are removed, with what reads them and the inputs that they alone read. Returns what was
// done, but not for `cut`, which is done once more on the imported model (adapt.h).
std::vector<Finding> choose_outputs(Model* model, const std::vector<std::string>& cut);

// Makes maps again of the outputs of an inference model that were maps in the file which `training` was made from.
void restore_maps(Model* inference, const Model& training);

}  // namespace onnx_train
