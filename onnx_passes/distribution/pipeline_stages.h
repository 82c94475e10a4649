// A model cut into stages, each on a rank of its own, through which the micro-batches of a step go one after the other:
// a rank computes with one while others compute with those before and after it (GPipe, Huang et al. 2019,
// arXiv:1811.06965). stage_owners.h says which stage owns which weights. Functions on models that one caller owns;
// throw Error.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/distribution/sharded_states.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// The name of an input of micro-batch `i`, from 0: that of the entry point's input for the first.
std::string micro_batch_input(const std::string& input, int i);
// How many micro-batches have inputs among these names.
int count_micro_batches(const std::map<std::string, Shape>& inputs);
// The shapes of the inputs of `count` micro-batches, all like the first, whose inputs have these.
std::map<std::string, Shape> micro_batch_shapes(const std::map<std::string, Shape>& first, int count);

struct StageOptions {
  // Several pipelines share out batches, and the entry point is one after distribute_over_ranks: a micro-batch is one
  // for each pipeline, and outputs have an axis of these already.
  bool shares_batches = false;
  // Send only begins to send. An Await, where all has arrived in any case, keeps its copy until then.
  bool awaits_sends = false;
};

// Makes a flattened entry point that of one stage, for the micro-batches whose inputs have these shapes. It computes
// what one rank alone computes from the micro-batches in their order, in bits.
//
// - What depends on the batch and on no weight is computed wherever it is read: all stages are given all inputs.
// - Forward passes and backward passes alternate (1F1B: Narayanan et al. 2019, PipeDream-Flush of arXiv:2006.09503), so
//   that a stage keeps the activations of at most as many micro-batches as stages follow it, and of one more.
// - A value that another stage computes is sent by Send, which does not wait, and received by Receive, in the order in
//   which that stage sends. A backward node is computed on the last stage that has the forward values that it reads,
//   and not after that of the gradients.
// - `states` are the names of all states of the model.
// - Outputs have a first axis of micro-batches, and are the same on all ranks.
void make_stage(Model* flat, const StateOwners& owners, const std::vector<std::string>& states, int stage, int stages,
                const std::map<std::string, Shape>& inputs, const StageOptions& options = {});

// Pairs of stages of which the first may send something to the second, of such an entry point.
std::set<std::pair<int, int>> stages_that_send(const Model& flat, const StateOwners& owners,
                                               const std::vector<std::string>& states);

}  // namespace onnx_train
