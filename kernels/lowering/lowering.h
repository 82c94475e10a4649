// Rewrites of a plan's graph. At this point the shapes of inputs are concrete and state tensors are inputs. Each
// rewrite is a Pass of the same pipeline as the training passes; pipeline.cc says in which order they run, and what
// needs what. A pass runs on the thread that builds the plan, which owns the model; it throws Error that names the
// node.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "onnx_passes/pass.h"

namespace onnx_train {

class Device;
struct ChannelsLastRule;
struct Recomputation;

struct LoweringOptions {
  bool on = true;                    // false: none but the passes that every plan needs
  std::vector<std::string> without;  // passes and choices to skip; '-' counts as '_'

  // Limit in bytes of the values alive at once (0: no limit), and where the pass `recompute` stores its report.
  size_t memory = 0;
  Recomputation* recomputation = nullptr;

  // Whether the pass or choice of this name is enabled.
  bool takes(const std::string& name) const;
};

// Choices of the plan. They do not rewrite the graph, but are switched in the same way as passes.
inline constexpr const char* kViews = "views";  // a reshape shares the memory of its input
inline constexpr const char* kWriteInPlace =
    "write_in_place";  // an output overwrites an input that is not read afterwards
inline constexpr const char* kUpdateInPlace = "update_in_place";  // a state is updated in place
inline constexpr const char* kReplay = "replay";                  // a device that can replays a recorded run

// The passes and choices that a plan on `device` may be without, by name.
std::set<std::string> optional_passes(const Device& device);

// The passes of a plan on `device`, in order. Throws Error that lists optional_passes if `without` names another one.
std::vector<Pass> lowering_passes(const Device& device, const LoweringOptions& options);

// Infers every node from the concrete shapes of the inputs. Nodes with constant inputs and small outputs are computed
// by the CPU kernels and become initializers.
bool fold_constants(Model& model);

// The contents of a value that constants determine, which may be too large to fold; computed by the CPU kernels. Empty
// if it depends on an input or on chance, or if it or a value before it has more than `most_elements`.
Tensor computed_constant(const Value* value, int64_t most_elements);

// Replaces calls of functions for which `device` has no kernel by the nodes of their bodies.
bool expand_functions(Model& model, const Device& device);

// Removes nodes whose outputs are not read, and initializers that are not used.
bool remove_dead_nodes(Model& model);

// A convolution or Gemm whose bias is constant zeros loses it.
bool drop_zero_biases(Model& model);

// Replaces the sum of a gradient and a GatherGrad by an addition of the gathered rows.
bool add_gather_gradients(Model& model);

// Folds transposes before and after products into the products.
bool fold_transposes(Model& model);

// Gathers of each entry of an axis, by constant indices, become pieces of x with that axis in front, which are views.
bool split_selections(Model& model);

// Replaces groups of element-wise nodes, with broadcasts, reductions and their element-wise consumers, by calls of
// `Fused`: one function per group, whose body they become. `can_fuse` tells which nodes the device's kernel supports.
// See fusion_region.h.
bool fuse_elementwise(Model& model, const std::function<bool(const Node&)>& can_fuse);

// ---- Layout and 16-bit storage

// An operator that only selects among 16-bit numbers (Relu, its gradient, ...) maps them to such numbers: the
// second rounding goes, and every reader takes the rounded value, so that no float32 copy is kept.
bool round_once(Model& model);

// Fuses Relu, or Add and Relu, with the batch normalization before it, and likewise their gradients, where `device` has
// such a kernel.
bool fuse_batch_normalization(Model& model, const Device& device);

// Stores images channels last, [batch, sizes.., channels], throughout regions around convolutions. `takes`, if there is
// one, says whether a node may take part, and may change what its kernel gains.
bool channels_last(Model& model, const std::function<bool(const Node&, ChannelsLastRule*)>& takes = nullptr);

// A node that moves a widened value moves the bfloat16 or float16 value instead, and a product that reads it
// gets a 16-bit operand.
bool move_bfloat16(Model& model);

// A product or convolution of two widened tensors of one 16-bit type reads these tensors: MatMul(Cast(a), Cast(b)),
// possibly with views in between, becomes onnx_train.MatMul(a, b) (kernels/functions), with float32 sums and the same
// result type. Does nothing if `device` has no such kernel: float32 products are faster then.
bool bfloat16_products(Model& model, const Device& device);

// A product adds the bias that follows it, and sums up the operand whose sums are the gradient of a bias, where
// `device` has such a kernel.
bool product_epilogues(Model& model, const Device& device);

// Products of one tensor that make the queries, keys and values of an attention become one, and so do the gradients of
// their weights and of that tensor, in mixed precision. pack_attention reads the thirds of the result.
bool merge_projections(Model& model);

// In a sum of products each product adds to what there is before it, where `device` has such a kernel.
bool sum_products(Model& model, const Device& device);

// Gives each reader of a widened value its own Cast: the value that is alive between the forward and backward pass is
// then bfloat16, and an element-wise kernel may absorb the Cast.
bool widen_at_readers(Model& model);

// Exchanges a movement and the narrowing Cast after it: 16 bits per element are moved, and the Cast follows a kernel
// that may write bfloat16 itself. Requires that there are no dead nodes.
bool narrow_before_moves(Model& model);

// A kernel of `device` that can read and write 16-bit floats absorbs the casts around its node: Cast, Softmax, Cast
// becomes one onnx_train.Softmax, which computes in float32 and rounds like the Cast did.
bool narrow_storage(Model& model, const Device& device);

// Fuses a product with the residual sum, the activation or its gradient that follows it, where `device` has such a
// kernel.
bool fuse_products(Model& model, const Device& device);

// The logits of a large vocabulary get columns that nobody reads, up to a multiple of 64, where tensor cores could not
// read their rows otherwise; on products of 16 bits.
bool pad_classes(Model& model);

// A loss finds the largest logit of each position, which the accuracy asks for, where `device` has such a kernel.
bool fuse_losses(Model& model, const Device& device);

// The gradients of the weights of equal layers become batched products, which keep a GPU busy where a single one has
// too few tiles. Where the plan's peak would grow by that, or `memory`, a limit in bytes unless it is 0, is less than
// twice the peak, they stay apart.
bool batch_weight_gradients(Model& model, const Device& device, size_t memory);

// The gradients of lookups in many tables, which are small, become one GatherGrad, whose result is split.
bool merge_lookup_gradients(Model& model, const Device& device);

// Merges the Casts to 16 bits of weights and inputs into one call of a function Casts, before all other nodes, and
// Casts to float32 that may stand together, as those of 16-bit gradients before the updates, into another.
bool merge_casts(Model& model);

// Lookups in many tables that may stand together become one call of a function Gathers.
bool merge_lookups(Model& model);

// narrow_storage for LSTM, GRU and RNN, forward and backward, whose operands mixed precision has rounded: their
// products read bfloat16 operands and sum in another order.
bool bfloat16_recurrences(Model& model, const Device& device);

// ---- Order

// Reorders the nodes if that clearly reduces peak memory. The write of a state stays after all earlier nodes that
// `may_reject` their data (device.h).
bool order_nodes(Model& model, const std::function<bool(const Node&)>& may_reject);

// Whether `device` has a kernel for a node that a pass has made and that nothing reads yet; else the node is removed.
bool runs_on(const Device& device, Node* made);

}  // namespace onnx_train
