#include "kernels/lowering/pipeline.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels/device.h"
#include "kernels/lowering/attention/block_attention.h"
#include "kernels/lowering/canonical/control_flow.h"
#include "kernels/lowering/canonical/inputs.h"
#include "kernels/lowering/canonical/quantization.h"
#include "kernels/lowering/canonical/segments.h"
#include "kernels/lowering/canonical/sequences_first.h"
#include "kernels/lowering/memory/recompute.h"
#include "kernels/lowering/updates/updates.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// ---- When

bool every_plan(const Lowering&) { return true; }  // these passes cannot be left out
bool by_default(const Lowering& l) { return l.options.on; }
bool with_8_bit_products(const Lowering& l) { return l.options.on && l.traits.multiplies_8_bits; }
bool on_gpus(const Lowering& l) { return l.options.on && l.traits.is_gpu; }

// ---- Runs

PlanInputs* inputs_of(Lowering& l) {
  if (l.inputs) return &*l.inputs;
  fail_as(ErrorCode::kUsage, "a plan says which inputs are given, and their sizes: show --plan --dump-lowering");
}

bool fix_defaults_of_plan(Model& model, Lowering& l) { return fix_defaults(model, *inputs_of(l)); }

bool set_shapes_of_plan(Model& model, Lowering& l) { return set_shapes(model, inputs_of(l)); }

// Wraps a pass that adds nodes to be inferred and folded.
template <typename F>
LoweringRun unfolds(F pass) {
  return [pass = LoweringRun(pass)](Model& model, Lowering& l) {
    const bool changed = pass(model, l);
    l.is_unfolded = l.is_unfolded || changed;
    return changed;
  };
}

// Folding again only after `unfolds` saves time: it infers every node, which is half of the planning time.
bool fold_again(Model& model, Lowering& l) { return l.is_unfolded && fold_constants(model); }

bool cut_open(Model& model, Lowering& l) {
  if (!has_open_shapes(*model.graph)) return false;
  if (l.is_unfolded) fold_constants(model);
  return cut_segments(model, l.output_sizes ? &*l.output_sizes : nullptr);
}

bool lay_channels_last(Model& model, Lowering& l) {
  const auto takes = l.traits.takes_channels_last;
  return channels_last(model, [&](const Node& node, ChannelsLastRule* rule) {
    return !needs_channels_first(l.device, node) && (!takes || takes(node, l.arithmetic, rule));
  });
}

bool expand_for_device(Model& model, Lowering& l) { return expand_control_flow(model, l.device.uses_host_memory()); }

bool attend_by_blocks(Model& model, Lowering& l) {
  return block_attention(model, l.traits.least_keys, l.traits.attends_through_roundings);
}

bool simplify_attention_masks(Model& model, Lowering& l) { return simplify_masks(model, l.traits.needs_finite_masks); }

bool batch_gradients(Model& model, Lowering& l) { return batch_weight_gradients(model, l.device, l.options.memory); }

// recompute copies a node whole: to have one copy of a weight again it would make those of all weights.
bool merge_kept_casts(Model& model, Lowering& l) {
  const bool recomputes = l.options.memory != 0 && l.options.memory != SIZE_MAX;
  return !recomputes && merge_casts(model);
}

bool fuse_supported(Model& model, Lowering& l) { return fuse_elementwise(model, l.traits.can_fuse); }

bool update_large_early(Model& model, Lowering& l) {
  const auto may_reject = [&](const Node& node) { return may_reject_data(l.device, node); };
  return update_early(model, may_reject, l.traits.early_update);
}

bool recompute_within_memory(Model& model, Lowering& l) {
  if (l.options.memory == 0) return false;
  l.recomputation = recompute(model, l.options.memory);
  return l.recomputation.nodes > 0;
}

bool order_by_memory(Model& model, Lowering& l) {
  return order_nodes(model, [&](const Node& node) { return may_reject_data(l.device, node); });
}

}  // namespace

