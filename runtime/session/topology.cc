#include "runtime/session/topology.h"
#include "onnx_passes/distribution/order_collectives.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/collectives.h"
#include "kernels/cost.h"
#include "onnx_passes/distribution/data_parallel.h"
#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/distribution/stage_owners.h"
#include "onnx_passes/ir/error.h"
#include "runtime/support/options.h"

namespace onnx_train {

void check_ranks(int64_t ranks, const TopologyOptions& o) {
  const bool shares_states = o.sharding != Sharding::kNone;
  if (ranks == 1 && (o.stages > 1 || o.sync_batch_norm)) {
    throw UsageError(concat(o.stages > 1 ? "--pipeline" : "--sync-batch-norm",
                            " is for several processes; leave it out, or start them (docs/distributed.md)"));
  }
  if (ranks % o.stages != 0) {
    throw UsageError(concat("--pipeline ", o.stages, " takes ", o.stages,
                            " processes, one for each stage, or a multiple, and there are ", ranks));
  }
  if (o.stages > 1 && (shares_states || o.sync_batch_norm)) {
    throw UsageError(concat("--pipeline: a stage has the states of its own layers, and one batch at a time; leave out ",
                            o.sync_batch_norm ? "--sync-batch-norm" : "--zero"));
  }
  if (o.sums_once && o.sharding >= Sharding::kGradients) {
    throw UsageError(
        "--reduction fast: each process adds up gradients of all weights; leave out --zero, or take --zero 1");
  }
  if (o.sums_in_bf16 && !o.sums_once) {
    throw UsageError(
        "--reduction-type bf16 rounds sums of gradients, which --reduction exact does not; take --reduction "
        "fast, or leave it out");
  }
}

namespace {

StateOwners owners_of_states(const Model& model, const TopologyOptions& options, int ranks) {
  check_ranks(ranks, options);
  if (options.stages <= 1) return share_out_states(model, options.sharding, ranks);
  if (!model.find_entry_point(Entry::kAccumulate))
    fail_as(ErrorCode::kNeedsAccumulate, "a pipeline takes micro-batches; build the model with accumulate");
  // What inference knows, and no more than a copy of a tensor where nothing is multiplied.
  return share_out_stages(model, options.stages, [](const Node& node) {
    const NodeCost cost = cost_of(node);
    constexpr double kBytesOfAnOperation = 0.1;  // of one multiply-add on data in memory, about
    return cost.total_flops() * kBytesOfAnOperation + cost.bytes;
  });
}

}  // namespace

Topology::Topology(const Model& model, const TopologyOptions& options)
    : options_(options),
      pipeline_(options.stages > 1 && options.collectives ? pipeline_of(options.collectives, options.stages) : nullptr),
      owners_(owners_of_states(model, options_, ranks())) {}

Rounds Topology::rounds(int64_t per_step) const {
  if (!is_pipeline()) return {.rank = rank(), .ranks = ranks(), .per_step = per_step};
  return {.rank = pipeline(),
          .ranks = pipelines(),
          .per_step = per_step,
          .at_once = (per_step + pipelines() - 1) / pipelines()};
}

bool Topology::shares(const EntryName& entry) const {
  return ranks() > 1 && (entry == Entry::kAccumulate || entry == Entry::kEvaluate);
}

GradientSums Topology::sums_of(const EntryName& entry, bool ends_step, bool has_own_sums) const {
  if (!options_.sums_once || ranks() == 1) return GradientSums::kEachRound;
  // A run has all micro-batches that a pipeline takes.
  if (is_pipeline()) return entry == Entry::kAccumulate ? GradientSums::kOfStep : GradientSums::kEachRound;
  if (entry == Entry::kAccumulate) return ends_step ? GradientSums::kOfStep : GradientSums::kOwn;
  return entry == Entry::kApply && has_own_sums ? GradientSums::kOfStep : GradientSums::kEachRound;
}

EntryOptions Topology::entry_options(const EntryName& entry, GradientSums sums) const {
  EntryOptions options;
  options.entry = entry;
  options.sync_batch_norm = options_.sync_batch_norm;
  options.overlaps = options_.overlap;
  options.owners = owners_;
  options.owner = owner();
  options.sums = {sums, options_.sums_in_bf16};
  if (entry == Entry::kApply && sums == GradientSums::kOfStep) options.ranks_of_sums = ranks();
  options.gathers_weights =
      options_.sharding == Sharding::kWeights && ranks() > 1 && entry != Entry::kApply && entry != Entry::kInitialize;
  if (is_staged(entry)) {
    options.ranks = pipelines();
    options.stages = options_.stages;
    options.stage.shares_batches = pipelines() > 1;
  } else if (shares(entry)) {
    options.ranks = ranks();
  }
  return options;
}

int64_t Topology::batch_of_round(const EntryName& entry, int i) const {
  return shares(entry) ? int64_t{i} * pipelines() + pipeline() : 0;
}

void Topology::add_inputs(const EntryName& entry, int i, int64_t batches, TensorMap* inputs) const {
  if (!shares(entry) || pipelines() == 1) return;
  const int64_t before = int64_t{i} * pipelines();  // batches of this round that come before those of micro-batch i
  (*inputs)[micro_batch_input(kRankInput, i)] = Tensor::scalar<int64_t>(pipeline());
  (*inputs)[micro_batch_input(kActiveRanksInput, i)] =
      Tensor::scalar<int64_t>(std::clamp<int64_t>(batches - before, 0, pipelines()));
}

std::vector<int> Topology::keepers(const std::string& state) const {
  // In pipelines a state that has no stage is on all ranks, as it is without.
  const auto owner = owners_.find(state);
  const int first = owner == owners_.end() ? 0 : owner->second, apart = owner == owners_.end() ? 1 : options_.stages;
  std::vector<int> ranks;
  for (int r = first; r < this->ranks(); r += apart) {
    ranks.push_back(r);
    if (owner != owners_.end() && !is_pipeline()) break;
  }
  return ranks;
}

Topology::Pairs Topology::stages_that_send(const Model& flat, const std::vector<std::string>& states) const {
  return onnx_train::stages_that_send(flat, owners_, states);
}

void Topology::connect(Device* device, const Pairs& pairs) const {
  if (!is_pipeline()) return device->connect(*options_.collectives);
  device->connect(*pipeline_);
  if (pipelines() > 1) device->connect(*pipeline_->along(kDataAxis));
  for (const auto& [from, to] : pairs) {
    if (from == owner() || to == owner()) device->connect(*pipeline_, from, to);
  }
}

void Topology::send_to_first(const std::string& what, int from, std::span<const std::byte> value,
                             std::span<std::byte> to) const {
  const auto count = static_cast<size_t>(ranks());
  std::vector<std::span<const std::byte>> out(count);
  std::vector<std::span<std::byte>> in(count);
  if (rank() == from) out[0] = value;
  if (rank() == 0) in[static_cast<size_t>(from)] = to;
  collectives()->exchange(what, out, in);
}

std::vector<std::string> Topology::gather(const std::string& what, const std::string& text) const {
  const std::vector<uint32_t> sizes =
      collectives()->gather(concat("the sizes of ", what), static_cast<uint32_t>(text.size()));
  std::vector<std::span<const std::byte>> out(sizes.size());
  std::vector<std::span<std::byte>> in(sizes.size());
  std::vector<std::string> texts(sizes.size());
  if (rank() > 0) out[0] = std::as_bytes(std::span(text));
  for (size_t r = 1; r < sizes.size() && rank() == 0; ++r) {
    texts[r].resize(sizes[r]);
    in[r] = std::as_writable_bytes(std::span(texts[r]));
  }
  collectives()->exchange(what, out, in);
  return texts;
}

void Topology::wait(Stream* stream, int64_t mark, const Device& device) const {
  if (collectives() && !device.uses_host_memory()) {
    try {
      for (int times = 0; !stream->has_reached(mark); ++times) {
        collectives()->check();
        std::this_thread::sleep_for(std::chrono::microseconds(times < 100 ? 10 : 200));
      }
    } catch (...) {
      collectives()->abort();
      throw;
    }
  }
  stream->wait(mark);
}

}  // namespace onnx_train
