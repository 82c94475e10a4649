// Adapters as ONNX Runtime serves them: one base model whose adapters are inputs, and a file for each adapter with the
// values of these inputs. The inputs have defaults with which the model is the base: A [0, in] and B [out, 0] of linear
// layers, so that adapters of any rank fit. B holds the scale s of its adapter, since each has its own.
//
// Functions on a model that one caller owns; they throw Error that names the weight.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// The adapters of an inference model (strip_training) become inputs, and so do the weights `besides`, which were
// trained beside them: their defaults are what they are now. Removes the records of adapters. Returns the names of the
// inputs.
std::vector<std::string> serve_adapters(Model* inference, const std::vector<std::string>& besides);

// The same for another model that has the weights beside the adapters of `training`, such as a decoder with a cache:
// `tensors_of` has the names of its initializers that hold them, by the names that they have in the training model. Its
// layers get nodes of the standard beside them, in its opset, and all else of it stays. Only adapters of low rank
// beside products, also with the integers of a MatMulNBits where the file is the one that was trained. `source` is for
// messages.
std::vector<std::string> serve_adapters_beside(const Model& training,
                                               const std::multimap<std::string, std::string>& tensors_of,
                                               const std::string& source, Model* served);

// Weights of a training model that are trained beside its adapters, such as those of a new head.
std::vector<std::string> trained_besides(const Model& training);

// What the inputs are for the adapters of this training model, by name.
std::map<std::string, Tensor> served_values(const Model& training);

}  // namespace onnx_train