const std::vector<LoweringPass>& lowering_table() {
  static const std::vector<LoweringPass> table = {
      {"fix_defaults", "canonical", {}, every_plan, fix_defaults_of_plan},
      {"set_shapes", "canonical", {"fix_defaults"}, every_plan, set_shapes_of_plan},
      {"fold_constants", "canonical", {"set_shapes"}, every_plan, fold_constants},
      {"put_sequences_first", "canonical", {"fold_constants"}, every_plan, unfolds(put_sequences_first)},
      {"share_recurrent_steps", "canonical", {"put_sequences_first"}, by_default, share_recurrent_steps, kEqualInBits},
      {"dequantize_at_readers", "canonical", {"fold_constants"}, by_default, dequantize_at_readers, kEqualInBits},
      // share_recurrent_steps comes first: expanded bodies of a recurrence and of its training form look alike.
      {"expand_functions", "canonical", {"share_recurrent_steps"}, every_plan, unfolds(expand_functions)},
      {"expand_quantization", "canonical", {"expand_functions"}, every_plan, unfolds(expand_quantization)},
      {"cut_segments", "canonical", {"expand_functions"}, every_plan, unfolds(cut_open)},
      {"expand_control_flow", "canonical", {"cut_segments"}, every_plan, unfolds(expand_for_device)},
      {"fold_constants", "canonical", {"expand_control_flow"}, every_plan, fold_again},
      // Steps of a Scan that was unrolled, and branches that were chosen from, may have such shapes.
      {"cut_segments", "canonical", {"expand_control_flow"}, every_plan, cut_open},
      {"remove_dead_nodes", "canonical", {"fold_constants"}, every_plan, remove_dead_nodes},
      {"share_scalars", "canonical", {"fold_constants"}, by_default, share_scalars, kEqualInBits},
      {"drop_zero_biases", "canonical", {"fold_constants"}, by_default, drop_zero_biases, kEqualInBits},
      {"drop_neutral_operands", "canonical", {"fold_constants"}, by_default, drop_neutral_operands, kEqualInBits},
      {"split_selections", "canonical", {"fold_constants"}, by_default, split_selections, kEqualInBits},
      {"round_once", "canonical", {}, by_default, round_once, kEqualInBits},
      {"fuse_batch_normalization", "canonical", {"round_once"}, by_default, fuse_batch_normalization},

      {"channels_last", "layout", {"fuse_batch_normalization"}, by_default, lay_channels_last},
      // fold_transposes also merges the Transposes of the passes before it with existing ones.
      {"fold_transposes", "layout", {"split_selections", "channels_last"}, by_default, fold_transposes},

      {"block_attention", "attention", {"fold_transposes"}, by_default, attend_by_blocks},
      {"simplify_masks", "attention", {"block_attention"}, by_default, simplify_attention_masks, kEqualInBits},

      {"add_gather_gradients", "gather", {}, by_default, add_gather_gradients},
      {"sparse_updates", "gather", {"add_gather_gradients"}, by_default, sparse_updates, kEqualButNorm},
      // merge_lookup_gradients takes the remaining GatherGrads.
      {"merge_lookup_gradients", "gather", {"add_gather_gradients", "sparse_updates"}, on_gpus, merge_lookup_gradients},

      // fold_transposes and block_attention look for nodes directly before and after products.
      {"assign_types", "types", {"channels_last", "fold_transposes", "block_attention"}, by_default, assign_types},

      {"product_epilogues", "products", {"assign_types"}, by_default, product_epilogues},
      {"merge_projections", "products", {"block_attention", "product_epilogues"}, on_gpus, merge_projections},
      // A product with an epilogue adds no sum.
      {"sum_products", "products", {"product_epilogues", "merge_projections"}, on_gpus, sum_products},

      {"pack_attention", "storage", {"merge_projections"}, by_default, pack_attention, kEqualInBits},
      // The passes before narrow_storage expect operands, biases and results of products in float32.
      {"narrow_storage", "storage", {"sum_products", "pack_attention"}, by_default, narrow_storage, kEqualInBits},
      // The operands and results of products have their stored types now.
      {"quantize_products", "storage", {"narrow_storage"}, with_8_bit_products, quantize_products},
      // Kernels that take float32 and round it themselves have done so.
      {"round_constants",
       "storage",
       {"narrow_storage", "quantize_products"},
       by_default,
       round_constants,
       kEqualInBits},

      // Products, losses and accuracies have their stored types, and no region has taken what stands between them.
      {"linear_cross_entropy", "fusion", {"narrow_storage"}, by_default, linear_cross_entropy},
      {"fuse_products", "fusion", {"narrow_storage", "quantize_products"}, on_gpus, fuse_products},
      // What is left of large vocabularies.
      {"pad_classes", "fusion", {"linear_cross_entropy", "fuse_products"}, on_gpus, pad_classes},
      {"batch_weight_gradients", "fusion", {"sum_products", "fuse_products", "pad_classes"}, on_gpus, batch_gradients},
      {"merge_casts", "fusion", {"narrow_storage"}, on_gpus, merge_kept_casts, kEqualInBits},
      // Before merge_casts, casts separate the lookups.
      {"merge_lookups", "fusion", {"merge_casts"}, on_gpus, merge_lookups, kEqualInBits},
      {"fuse_elementwise",
       "fusion",
       {"linear_cross_entropy", "fuse_products", "merge_casts"},
       by_default,
       fuse_supported},

      {"update_early", "updates", {"sparse_updates"}, by_default, update_large_early, kEqualButNorm},
      {"merge_updates", "updates", {"sparse_updates", "update_early"}, by_default, merge_updates, kEqualInBits},

      // Values inside a fusion region need no memory.
      {"recompute", "memory", {"fuse_elementwise", "merge_updates"}, by_default, recompute_within_memory, kEqualInBits},
      {"remove_dead_nodes", "memory", {"fuse_elementwise", "merge_updates"}, by_default, remove_dead_nodes},
      {"order_nodes", "memory", {"recompute", "remove_dead_nodes"}, by_default, order_by_memory, kEqualInBits},
  };
  return table;
}

