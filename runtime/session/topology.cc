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
  if (ranks == 1 && (o.stages > 1 || o.tensor > 1 || o.sync_batch_norm)) {
    throw UsageError(concat(o.stages > 1   ? "--pipeline"
                            : o.tensor > 1 ? "--tensor-parallel"
                                           : "--sync-batch-norm",
                            " is for several processes; leave it out, or start them (docs/distributed.md)"));
  }
  if (o.tensor > 1 && (o.stages > 1 || o.sharding > Sharding::kOptimizer)) {
    throw UsageError(concat(
        "--tensor-parallel: a rank has parts of the weights of all layers, and their sums of gradients; leave out ",
        o.stages > 1 ? "--pipeline" : "--zero, or take --zero 1"));
  }
  if (ranks % o.tensor != 0) {
    throw UsageError(concat("--tensor-parallel ", o.tensor, " takes ", o.tensor,
                            " processes, one for each part, or a multiple, and there are ", ranks));
  }
  if (o.tensor > 1 && ranks == o.tensor && (o.sync_batch_norm || shares_states)) {
    throw UsageError(concat(o.sync_batch_norm ? "--sync-batch-norm" : "--zero",
                            " is for processes that share out batches, and all ", ranks,
                            " of --tensor-parallel have the same batches; leave it out"));
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

StateOwners owners_of_states(const Model& model, const TopologyOptions& options, int groups) {
  if (options.stages <= 1) return share_out_states(model, options.sharding, groups);
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

Topology::Topology(const Model& model, const TopologyOptions& options) : options_(options) {
  check_ranks(ranks(), options_);
  if (group_size() > 1) group_ = group_of(options_.collectives, group_size());
  owners_ = owners_of_states(model, options_, groups());
  shares_ = share_out_tensors(model, options_.tensor);
}

Rounds Topology::rounds(int64_t per_step) const {
  Rounds rounds{.rank = group(), .ranks = groups(), .per_step = per_step};
  if (is_pipeline()) rounds.at_once = (per_step + groups() - 1) / groups();
  return rounds;
}

bool Topology::shares(const EntryName& entry) const {
  return shares_batches() && (entry == Entry::kAccumulate || entry == Entry::kEvaluate);
}

GradientSums Topology::sums_of(const EntryName& entry, bool ends_step, bool has_own_sums) const {
  if (!options_.sums_once || groups() == 1) return GradientSums::kEachRound;
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
  if (entry == Entry::kApply && sums == GradientSums::kOfStep) options.ranks_of_sums = groups();
  options.gathers_weights =
      options_.sharding == Sharding::kWeights && ranks() > 1 && entry != Entry::kApply && entry != Entry::kInitialize;
  if (shares(entry)) options.ranks = groups();
  if (is_staged(entry)) {
    options.stages = options_.stages;
    options.stage.shares_batches = groups() > 1;
  }
  if (is_tensor_parallel()) {
    options.cuts = shares_.cuts;
    options.parts = options_.tensor;
    options.part = group_->rank();
  }
  return options;
}

int64_t Topology::batch_of_round(const EntryName& entry, int i) const {
  return shares(entry) ? int64_t{i} * groups() + group() : 0;
}

void Topology::add_inputs(const EntryName& entry, int i, int64_t batches, TensorMap* inputs) const {
  if (!shares(entry) || groups() == 1) return;
  const int64_t before = int64_t{i} * groups();  // batches of this round that come before those of micro-batch i
  (*inputs)[micro_batch_input(kRankInput, i)] = Tensor::scalar<int64_t>(group());
  (*inputs)[micro_batch_input(kActiveRanksInput, i)] =
      Tensor::scalar<int64_t>(std::clamp<int64_t>(batches - before, 0, groups()));
}

std::vector<int> Topology::keepers(const std::string& state) const {
  const auto found = owners_.find(state);
  const bool is_cut = part_of(state).has_value();
  std::vector<int> keepers;
  for (int r = 0; r < ranks(); ++r) {
    const int owner = is_pipeline() ? r % options_.stages : r / options_.tensor;  // as rank r has it
    const bool has = found == owners_.end() || found->second == owner;
    if (has && (!is_cut || r % options_.tensor == 0)) keepers.push_back(r);
  }
  return keepers;
}

std::optional<StatePart> Topology::part_of(const std::string& state) const {
  const auto cut = shares_.cuts.find(state);
  if (cut == shares_.cuts.end()) return std::nullopt;
  return StatePart{cut->second, options_.tensor, group_->rank()};
}

Topology::Pairs Topology::stages_that_send(const Model& flat, const std::vector<std::string>& states) const {
  return onnx_train::stages_that_send(flat, owners_, states);
}

void Topology::connect(Device* device, const Pairs& pairs) const {
  if (!group_) return device->connect(*options_.collectives);
  device->connect(*group_);
  if (groups() > 1) device->connect(*group_->along(kDataAxis));
  for (const auto& [from, to] : pairs) {
    if (from == owner() || to == owner()) device->connect(*group_, from, to);
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
