// The forward and the backward pass of a forward model as two plain models, for programs that have their own loss and
// optimizer: the model is one layer in a larger one. Functions on models that one caller owns; one thread.
//
//   forward    inputs:  those of the model; trained weights and states, with the file's values as defaults
//              outputs: those of the model; next/<state>; the intermediate values that the backward pass reads
//   backward   inputs:  grad/<output>, the gradient of each float output; of the forward pass's inputs and outputs, by
//                       the same names, those that it reads
//              outputs: grad/<weight> and grad/<input>, for each float input and weight that an output depends on
//
// Each input and output has a role (roles.h), and the value of the model it belongs to. No value is computed twice:
// what both passes need is an output of the first and an input of the second. States are batch-norm statistics and the
// random key of dropout. Weights that are not trained stay initializers. A pass is a model that can be differentiated
// again, by its inputs.
#pragma once

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

struct DifferentiatedModel {
  Model forward, backward;
};

// From import_model's result. Of the options, mode, precision, train, freeze, seed, unbiased_variance and pipeline have
// a meaning. Throws Error that lists every node on a path from a weight or input to an output that has no gradient.
DifferentiatedModel differentiate(Model model, const BuildOptions& options);

}  // namespace onnx_train
