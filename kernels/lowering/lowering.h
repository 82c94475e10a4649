// Rewrites of a plan's graph that every device shares: the shapes of the inputs are concrete by now, the state
// tensors are inputs. IR to IR, by the same Pass and pipeline as training passes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "onnx_passes/passes/pass.h"

namespace onnx_train {

class Device;
struct Recomputation;

// What every plan needs to run at all: infer every shape and fold what shapes make constant; give functions without a
// kernel of `device` way to their bodies; drop dead nodes.
std::vector<Pass> required_lowering(const Device& device);

struct LoweringOptions {
  bool on = true;                    // false: required_lowering only
  std::vector<std::string> without;  // passes and choices to leave out ("fuse-elementwise" is "fuse_elementwise")

  // Bytes of values that may be alive at once, and where the pass `recompute` says what it did for that; 0: any number.
  size_t memory = 0;
  Recomputation* recomputation = nullptr;

  // Whether a pass or choice of this name is taken.
  bool takes(const std::string& name) const;
};

// What a plan chooses when it places values in memory. These are no rewrites of the graph, but switched like them.
inline constexpr const char* kViews = "views";                    // a reshape is its input's memory
inline constexpr const char* kWriteInPlace = "write_in_place";    // an output takes the place of an input that dies
inline constexpr const char* kUpdateInPlace = "update_in_place";  // a state is updated where it lies

// The passes of a plan on `device`, in order. Throws Error that lists the passes when `without` names one that is not
// there or that every plan needs.
std::vector<Pass> lowering_passes(const Device& device, const LoweringOptions& options);

// Infers every node from the concrete shapes of the inputs. Nodes whose inputs are all constant and whose outputs are
// small are computed now, by the CPU's kernels, and become initializers.
bool fold_constants(Model& model);

// Calls of functions that no kernel of `device` runs become the nodes of their bodies.
bool expand_functions(Model& model, const Device& device);

// Removes nodes whose outputs nobody reads, and initializers that nobody uses.
bool remove_dead_nodes(Model& model);

// The sum of a gradient and one that GatherGrad spreads out becomes an addition of its rows.
bool add_gather_gradients(Model& model);

// Transposes in front of and behind products become part of the products.
bool fold_transposes(Model& model);

// Groups of element-wise nodes, with broadcasting, reductions and what follows from them, become calls of `Fused`: one
// function each, whose body they are. `can_fuse` says which nodes the device's kernel for it can hold. See island.h.
bool fuse_elementwise(Model& model, const std::function<bool(const Node&)>& can_fuse);

// Puts the nodes into another order where less memory is in use then. A state is written behind all nodes that stood
// before it and `may_refuse` their data (device.h).
bool order_nodes(Model& model, const std::function<bool(const Node&)>& may_refuse);

// `recompute` (recompute.h) with the budget of `options`.
Pass recompute_pass(const LoweringOptions& options);

// True for nodes that draw random numbers from elsewhere than their inputs.
bool is_random(const Node& node);

// True for nodes whose output is their first input's memory with another shape: Reshape, Squeeze, Unsqueeze, Flatten,
// Identity.
bool is_view(const Node& node);

}  // namespace onnx_train
