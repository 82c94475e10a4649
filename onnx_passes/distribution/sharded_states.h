// States that one rank alone keeps, so that what an optimizer remembers, and the sums of gradients, take the memory of
// one copy on all ranks together, not of one a rank (ZeRO's stages 1 and 2: Rajbhandari et al. 2020, arXiv:1910.02054).
// A weight's states belong to one rank, its owner, which alone computes the weight's update and sends the new weight
// to the others. So an update computes what it does on one rank, in bits, but for a norm of gradients that several
// ranks have. Functions on models that one caller owns; throw Error.
#pragma once

#include <map>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

enum class Sharding {
  kNone,
  kOptimizer,  // stage 1: the states of the optimizer
  kGradients,  // stage 2: and the sums of gradients
  kWeights,    // stage 3: and the weights (gathered_weights.h)
};

// The rank that keeps a state, by the state's name. All ranks keep the states that are not here.
using StateOwners = std::map<std::string, int>;

// Shares out the states of weights that only "apply" reads, and from kGradients on the sums that "accumulate" adds to,
// with kWeights the weights that it updates: the largest weights first, each to the rank that has the least.
StateOwners share_out_states(const Model& model, Sharding sharding, int ranks);

// Makes a flattened entry point, after distribute_over_ranks, that of one rank: it keeps the states that are its own
// and computes what depends on them. What another rank computes is received by Broadcast where it is read; AllReduce to
// a state of one rank becomes Reduce. All ranks have the same nodes in the same order, but for what they give to
// a collective.
void shard_states(Model* flat, const StateOwners& owners, int rank);
// After it: leaves out the states of other ranks, and what is computed of them alone.
void drop_states_of_others(Model* flat, const StateOwners& owners, int rank);

}  // namespace onnx_train
