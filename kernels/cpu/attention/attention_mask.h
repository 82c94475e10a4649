// The mask of an attention, tile by tile: which tiles can be skipped because all their probabilities are 0, and which
// need no mask because the mask is constant there. A MaskTiles belongs to one prepared kernel; all its functions are
// const, so any thread may call them. scan() must finish before the others run.
//
// A tile is skipped only if the result does not change. |q·k| <= |q| |k| bounds every score. If the mask of a row is
// larger elsewhere by so much that exp of the difference is exactly 0 in float32, the tile adds nothing to the row's
// sum or to any product. If an element is NaN or infinite, the bound is NaN and nothing is skipped.
#pragma once

#include <vector>

#include "kernels/cpu/attention/attention.h"

namespace onnx_train::cpu {

// Summaries of the mask's tiles, computed by scan().
class MaskTiles {
 public:
  MaskTiles(const MaskLayout& layout, const Blocks& queries, const Blocks& keys)
      : layout_(layout), queries_(queries), keys_(keys) {}

  // Floats of workspace that scan() fills.
  size_t workspace() const;
  void scan(const void* mask, float* workspace) const;

  // Whether all probabilities of a tile are 0, given that no score exceeds `bound` in magnitude. False if `bound` is
  // NaN.
  bool is_empty(const float* workspace, int64_t head, int64_t query_block, int64_t key_block, float bound) const;
  // Turns products into scores: multiplies by `scale` and adds the mask. `stride` is the row stride of the tile.
  void apply(const void* mask, const float* workspace, int64_t head, int64_t query_block, int64_t key_block,
             float scale, float* scores, int64_t stride) const;
  // Sets gradients of hidden scores to 0; only for bool masks.
  void select(const void* mask, int64_t head, int64_t query_block, int64_t key_block, float* gradients,
              int64_t stride) const;

 private:
  int64_t row_blocks() const { return layout_.rows == 1 ? 1 : queries_.count(); }
  int64_t place(int64_t head, int64_t query_block, int64_t key_block) const;
  template <typename T, typename Value>
  void scan_row(const T* row, float* tiles, const Value& value) const;
  template <typename T, typename Value>
  void scan_all(const T* mask, float* workspace, const Value& value) const;
  // Offset of the first mask row of a tile.
  int64_t offset(int64_t head, int64_t query_block, int64_t key_block) const;
  int64_t row_step() const { return layout_.rows == 1 ? 0 : layout_.columns; }

  MaskLayout layout_;
  Blocks queries_, keys_;
};

}  // namespace onnx_train::cpu
