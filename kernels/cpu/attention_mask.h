// The mask of an attention, tile by tile: which tiles need not be computed because all of their probabilities are zero,
// and which need no mask because it is one number there.
//
// A tile is skipped only where that changes nothing. |q·k| <= |q| |k| bounds every score; where a row's mask is so much
// higher elsewhere that exp of the difference is exactly 0 in float32, the tile adds nothing to the row's sum, nor to
// any product. Where a number is NaN or infinite the bound is NaN, and nothing is skipped.
#pragma once

#include <vector>

#include "kernels/cpu/attention.h"

namespace onnx_train::cpu {

enum class MaskKind { kNone, kAdded, kKeptWhereTrue, kKeptWhereFalse };

struct MaskLayout {
  MaskKind kind = MaskKind::kNone;
  float fill = 0;                 // of scores that a bool mask does not keep
  int64_t planes = 0;             // different masks in the batch, one after the other
  std::vector<int64_t> plane;     // of each element of the batch
  int64_t rows = 0, columns = 0;  // of a plane: 1 row stands for all queries

  bool selects() const { return kind == MaskKind::kKeptWhereTrue || kind == MaskKind::kKeptWhereFalse; }
};

// Input `i` of a node, which may not have it.
MaskLayout mask_of(const NodeSpec& spec, int i, const AttentionSpec& attention);
// Whether the kernels know how to apply it: float32 or bool, one column for each key.
bool supports_mask(const NodeSpec& spec, int i, const AttentionSpec& attention);

// What is known of a mask's tiles once they have been looked at.
class MaskTiles {
 public:
  MaskTiles(const MaskLayout& layout, const Blocks& queries, const Blocks& keys)
      : layout_(layout), queries_(queries), keys_(keys) {}

  // In floats; what `scan` finds out lies there.
  size_t workspace() const;
  void scan(const void* mask, float* workspace) const;

  // Whether all probabilities of a tile are 0 when no score is farther from 0 than `bound`. False for a NaN.
  bool is_empty(const float* workspace, int64_t head, int64_t query_block, int64_t key_block, float bound) const;
  // Products become scores: they are multiplied by `scale` and masked. The rows of a tile begin `stride` numbers apart.
  void apply(const void* mask, const float* workspace, int64_t head, int64_t query_block, int64_t key_block,
             float scale, float* scores, int64_t stride) const;
  // Sets to 0 what a bool mask does not keep.
  void select(const void* mask, int64_t head, int64_t query_block, int64_t key_block, float* gradients,
              int64_t stride) const;

 private:
  int64_t row_blocks() const { return layout_.rows == 1 ? 1 : queries_.count(); }
  int64_t place(int64_t head, int64_t query_block, int64_t key_block) const;
  template <typename T, typename Value>
  void scan_row(const T* row, float* tiles, const Value& value) const;
  template <typename T, typename Value>
  void scan_all(const T* mask, float* workspace, const Value& value) const;
  // Where a tile's rows of the mask begin, and how far apart.
  int64_t offset(int64_t head, int64_t query_block, int64_t key_block) const;
  int64_t row_step() const { return layout_.rows == 1 ? 0 : layout_.columns; }

  MaskLayout layout_;
  Blocks queries_, keys_;
};

}  // namespace onnx_train::cpu
