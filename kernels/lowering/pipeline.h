// The passes of a plan, in order: one constant table for all devices, which any thread may read. A device has no passes
// of its own; its LoweringTraits say what it supports.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <vector>

#include "kernels/lowering/canonical/inputs.h"
#include "kernels/lowering/memory/recompute.h"
#include "kernels/lowering/support/lowering.h"

namespace onnx_train {

// Properties of a device, beyond its kernels, that lowering depends on.
struct LoweringTraits {
  // Whether the device's kernel of Fused computes the node; see fuse_elementwise.
  bool (*can_fuse)(const Node&);
  // Whether a node may take part in channels_last; null: every node may.
  bool (*takes_channels_last)(const Node&, const Arithmetic&, ChannelsLastRule*) = nullptr;
  // Whether each node costs a launch, and one product with an epilogue or many tiles is faster than several nodes.
  bool is_gpu = false;
  // Whether matrix units multiply 8-bit floats, for quantize_products.
  bool multiplies_8_bits = false;
  // See block_attention and simplify_masks.
  int64_t least_keys = 1;
  bool attends_through_roundings = false, needs_finite_masks = false;
  size_t early_update = 0;  // least size of a gradient, in bytes, for update_early
};

// The lowering of one plan: what it is for, and what its passes have found, beside the graph.
struct Lowering {
  const Device& device;
  const LoweringTraits& traits;
  LoweringOptions options;
  Arithmetic arithmetic = {};

  std::optional<PlanInputs> inputs = {};         // none: passes that need them refuse
  std::optional<OutputSizes> output_sizes = {};  // none: an output whose shape depends on data is refused
  Recomputation recomputation = {};              // what recompute has done
  bool is_unfolded = false;                      // whether a pass has added nodes since fold_constants
};

// A pass as a function of a model and its lowering; converts from functions of a model, or of a model and a device.
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

// What a plan without a pass computes, compared with one that has it: docs/lowering.md and `show --plan --passes` say
// it, and tests/python/test_lowering.py holds passes to it. Others may add in another order.
inline constexpr const char* kEqualInBits = "equal in bits";  // 0 and -0 are equal
inline constexpr const char* kEqualButNorm = "equal in bits but grad_norm";

struct LoweringPass {
  const char* name;
  const char* phase;               // the folder of the pass; the passes of a phase are consecutive
  std::vector<const char*> needs;  // passes that run before this one if a plan has both
  bool (*when)(const Lowering&);   // whether the plan has the pass, unless `without` leaves it out
  LoweringRun run;
  const char* numbers = "";  // kEqualInBits, kEqualButNorm, or "" where neither is promised
};

const std::vector<LoweringPass>& lowering_table();

}  // namespace onnx_train
