// Rewrites of a plan's graph, where input shapes are concrete and states are inputs. Each rewrite is a Pass, like the
// training passes; pipeline.cc lists their order and dependencies. A pass runs on the thread that builds the plan,
// which owns the model; it throws Error that names the node.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "onnx_passes/model/pass.h"

namespace onnx_train {

class Device;
struct ChannelsLastRule;
struct Lowering;

// Outputs whose shapes depend on data, in plans that follow each other. A plan leaves them out and computes, as its
// last outputs, the values that decide their shapes; the next one has the contents of these as constants, until all
// shapes are known.
struct OutputSizes {
  std::vector<Tensor> found;  // contents of such values, in the order in which plans have asked for them
  size_t used = 0;            // of them, in this plan
  size_t wanted = 0;          // the number of the plan's last outputs that are such values
};

struct LoweringOptions {
  bool on = true;                    // false: only the passes that every plan needs
  std::vector<std::string> without;  // passes and choices to skip; '-' counts as '_'
  size_t memory = 0;                 // limit in bytes of the values alive at once; 0: no limit

  // Whether the pass or choice of this name is enabled.
  bool takes(const std::string& name) const;
};

// Choices of the plan, which do not rewrite the graph but are switched like passes.
inline constexpr const char* kViews = "views";  // a reshape shares the memory of its input
inline constexpr const char* kWriteInPlace =
    "write_in_place";  // an output overwrites an input that is not read afterwards
inline constexpr const char* kUpdateInPlace = "update_in_place";  // a state is updated in place
inline constexpr const char* kReplay = "replay";  // a device that supports replay replays a recorded run

// Returns the names of the passes and choices that a plan on `device` may leave out.
std::set<std::string> optional_passes(const Device& device);

// Returns the passes of a plan, in order, which leave what they find in `lowering` (pipeline.h). Throws Error that
// lists optional_passes for another name.
std::vector<Pass> lowering_passes(const std::shared_ptr<Lowering>& lowering);
// The same to run one by one: what a plan is for is not known.
std::vector<Pass> lowering_passes(const Device& device, const LoweringOptions& options);

// Infers every node from the concrete input shapes. The CPU kernels compute nodes with constant inputs and small
// outputs, which become initializers.
bool fold_constants(Model& model);

// Returns the contents of a value that depends on constants only, computed by the CPU kernels; it may be too large to
// fold. Returns an empty tensor if the value depends on an input or is random, or if it or a value that it depends on
// has more than `most_elements`.
Tensor computed_constant(const Value* value, int64_t most_elements);

// Replaces calls of functions without a kernel on `device` by the nodes of their bodies.
bool expand_functions(Model& model, const Device& device);

// Removes nodes whose outputs are not read, and unused initializers.
bool remove_dead_nodes(Model& model);

// Merges nodes that compute the same number from the same numbers.
bool share_scalars(Model& model);
// Merges all nodes with one result that compute the same.
bool share_equal_nodes(Model& model);

// Removes the bias of a convolution or Gemm if it is constant zeros.
bool drop_zero_biases(Model& model);

// Removes element-wise nodes that leave their input as it is: sums with zeros, products by ones, Neg of Neg.
bool drop_neutral_operands(Model& model);

// Replaces the sum of a gradient and a GatherGrad by an addition of the gathered rows.
bool add_gather_gradients(Model& model);

// Folds transposes before and after products into the products.
bool fold_transposes(Model& model);

// Replaces Gathers of every entry of an axis, by constant indices, by views: pieces of x with that axis first.
bool split_selections(Model& model);

// Replaces groups of element-wise nodes, with broadcasts, reductions and their element-wise consumers, by calls of
// `Fused`, one function per group. `can_fuse` tells which nodes the device's kernel supports. See fusion_region.h.
bool fuse_elementwise(Model& model, const std::function<bool(const Node&)>& can_fuse);

// ---- Layout and 16-bit storage

// If an operator that only selects among its inputs (Relu, its gradient, ...) gets 16-bit numbers, its result needs no
// rounding. Removes the second rounding, and makes all readers read the rounded value, so that no float32 copy is kept.
bool round_once(Model& model);

// Fuses batch normalization with the Relu or Add and Relu after it, and likewise gradients, where `device` has a
// kernel.
bool fuse_batch_normalization(Model& model, const Device& device);

// Stores images channels last, [batch, sizes.., channels], in regions around convolutions. `takes`, if given, says
// whether a node may take part, and may change the gain of its kernel.
bool channels_last(Model& model, const std::function<bool(const Node&, ChannelsLastRule*)>& takes = nullptr);

// Assigns a stored type, float32 or 16 bits, to each value, and rewrites the graph: data movements move 16 bits; a
// product, convolution or recurrence of rounded operands reads 16 bits if `device` has a kernel for it (MatMul(Cast(a),
// Cast(b)) becomes onnx_train.MatMul(a, b), kernels/functions); each other reader of a value of 16 bits has a widening
// Cast of its own. Removes dead nodes.
bool assign_types(Model& model, const Device& device);

// Fuses a product with the bias that follows it, and with the sum of an operand that is the gradient of a bias, where
// `device` has a kernel.
bool product_epilogues(Model& model, const Device& device);

// In mixed precision, merges the products that compute queries, keys and values of an attention from one tensor, and
// likewise the gradients of their weights and of that tensor. pack_attention reads the thirds of the result.
bool merge_projections(Model& model);

// Makes each product of a sum of products add to the partial sum before it, where `device` has a kernel.
bool sum_products(Model& model, const Device& device);

// Absorbs the casts around a node whose kernel of `device` reads and writes 16-bit floats (narrow_nodes.h).
bool narrow_storage(Model& model, const Device& device);

// Makes constants of 16 bits of float32 constants that Casts round; plans share them (io/shared_copy.h).
bool round_constants(Model& model);

// Replaces products of operands that FakeQuantize has rounded to 8-bit floats by products of operands that are stored
// in 8 bits, where `device` has kernels for both.
bool quantize_products(Model& model, const Device& device);

// Fuses a product with the residual sum, the activation or its gradient that follows it, where `device` has a kernel.
bool fuse_products(Model& model, const Device& device);

// Replaces the product that makes the logits of a large vocabulary, their cross entropy and the gradients of both by
// one node that holds the logits of some positions at a time, where `device` has a kernel.
bool linear_cross_entropy(Model& model, const Device& device);

// Pads the logits of a large vocabulary with unread columns to a multiple of 64, where tensor cores could not read
// their rows otherwise; for 16-bit products.
bool pad_classes(Model& model);

// Batches the weight gradients of equal layers: a single one has too few tiles to keep a GPU busy. Does nothing if that
// would raise the plan's peak, or if `memory`, a limit in bytes unless it is 0, is less than twice the peak.
bool batch_weight_gradients(Model& model, const Device& device, size_t memory);

// Merges the small gradients of lookups in many tables into one GatherGrad and splits its result.
bool merge_lookup_gradients(Model& model, const Device& device);

// Merges the Casts to 16 bits of weights and inputs into one call of a function Casts before all other nodes, and
// independent Casts to float32, such as those of 16-bit gradients before the updates, into another.
bool merge_casts(Model& model);

// Merges independent lookups in many tables into one call of a function Gathers.
bool merge_lookups(Model& model);

// ---- Order

// Reorders the nodes if that clearly reduces peak memory. The write of a state stays after all nodes before it that
// `may_reject` their data (device.h).
bool order_nodes(Model& model, const std::function<bool(const Node&)>& may_reject);

// Whether `device` has a kernel for a new node, which nothing reads yet; removes the node otherwise.
bool runs_on(const Device& device, Node* made);

}  // namespace onnx_train
