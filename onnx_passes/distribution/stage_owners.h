// Which stage of a pipeline (pipeline_stages.h) owns each state: consecutive layers with their weights, the states of
// these, and their sums of gradients. A pure function; throws Error.
#pragma once

#include <functional>

#include "onnx_passes/distribution/sharded_states.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// What a node takes, in any unit.
using CostOfNode = std::function<double(const Node&)>;

// The stage of each weight, of its states, and of other states that batches change by what a stage computes. Stages
// have weights in the order in which "accumulate" reads them, and about the same cost. Throws Error where there are
// fewer layers with weights than stages, or one of them takes most of the cost, and for 8-bit floats.
StateOwners share_out_stages(const Model& model, int stages, const CostOfNode& cost);

}  // namespace onnx_train
