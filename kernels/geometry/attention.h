// The operands of BlockAttention and BlockAttentionGrad (kernels/functions/attention.cc) for the kernels of every
// device: the layout of their matrices, and the mask of each. Pure functions, called while a kernel is prepared; they
// throw Error for permutations that do not fit.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

// The tensors of an attention that hold a matrix for each batch element and head.
enum class AttentionTensor { kQ, kK, kV, kY, kDy, kDq, kDk, kDv };

// An input or an output of a node.
struct NodePlace {
  bool is_output = false;
  int index = 0;

  bool operator==(const NodePlace&) const = default;
  const Value* of(const Node& node) const { return is_output ? node.output(index) : node.input(index); }
  // The caller must not write to an input.
  void* in(const Launch& launch) const {
    return is_output ? launch.outputs[index] : const_cast<void*>(launch.inputs[index]);
  }
};

// Returns the position of a tensor, which must exist, in a BlockAttention or BlockAttentionGrad node. Packed nodes have
// q, k and v in one input, and their gradients in one output.
NodePlace place_of(const NodeSpec& spec, AttentionTensor tensor);

// Returns the number of the mask's input, which may be absent.
int mask_input(const NodeSpec& spec);

// A matrix [rows, width] for each batch element and head, inside a tensor.
struct Heads {
  Shape batch, batch_strides;
  std::vector<int64_t> starts;  // start of each matrix, in elements
  int64_t rows = 0, width = 0, row_stride = 0;
  bool in_rows = false;  // the elements of a row are contiguous
};

struct AttentionOperands {
  Heads q, k, v;
  float scale = 1;
  bool nan_safe = false;  // NaN probabilities become 0
  float hidden = 0;       // a row whose highest score is at most this is NaN; -inf unless masks are finite

  int64_t heads() const { return static_cast<int64_t>(q.starts.size()); }
};

AttentionOperands attention_operands(const NodeSpec& spec);

// Returns the matrices of one of the node's tensors. Those of a packed tensor start inside it.
Heads heads_of(const NodeSpec& spec, AttentionTensor tensor);

enum class MaskKind { kNone, kAdded, kKeptWhereTrue, kKeptWhereFalse };

struct MaskLayout {
  MaskKind kind = MaskKind::kNone;
  float fill = 0;                 // value of the scores that a bool mask hides
  int64_t planes = 0;             // number of different masks in the batch, stored one after the other
  std::vector<int64_t> plane;     // plane of each batch element
  int64_t rows = 0, columns = 0;  // sizes of a plane; all queries share a single row

  bool selects() const { return kind == MaskKind::kKeptWhereTrue || kind == MaskKind::kKeptWhereFalse; }
};

MaskLayout mask_of(const NodeSpec& spec, const AttentionOperands& attention);

// The mask's contents if constant, else an empty tensor.
Tensor contents_of_mask(const NodeSpec& spec);

// The first key that each query sees, and the one after the last. -1e28 or less hides a key: its probability is 0
// beside any other. Empty if there is no mask, if `mask` (its contents) is empty or has several planes, or if a query
// sees no key.
struct VisibleKeys {
  std::vector<int64_t> begin, end;
  std::vector<bool> plain;  // whether the mask changes no score between the two
};
VisibleKeys visible_keys(const MaskLayout& layout, const Tensor& mask, const AttentionOperands& attention);

// Numbers of blocks, from `begin` to the one before `end`.
struct BlockRange {
  int32_t begin, end;
};
// The blocks of keys that a block of queries sees; those among them that are full, and in which the mask changes
// nothing.
struct KeyBlocks {
  int32_t begin, end, plain_begin, plain_end;
};

// For each block of `rows` queries, the blocks of `columns` keys; for each of these, the blocks of queries from the
// first to the last that sees it.
std::vector<KeyBlocks> key_blocks(const MaskLayout& layout, const VisibleKeys& visible,
                                  const AttentionOperands& attention, int64_t rows, int64_t columns);
std::vector<BlockRange> query_blocks(const std::vector<KeyBlocks>& keys, int64_t count);

// Whether a mask of this layout hides the score at a position of its contents.
bool hides(const MaskLayout& layout, const Tensor& mask, int64_t position);

// The type in which attention is computed, and an alternative storage type of q, k, v, y and their gradients.
struct AttentionTypes {
  DType computed, stored;

  AttentionTypes(DType dtype) : AttentionTypes(dtype, dtype) {}  // NOLINT: one type for all
  AttentionTypes(DType computed_as, DType stored_as) : computed(computed_as), stored(stored_as) {}
};

// Whether kernels for these types support the node: no tensor is empty, rows are contiguous, and the mask has the
// computed type or bool and one column per key.
bool supports_attention(const NodeSpec& spec, const AttentionTypes& types);

}  // namespace onnx_train
