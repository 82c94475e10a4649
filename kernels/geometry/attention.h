// What BlockAttention and BlockAttentionGrad (kernels/functions/attention.cc) mean: where the matrices of their
// operands lie, and which mask belongs to which of them. Every device makes its kernels from it. Pure functions, called
// while a kernel is prepared; they throw Error for permutations that do not fit.
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
  // An input's elements are only to be read.
  void* in(const Launch& launch) const {
    return is_output ? launch.outputs[index] : const_cast<void*>(launch.inputs[index]);
  }
};

// Where a BlockAttention or a BlockAttentionGrad has a tensor; the node must have it. Packed nodes have q, k and v in
// one input, and their gradients in one output.
NodePlace place_of(const NodeSpec& spec, AttentionTensor tensor);

// The input that is the mask; it may be absent.
int mask_input(const NodeSpec& spec);

// A matrix [rows, width] for each batch element and head, inside a tensor.
struct Heads {
  Shape batch, batch_strides;
  std::vector<int64_t> starts;  // of each matrix, in elements
  int64_t rows = 0, width = 0, row_stride = 0;
  bool in_rows = false;  // the elements of a row are contiguous
};

struct AttentionOperands {
  Heads q, k, v;
  float scale = 1;
  bool nan_safe = false;  // probabilities that are NaN become 0, as those of rows whose highest score is at most
  float hidden = 0;       // this: -inf unless masks are finite

  int64_t heads() const { return static_cast<int64_t>(q.starts.size()); }
};

AttentionOperands attention_operands(const NodeSpec& spec);

// The matrices of one of the node's tensors. Those of a packed one begin inside the tensor.
Heads heads_of(const NodeSpec& spec, AttentionTensor tensor);

enum class MaskKind { kNone, kAdded, kKeptWhereTrue, kKeptWhereFalse };

struct MaskLayout {
  MaskKind kind = MaskKind::kNone;
  float fill = 0;                 // value of the scores that a bool mask hides
  int64_t planes = 0;             // number of different masks in the batch, stored one after the other
  std::vector<int64_t> plane;     // for each batch element
  int64_t rows = 0, columns = 0;  // of a plane; 1 row is shared by all queries

  bool selects() const { return kind == MaskKind::kKeptWhereTrue || kind == MaskKind::kKeptWhereFalse; }
};

MaskLayout mask_of(const NodeSpec& spec, const AttentionOperands& attention);

// The mask's contents if they are constant; else empty.
Tensor contents_of_mask(const NodeSpec& spec);

// For each query the first key that it sees, and the one after the last. A key is hidden by -1e28 or less, which gives
// it the probability 0 beside any other. Empty where the node has no mask, where `mask` (its contents) is empty or has
// several planes, and where a query sees no key.
struct VisibleKeys {
  std::vector<int64_t> begin, end;
};
VisibleKeys visible_keys(const MaskLayout& layout, const Tensor& mask, const AttentionOperands& attention);

// For each block of `rows` queries the keys that one of them sees; for each block of `rows` of all `keys` the queries
// that see one of them. Pairs [begin, end); empty if `visible` is.
std::vector<int64_t> keys_of_blocks(const VisibleKeys& visible, int64_t rows);
std::vector<int64_t> queries_of_blocks(const VisibleKeys& visible, int64_t keys, int64_t rows);

// Whether a mask of this layout hides the score at a position of its contents.
bool hides(const MaskLayout& layout, const Tensor& mask, int64_t position);

// The type in which attention is computed, and one in which q, k, v, y and their gradients may be stored as well.
struct AttentionTypes {
  DType computed, stored;

  AttentionTypes(DType dtype) : AttentionTypes(dtype, dtype) {}  // NOLINT: one type for all
  AttentionTypes(DType computed_as, DType stored_as) : computed(computed_as), stored(stored_as) {}
};

// Whether a kernel for these types can run the node: no tensor is empty, rows are contiguous; a mask of the computed
// type or of bools, with one column per key.
bool supports_attention(const NodeSpec& spec, const AttentionTypes& types);

}  // namespace onnx_train
