// What BlockAttention and BlockAttentionGrad (kernels/functions/attention.cc) mean: where the matrices of their
// operands lie, and which mask belongs to which of them. Every device makes its kernels from it. Pure functions, called
// while a kernel is prepared; they throw Error for permutations that do not fit.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

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
  bool nan_safe = false;  // probabilities that are NaN become 0

  int64_t heads() const { return static_cast<int64_t>(q.starts.size()); }
};

// The attention whose q, k and v are inputs `first`, `first` + 1 and `first` + 2.
AttentionOperands attention_operands(const NodeSpec& spec, int first);

// The matrices of input `i`, or of output `i`; the attribute `attribute` permutes its axes.
Heads heads_of_input(const NodeSpec& spec, int i, const char* attribute);
Heads heads_of_output(const NodeSpec& spec, int i, const char* attribute);

enum class MaskKind { kNone, kAdded, kKeptWhereTrue, kKeptWhereFalse };

struct MaskLayout {
  MaskKind kind = MaskKind::kNone;
  float fill = 0;                 // value of the scores that a bool mask hides
  int64_t planes = 0;             // number of different masks in the batch, stored one after the other
  std::vector<int64_t> plane;     // for each batch element
  int64_t rows = 0, columns = 0;  // of a plane; 1 row is shared by all queries

  bool selects() const { return kind == MaskKind::kKeptWhereTrue || kind == MaskKind::kKeptWhereFalse; }
};

// Describes input `i` of the node, which may be absent.
MaskLayout mask_of(const NodeSpec& spec, int i, const AttentionOperands& attention);

// The type in which attention is computed, and one in which q, k, v, y and their gradients may be stored as well.
struct AttentionTypes {
  DType computed, stored;

  AttentionTypes(DType dtype) : AttentionTypes(dtype, dtype) {}  // NOLINT: one type for all
  AttentionTypes(DType computed_as, DType stored_as) : computed(computed_as), stored(stored_as) {}
};

// Whether a kernel for these types can run the node: no tensor is empty, rows are contiguous; a mask of the computed
// type or of bools, with one column per key.
bool supports_attention(const NodeSpec& spec, const AttentionTypes& types);
bool supports_attention_gradient(const NodeSpec& spec, const AttentionTypes& types);

}  // namespace onnx_train
