// Entry points of a session as plans take them, and the states of its ranks.
#include <algorithm>
#include <optional>

#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/pipeline/kept_faults.h"
#include "onnx_passes/training/body_draws.h"
#include "runtime/session/session.h"

namespace onnx_train {

EntryOptions Session::entry_options(const EntryName& entry, GradientSums sums,
                                    const std::map<std::string, Shape>& shapes) const {
  EntryOptions options = topology_.entry_options(entry, sums);
  if (has_entry(entry)) options.views = options_.views;
  options.states = state_.names();
  options.overlaps = options.overlaps && !options_.plan.detect_anomaly;  // what is under way cannot be looked at
  // A device that has a queue goes on when a kernel has only begun.
  options.stage.awaits_sends = !device_.uses_host_memory();
  options.micro_batches = shapes;
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

Model Session::plain(const EntryName& entry, GradientSums sums, const std::map<std::string, Shape>& shapes,
                     const PipelineOptions& pipeline) const {
  PipelineOptions own = pipeline;
  if (!own.dump_dir.empty()) own.dump_dir += concat("/", entry, "/entry");
  const EntryOptions options = entry_options(entry, sums, shapes);
  const std::vector<Pass> passes = wanted_passes(entry_rows(options));
  // What is shown has the contents of the states, so that its files can be loaded.
  const bool keeps_states = !options_.plans_only && !topology_.shards_states();
  if (own.shows_input() && keeps_states) return make_entry(snapshot(), options, passes, own);
  return make_entry(model_, options, passes, own);
}

Model Session::plain(const EntryName& entry, GradientSums sums, const std::map<std::string, Shape>& shapes) const {
  return keeping_faults(options_.plan.pipeline,
                        [&](const PipelineOptions& pipeline) { return plain(entry, sums, shapes, pipeline); });
}

GradientSums Session::sums_of_plan(const EntryName& entry) const { return topology_.sums_of(entry, true, false); }

void Session::connect_device() {
  if (topology_.ranks() == 1 || device_.uses_host_memory()) return;
  Topology::Pairs pairs;
  for (const Entry entry : {Entry::kAccumulate, Entry::kEvaluate}) {
    if (!topology_.is_staged(entry) || !has_entry(entry)) continue;
    const EntryOptions options = entry_options(entry, GradientSums::kEachRound, {});
    pairs.merge(topology_.stages_that_send(make_entry(model_, options, passes_before_stages(options)), state_.names()));
  }
  topology_.connect(&device_, pairs);
}

TensorMap Session::own_inputs(const EntryName& entry, int micro_batches, int64_t batches) const {
  TensorMap inputs;
  const bool draws_numbers = draws(entry);
  for (int i = 0; i < micro_batches; ++i) {
    topology_.add_inputs(entry, i, batches, &inputs);
    if (!draws_numbers) continue;
    const auto known = drawn_.find(entry);
    const uint64_t drawn = known == drawn_.end() ? 0 : known->second;
    const uint64_t batch = drawn + static_cast<uint64_t>(topology_.batch_of_round(entry, i));
    // Not the numbers of training with the same seed.
    inputs[micro_batch_input(kRandomKeyInput, i)] = Tensor::of<uint64_t>({2}, {~options_.seed, batch});
  }
  return inputs;
}

std::map<std::string, Shape> Session::with_own_inputs(const EntryName& entry,
                                                      std::map<std::string, Shape> shapes) const {
  const int micro_batches = topology_.is_staged(entry) ? count_micro_batches(shapes) : 1;
  for (const auto& [name, value] : own_inputs(entry, micro_batches, topology_.ranks())) shapes[name] = value.shape();
  return shapes;
}

size_t Session::state_bytes() const {
  size_t bytes = 0;
  for (size_t i = 0; i < state_.names().size(); ++i) {
    if (topology_.has_state(state_.names()[i])) bytes += state_.kept_bytes(i);
  }
  return bytes;
}

void Session::collect_state(size_t i, void* to) {
  const std::string& name = state_.names()[i];
  if (state_.part(i)) return collect_parts(i, to);
  const int keeper = topology_.keeper(name), rank = topology_.rank();
  if (keeper == 0) {
    if (rank == 0 && to) state_.read(i, to);
    return;
  }
  Tensor value;
  if (keeper == rank) value = state_.get(name);
  if (rank == 0 && !to) value = Tensor(state_.dtype(i), state_.shape(i));
  const auto bytes = static_cast<size_t>(num_elements(state_.shape(i))) * size_of(state_.dtype(i));
  auto* const own = static_cast<std::byte*>(rank == 0 && to ? to : value.data());
  topology_.send_to_first(name, keeper, {own, bytes}, {own, bytes});
}

void Session::collect_parts(size_t i, void* to) {
  const StatePart& part = *state_.part(i);
  const int first = topology_.keeper(state_.names()[i]);
  Tensor received(state_.dtype(i), shape_of_part(state_.shape(i), part.cut, part.parts));
  Tensor own = state_.keeps(i) ? state_.get_part(i) : received;
  for (int p = 0; p < part.parts; ++p) {
    const int from = first + p;
    if (from > 0) {
      topology_.send_to_first(concat(state_.names()[i], ", part ", p), from, {own.data<std::byte>(), own.bytes()},
                              {received.data<std::byte>(), received.bytes()});
    }
    if (topology_.rank() == 0 && to) put_part(from == 0 ? own : received, state_.shape(i), part.cut, part.parts, p, to);
  }
}

void Session::collect_choices() {
  if (!topology_.is_pipeline()) return;
  for (const std::string& text : topology_.gather("choices", choices_->text())) choices_->add(text);
  keep_choices();
}

}  // namespace onnx_train
