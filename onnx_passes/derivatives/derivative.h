// Derivatives of a forward model as a plain model that computes them, in one graph of standard operators and functions
// of them. Functions on a model that one caller owns; one thread. y: the float outputs, w: the weights and float
// inputs, L: the loss, J: dy/dw.
//
//   outputs    y, and no derivative
//   gradient   dL/dw                                        outputs: grad/<weight>, grad_input/<input>
//   vjp        uᵀ J       for each w                        inputs: vector/<output>; outputs: vjp/<w>
//   jvp        J v        for each y, of all v together     inputs: vector/<w>; outputs: jvp/<output>
//   hvp        (d²L/dw²) v  for each w, likewise            inputs: vector/<w>; outputs: hvp/<w>
//
// jvp is the derivative of the vjp, uᵀ J, by u, along v (J. Townsend, "A new trick for calculating Jacobian vector
// products", 2017): rules of reverse mode alone are enough. hvp is the gradient of (dL/dw)ᵀ v.
//
// Other outputs are output/<output> (not, beside a loss, one whose shape depends on data), loss, and next/<state> of
// batch norm's statistics in training mode. All have a role (roles.h) and the value that they belong to. Weights and
// states are inputs with the file's values as defaults. A w that y or L does not depend on has no output, but that of
// hvp, which is zero.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

enum class Derivative { kOutputs, kGradient, kVjp, kJvp, kHvp };

// "outputs", "gradient", "vjp", "jvp", "hvp". Throws Error for another name.
Derivative parse_derivative(const std::string& name);

// From import_model's result. Of the options, loss, mode, train, freeze, seed, unbiased_variance and pipeline have a
// meaning. `notes`, unless it is null, gets a line for each float input that has no derivative because of an operator
// without one; where there are weights, that is no error. Throws Error that lists every node on a path from a weight to
// the loss or an output that cannot be differentiated, for jvp and hvp twice.
Model derivative(Model model, Derivative kind, const BuildOptions& options, std::vector<std::string>* notes);

}  // namespace onnx_train
