// Several initializers that were folded from one parameter. PyTorch's exporter computes whatever depends on parameters
// alone: a slice or a transpose of a weight, but also u(0)² of a network u. Each result is an initializer, which says
// from which parameters it was folded (weight_origin.h). Trained apart, they would leave the model that the module is.
// Functions on a model that one caller owns; they throw Error if contents cannot be read.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/model/analysis.h"

namespace onnx_train {

// Views of one parameter are computed in the graph again, so that the parameter is one weight: what was folded from a
// single parameter and has the numbers of that parameter, of another view of it, or of its own first rows
// (weight_views.h). Then marks as computed (Origin::kComputed) what no node reads as a weight and was folded from
// parameters that the model has as weights, too, or from several parameters to a single number. Types must be inferred.
// Returns what was done.
std::vector<Finding> restore_folded_parameters(Graph* graph);

// What a user should know of initializers that were computed from parameters which are trained elsewhere: gradients do
// not flow through them.
std::vector<Finding> describe_folded_parameters(const Graph& graph);

}  // namespace onnx_train
