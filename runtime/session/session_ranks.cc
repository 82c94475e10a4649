// What a session does as one of several ranks.
#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "kernels/collectives.h"
#include "kernels/cost.h"
#include "onnx_passes/distribution/data_parallel.h"
#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/distribution/stage_owners.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/pipeline/kept_faults.h"
#include "onnx_passes/training/body_draws.h"
#include "runtime/session/session.h"
#include "runtime/support/options.h"

namespace onnx_train {

void check_ranks(int64_t ranks, int64_t stages, Sharding sharding, bool sync_batch_norm) {
  if (ranks == 1 && (stages > 1 || sync_batch_norm)) {
    throw UsageError(concat(stages > 1 ? "--pipeline" : "--sync-batch-norm",
                            " is for several processes; leave it out, or start them (docs/distributed.md)"));
  }
  if (ranks % stages != 0) {
    throw UsageError(concat("--pipeline ", stages, " takes ", stages,
                            " processes, one for each stage, or a multiple, and there are ", ranks));
  }
  if (stages > 1 && (sharding != Sharding::kNone || sync_batch_norm)) {
    throw UsageError(concat("--pipeline: a stage has the states of its own layers, and one batch at a time; leave out ",
                            sync_batch_norm ? "--sync-batch-norm" : "--zero"));
  }
}

StateOwners Session::owners_of_states(const Model& model, const SessionOptions& options, int ranks) {
  check_ranks(ranks, options.stages, options.sharding, options.sync_batch_norm);
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

EntryOptions Session::entry_options(const EntryName& entry, const std::map<std::string, Shape>& shapes) const {
  EntryOptions options;
  options.entry = entry;
  if (has_entry(entry)) options.views = options_.views;
  options.states = state_.names();
  options.sync_batch_norm = options_.sync_batch_norm;
  options.overlaps = overlaps();
  options.owners = owners_;
  options.owner = owner();
  if (is_staged(entry)) {
    options.ranks = pipelines();
    options.stages = options_.stages;
    // A device that has a queue goes on when a kernel has only begun.
    options.stage = {.shares_batches = pipelines() > 1, .awaits_sends = !device_.uses_host_memory()};
    options.micro_batches = shapes;
  } else if (is_shared(entry)) {
    options.ranks = ranks();
  }
  return options;
}

bool Session::draws(const EntryName& entry) const {
  const auto [found, is_new] = draws_.try_emplace(entry, false);
  if (!is_new || (entry != Entry::kInitialize && !has_entry(entry))) return found->second;
  const auto has_any = [](const EntryPoint& e) {
    return has_random_operators(*e.algorithm) || has_random_operators(*e.initialization);
  };
  const bool may = has_random_operators(*model_.graph) || std::ranges::any_of(model_.entry_points, has_any);
  return found->second = may && has_random_operators(*flatten(model_, entry).graph);
}

Model Session::plain(const EntryName& entry, const std::map<std::string, Shape>& shapes,
                     const PipelineOptions& pipeline) const {
  PipelineOptions own = pipeline;
  if (!own.dump_dir.empty()) own.dump_dir += concat("/", entry, "/entry");
  const EntryOptions options = entry_options(entry, shapes);
  const std::vector<Pass> passes = wanted_passes(entry_rows(options));
  // What is shown has the contents of the states, so that its files can be loaded.
  const bool keeps_states = !options_.plans_only && owners_.empty();
  if (own.shows_input() && keeps_states) return make_entry(snapshot(), options, passes, own);
  return make_entry(model_, options, passes, own);
}

Model Session::plain(const EntryName& entry, const std::map<std::string, Shape>& shapes) const {
  return keeping_faults(options_.plan.pipeline,
                        [&](const PipelineOptions& pipeline) { return plain(entry, shapes, pipeline); });
}

void Session::connect_device() {
  if (ranks() == 1 || device_.uses_host_memory()) return;
  if (!is_pipeline()) return device_.connect(*options_.collectives);
  device_.connect(*pipeline_);
  if (pipelines() > 1) device_.connect(*pipeline_->along(kDataAxis));
  std::set<std::pair<int, int>> pairs;  // in one order on all ranks
  for (const Entry entry : {Entry::kAccumulate, Entry::kEvaluate}) {
    if (!has_entry(entry)) continue;
    const EntryOptions options = entry_options(entry, {});
    const Model of_all = make_entry(model_, options, passes_before_stages(options));
    pairs.merge(stages_that_send(of_all, owners_, state_.names()));
  }
  for (const auto& [from, to] : pairs) {
    if (from == owner() || to == owner()) device_.connect(*pipeline_, from, to);
  }
}

int Session::ranks() const { return options_.collectives ? options_.collectives->size() : 1; }
int Session::rank() const { return options_.collectives ? options_.collectives->rank() : 0; }

// What is under way cannot be looked at.
bool Session::overlaps() const { return options_.overlap && !options_.plan.detect_anomaly; }

bool Session::is_shared(const EntryName& entry) const {
  return ranks() > 1 && (entry == Entry::kAccumulate || entry == Entry::kEvaluate);
}

TensorMap Session::own_inputs(const EntryName& entry, int micro_batches, int64_t batches) const {
  TensorMap inputs;
  const bool shares = is_shared(entry) && pipelines() > 1, draws_numbers = draws(entry);
  for (int i = 0; i < micro_batches && (shares || draws_numbers); ++i) {
    const int64_t before = int64_t{i} * pipelines();  // batches of this round that come before those of micro-batch i
    if (shares) {
      inputs[micro_batch_input(kRankInput, i)] = Tensor::scalar<int64_t>(pipeline());
      inputs[micro_batch_input(kActiveRanksInput, i)] =
          Tensor::scalar<int64_t>(std::clamp<int64_t>(batches - before, 0, pipelines()));
    }
    if (draws_numbers) {
      const auto known = drawn_.find(entry);
      const uint64_t drawn = known == drawn_.end() ? 0 : known->second;
      const uint64_t batch = drawn + static_cast<uint64_t>(is_shared(entry) ? before + pipeline() : 0);
      // Not the numbers of training with the same seed.
      inputs[micro_batch_input(kRandomKeyInput, i)] = Tensor::of<uint64_t>({2}, {~options_.seed, batch});
    }
  }
  return inputs;
}

std::map<std::string, Shape> Session::with_own_inputs(const EntryName& entry,
                                                      std::map<std::string, Shape> shapes) const {
  if (is_staged(entry)) {
    const std::map<std::string, Shape> one = shapes;
    for (int i = count_micro_batches(shapes); i < micro_batches(); ++i) {
      for (const auto& [name, shape] : one) shapes[micro_batch_input(name, i)] = shape;
    }
  }
  for (const auto& [name, value] : own_inputs(entry, is_staged(entry) ? micro_batches() : 1, ranks()))
    shapes[name] = value.shape();
  return shapes;
}

// The work of a device that exchanges with a rank that is gone does not end by itself.
void Session::wait_for_run(int64_t mark) {
  if (Collectives* const ranks = collectives(); ranks && !device_.uses_host_memory()) {
    try {
      for (int times = 0; !stream_->has_reached(mark); ++times) {
        ranks->check();
        std::this_thread::sleep_for(std::chrono::microseconds(times < 100 ? 10 : 200));
      }
    } catch (...) {
      ranks->abort();
      throw;
    }
  }
  stream_->wait(mark);
}

size_t Session::state_bytes() const {
  size_t bytes = 0;
  for (size_t i = 0; i < state_.names().size(); ++i) {
    if (has_state(state_.names()[i]))
      bytes += static_cast<size_t>(num_elements(state_.shape(i))) * size_of(state_.dtype(i));
  }
  return bytes;
}

void Session::collect_state(size_t i, void* to) {
  const auto owner = owners_.find(state_.names()[i]);
  const int keeper = owner == owners_.end() ? 0 : owner->second;
  if (keeper == 0) {
    if (rank() == 0 && to) state_.read(i, to);
    return;
  }
  const auto bytes = static_cast<size_t>(num_elements(state_.shape(i))) * size_of(state_.dtype(i));
  const auto count = static_cast<size_t>(ranks());
  std::vector<std::span<const std::byte>> out(count);
  std::vector<std::span<std::byte>> in(count);
  Tensor value;
  if (keeper == rank()) {
    value = state_.get(state_.names()[i]);
    out[0] = {static_cast<const std::byte*>(value.data()), bytes};
  }
  if (rank() == 0) {
    if (!to) value = Tensor(state_.dtype(i), state_.shape(i));
    in[static_cast<size_t>(keeper)] = {static_cast<std::byte*>(to ? to : value.data()), bytes};
  }
  collectives()->exchange(state_.names()[i], out, in);
}

void Session::collect_choices() {
  if (!is_pipeline()) return;
  const std::string mine = choices_->text();
  const std::vector<uint32_t> sizes = collectives()->gather("the sizes of choices", static_cast<uint32_t>(mine.size()));
  std::vector<std::span<const std::byte>> out(sizes.size());
  std::vector<std::span<std::byte>> in(sizes.size());
  std::vector<std::string> texts(sizes.size());
  if (rank() > 0) out[0] = std::as_bytes(std::span(mine));
  for (size_t r = 1; r < sizes.size() && rank() == 0; ++r) {
    texts[r].resize(sizes[r]);
    in[r] = std::as_writable_bytes(std::span(texts[r]));
  }
  collectives()->exchange("choices", out, in);
  for (const std::string& text : texts) choices_->add(text);
  keep_choices();
}

}  // namespace onnx_train
