// Which ranks train one model, and what each of them has: batches of a round, a stage of the model, some of its states,
// parts of its weights.
// A session makes one of its model; nothing changes afterwards. Functions that exchange are called by all ranks, in one
// order, on the thread of the session. They throw Error.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.h"
#include "onnx_passes/distribution/sharded_states.h"
#include "onnx_passes/distribution/tensor_parallel.h"
#include "onnx_passes/ir/model.h"
#include "runtime/distribution/rank_group.h"
#include "runtime/distribution/rounds.h"
#include "runtime/plan/entry_passes.h"
#include "runtime/session/state_store.h"

namespace onnx_train {

struct TopologyOptions {
  // This process as one rank of several: kAccumulate and kEvaluate run on the batches of a round, one a rank
  // (onnx_passes/distribution/data_parallel.h), and their outputs have a first axis of ranks. It outlives the session.
  // Null: this process is alone.
  Collectives* collectives = nullptr;
  bool overlap = true;                  // ranks exchange gradients while they compute others
  bool sync_batch_norm = false;         // over the batches of a round, as one batch
  Sharding sharding = Sharding::kNone;  // of several ranks
  // Gradients travel once a step (GradientSums::kOwn, kOfStep), so that a run equals one of another number of ranks
  // within rounding.
  bool sums_once = false;
  bool sums_in_bf16 = false;  // they travel in bfloat16
  // With more than 1, each rank has a stage of the model (onnx_passes/distribution/pipeline_stages.h), and so many
  // consecutive ranks are a pipeline; several share out batches. Runs of kAccumulate and kEvaluate take a pipeline's
  // micro-batches, one or several, as inputs of names by micro_batch_input, the same on all its ranks. Their outputs
  // have a first axis of batches: the first of each pipeline, the second of each, ...
  int stages = 1;
  // With more than 1, so many consecutive ranks are a group that computes products together, each with its part of the
  // weights (onnx_passes/distribution/tensor_parallel.h); several groups share out batches. All ranks of a group are
  // given the same inputs and have the same outputs, which have a first axis of groups where there are several.
  int tensor = 1;
};

// Throws UsageError for what `ranks` processes cannot do, or cannot do at once.
void check_ranks(int64_t ranks, const TopologyOptions& options);

class Topology {
 public:
  Topology(const Model& model, const TopologyOptions& options);

  const TopologyOptions& options() const { return options_; }
  Collectives* collectives() const { return options_.collectives; }
  Collectives* collectives_of_plans() const { return group_ ? group_.get() : options_.collectives; }
  int ranks() const { return options_.collectives ? options_.collectives->size() : 1; }
  int rank() const { return options_.collectives ? options_.collectives->rank() : 0; }
  bool is_pipeline() const { return options_.stages > 1; }
  bool is_tensor_parallel() const { return options_.tensor > 1; }
  // Ranks that run the same batches: the stages of a pipeline, those with the parts of tensors, or one alone.
  int group_size() const { return options_.stages * options_.tensor; }
  int groups() const { return ranks() / group_size(); }
  int group() const { return rank() / group_size(); }  // this rank's
  // The batches of a round, if each rank that may have one of its own has one, or each stage.
  int batches_at_once() const { return ranks() / options_.tensor; }
  // Whether runs of kAccumulate and kEvaluate take one of several batches, and their outputs have an axis of these.
  bool shares_batches() const { return is_pipeline() || groups() > 1; }

  // How the ranks share out steps of `per_step` batches.
  Rounds rounds(int64_t per_step) const;
  // The micro-batches that each pipeline then takes at once; 1 without pipelines.
  int micro_batches(int64_t per_step) const { return static_cast<int>(rounds(per_step).at_once); }

  // Whether the ranks run the entry point on the batches of a round, and whether as stages.
  bool shares(const EntryName& entry) const;
  bool is_staged(const EntryName& entry) const { return is_pipeline() && shares(entry); }
  // What this rank has of the entry point, with sums as `sums_of` gives them.
  EntryOptions entry_options(const EntryName& entry, GradientSums sums) const;
  // How kAccumulate sums gradients, in the last round of its step or before, and kApply, where ranks have sums of their
  // own or not.
  GradientSums sums_of(const EntryName& entry, bool ends_step, bool has_own_sums) const;
  // Of a round of `batches` batches, the number of the one that this rank takes as micro-batch `i`; 0 for an entry
  // point that is not shared. `add_inputs` adds the inputs of the plan that say so.
  int64_t batch_of_round(const EntryName& entry, int i) const;
  void add_inputs(const EntryName& entry, int i, int64_t batches, TensorMap* inputs) const;

  // Whether one rank alone keeps some states whole, or this one.
  bool shards_states() const { return !owners_.empty() || !shares_.cuts.empty(); }
  bool is_sharded(const std::string& state) const { return owners_.contains(state) || part_of(state); }
  // Whether this rank has it, or a part.
  bool has_state(const std::string& state) const {
    const auto owner = owners_.find(state);
    return owner == owners_.end() || owner->second == this->owner();
  }
  // This rank's part of a state of which ranks have parts.
  std::optional<StatePart> part_of(const std::string& state) const;
  const TensorShares& tensor_shares() const { return shares_; }
  std::vector<int> keepers(
      const std::string& state) const;  // the ranks that have it, or the first part, in ascending order
  int keeper(const std::string& state) const { return keepers(state).front(); }

  // Pairs of stages of which the first may send something to the second, of an entry point of all stages.
  using Pairs = std::set<std::pair<int, int>>;
  Pairs stages_that_send(const Model& flat, const std::vector<std::string>& states) const;
  // Connects the device with those of the ranks that plans of this one exchange with.
  void connect(Device* device, const Pairs& pairs) const;
  // Gives rank 0 `value` of the rank `from`, all of whose bytes are that many on each rank.
  void send_to_first(const std::string& what, int from, std::span<const std::byte> value,
                     std::span<std::byte> to) const;
  // Gives rank 0 the texts of the other ranks; elsewhere none.
  std::vector<std::string> gather(const std::string& what, const std::string& text) const;
  // Waits for the mark. The work of a device that exchanges with a rank that is gone does not end by itself.
  void wait(Stream* stream, int64_t mark, const Device& device) const;

 private:
  int owner() const { return is_pipeline() ? group_->rank() : group(); }  // this rank's, in owners_

  TopologyOptions options_;
  std::unique_ptr<RankGroup> group_;  // of which this rank is a stage, or has a part; null: it is alone
  StateOwners owners_;                // groups of one rank or several or, in a pipeline, stages
  TensorShares shares_;
};

}  // namespace onnx_train
