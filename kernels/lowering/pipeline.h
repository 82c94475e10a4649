// The passes of a plan: one table for all devices, in the order in which they run. A device has no passes of its own;
// it tells lowering what it supports (LoweringTraits). The table is constant; any thread may read it.
#pragma once

#include <functional>
#include <type_traits>
#include <vector>

#include "kernels/lowering/lowering.h"

namespace onnx_train {

// What lowering asks of a device beyond its kernels.
struct LoweringTraits {
  // Whether its kernel of Fused computes the node; see fuse_elementwise.
  bool (*can_fuse)(const Node&);
  // Whether a node may take part in channels_last; null: every node may.
  bool (*takes_channels_last)(const Node&, ChannelsLastRule*) = nullptr;
  // Whether a node costs a launch, and a product that has an epilogue or many tiles is faster than several nodes.
  bool is_gpu = false;
  bool has_narrow_recurrences = false;  // whether LSTM, GRU and RNN have kernels that read 16-bit operands
  // See block_attention and simplify_masks.
  int64_t least_keys = 1;
  bool attends_through_roundings = false, needs_finite_masks = false;
  size_t early_update = 0;  // least size of a gradient, in bytes, for update_early
};

// The lowering of one plan.
struct Lowering {
  const Device& device;
  const LoweringTraits& traits;
  LoweringOptions options;
  bool is_unfolded = false;  // a pass has added nodes since fold_constants
};

// A function that takes a model, or a model and a device, or a model and its lowering, as a function of the last two.
struct LoweringRun : std::function<bool(Model&, Lowering&)> {
  template <typename F>
  LoweringRun(F pass)
      : function([pass](Model& model, Lowering& lowering) {
          if constexpr (std::is_invocable_v<F, Model&>) {
            return pass(model);
          } else if constexpr (std::is_invocable_v<F, Model&, const Device&>) {
            return pass(model, lowering.device);
          } else {
            return pass(model, lowering);
          }
        }) {}
};

struct LoweringPass {
  const char* name;
  const char* phase;               // the folder of the pass; the passes of a phase follow each other
  std::vector<const char*> needs;  // passes that run before this one in each plan that has both
  bool (*when)(const Lowering&);   // whether the plan has the pass, unless `without` leaves it out
  LoweringRun run;
};

const std::vector<LoweringPass>& lowering_table();

}  // namespace onnx_train