bool LoweringOptions::takes(const std::string& name) const {
  return on && std::none_of(without.begin(), without.end(), [&](const std::string& left_out) {
           return std::equal(left_out.begin(), left_out.end(), name.begin(), name.end(),
                             [](char a, char b) { return a == b || (a == '-' && b == '_'); });
         });
}

std::set<std::string> optional_passes(const Device& device) {
  std::set<std::string> names = {kViews, kWriteInPlace, kUpdateInPlace, kReplay};
  const Lowering lowering{device, device.lowering(), {}};
  for (const LoweringPass& pass : lowering_table()) {
    if (pass.when(lowering)) names.insert(pass.name);
  }
  for (const LoweringPass& pass : lowering_table()) {
    if (pass.when == every_plan) names.erase(pass.name);
  }
  return names;
}

std::vector<Pass> lowering_passes(const Device& device, const LoweringOptions& options) {
  return lowering_passes(std::make_shared<Lowering>(Lowering{device, device.lowering(), options}));
}

std::vector<Pass> lowering_passes(const std::shared_ptr<Lowering>& lowering) {
  const Device& device = lowering->device;
  const LoweringOptions& options = lowering->options;
  const std::set<std::string> optional = optional_passes(device);
  for (std::string name : options.on ? options.without : std::vector<std::string>()) {
    std::replace(name.begin(), name.end(), '-', '_');
    if (optional.count(name)) continue;
    std::string all;
    for (const std::string& known : optional) all += (all.empty() ? "" : ", ") + known;
    fail("no lowering pass '", name, "' can be left out on ", device.name(), "; there are: ", all);
  }
  std::vector<Pass> passes;
  for (const LoweringPass& pass : lowering_table()) {
    if (!pass.when(*lowering) || (optional.count(pass.name) && !options.takes(pass.name))) continue;
    passes.push_back(
        {pass.name, [=, &run = pass.run](Model& model) { return run(model, *lowering); }, pass.phase, pass.numbers});
  }
  return passes;
}

}  // namespace onnx_train
