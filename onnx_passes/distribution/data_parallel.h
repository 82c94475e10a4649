// A flattened entry point (passes.h) as one of several ranks runs it, each on a batch of its own, one after the other
// in the order of the ranks: the batches of a round. What the ranks compute together is what one rank alone computes
// from these batches in this order, in bits: ranks change the time that a training takes and nothing else. A pass on a
// model that one caller owns; throws Error.
//
// Two inputs are added, int64 scalars: this rank's number, and the number of ranks that have a batch
// in this round. The others run, too, on any batch, and add nothing. All ranks have the same graph.
//
// - A sum of gradients, and of what counts in them: AllReduce, which adds the ranks' terms from left to right. Or, so
//   that gradients travel once a step, each rank adds its own terms to a sum of its own, and the last round of a step
//   makes one of these, in any order: then a run equals one rank alone within rounding.
// - A state that a batch changes otherwise (running statistics, ranges, the key of dropout): what the batches do to it
// is
//   gathered, and applied batch after batch on every rank. A rank reads what the ranks before it leave.
// - With `sync_batch_norm`, batch normalization over the batches of a round as over one (sync_batch_norm.h): then one
// rank
//   alone does not compute the same. All ranks change running statistics once a round, alike.
// - Outputs: gathered, with a first axis of ranks, of which the first `active` count.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

inline constexpr const char* kRankInput = "onnx_train/rank";
inline constexpr const char* kActiveRanksInput = "onnx_train/active_ranks";

// When the ranks add up gradients.
enum class GradientSums {
  kEachRound,  // as one rank alone does, in bits
  kOwn,        // each rank its own: a round that is not the last one of its step
  kOfStep,     // those of all ranks: the last round
};

// How sums over ranks are made.
struct SumsOverRanks {
  GradientSums sums = GradientSums::kEachRound;
  bool bf16 = false;  // kOfStep: gradients travel in bfloat16, with sums in float32 where the engine has them
};

// Throws Error for a state that a batch reads and changes in one, so that batches would wait for each other.
void distribute_over_ranks(Model* flat, int ranks, bool sync_batch_norm, const SumsOverRanks& sums = {});
// For an entry point that computes several batches, whose sums are kOwn: adds up those of all ranks at its end.
void sum_once(Model* flat, int ranks, const SumsOverRanks& sums);
// Where no round has made the sums of a step, "apply" does it, before it reads them.
void sum_before_apply(Model* flat, int ranks, const SumsOverRanks& sums = {});

}  // namespace onnx_train
