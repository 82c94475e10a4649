// Pictures as the rows of a dataset: decoded, preprocessed and augmented when a batch needs them, by any thread. What
// every epoch has in common is kept in memory as far as a gigabyte, or a quarter of what the machine has left, goes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/data/images/files.h"

namespace onnx_train {

// Adds the rows of pictures to the arrays of `data`, and their notes and classes. Pictures are `data->pictures` or
// arrays of bytes (uint8) that the steps or the augmentation treat as pictures, whose place their rows take; those of
// files are the model's first input, their classes or masks the loss's first. `classes` are those that the model was
// trained with; may be empty. If it `trains`, files of other classes have their own. `preprocess`: see plan.h. Throws
// Error for an augmentation without pictures, and for what plan.h and augment.h throw.
void add_pictures(const std::vector<InputSpec>& inputs, const std::vector<std::string>& classes,
                  const std::string& augment, bool trains, Preprocess* preprocess, DataArrays* data);

}  // namespace onnx_train
