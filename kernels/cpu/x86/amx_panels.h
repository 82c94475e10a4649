// Packed panels of matrices and their products on AMX tiles, which multiply bfloat16 numbers and accumulate in float32.
// float32 operands are split into three bfloat16 parts (amx_product.h explains how).
//
// Both operands are viewed as rows along k: the rows of a and the columns of b. A panel packs kPanel rows in the order
// in which tiles are read: for each step of kDepth along k, the parts one after the other, two tiles of kTileRows rows
// each. The micro-kernel multiply_panels accumulates the kPanel x kPanel products of two panels in four tile registers
// while k runs.
//
// The caller owns all buffers. Functions here may run on any thread when isa() is kAmx; multiply_panels needs an
// AmxTileScope of the same thread. Nothing throws. T is float or BFloat16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu::amx {

using Element = uint16_t;  // the bits of a bfloat16 number

constexpr int64_t kTileRows = 16, kPanel = 2 * kTileRows, kDepth = 32;
template <typename T>
constexpr int64_t kParts = std::is_same_v<T, float> ? 3 : 1;

inline int64_t panels_of(int64_t rows) { return (rows + kPanel - 1) / kPanel; }
inline int64_t steps_of(int64_t depth) { return (depth + kDepth - 1) / kDepth; }
// Size of a panel over `depth` of k, in elements.
template <typename T>
int64_t panel_size(int64_t depth) {
  return steps_of(depth) * kDepth * kPanel * kParts<T>;
}
template <typename T>
int64_t panel_bytes(int64_t depth) {
  return panel_size<T>(depth) * static_cast<int64_t>(sizeof(Element));
}

// Some rows of an operand, with the distances in elements between rows and along k. One of the two strides is 1; for
// float32 operands both may be larger.
template <typename T>
struct StridedView {
  const T* first;
  int64_t row_stride, k_stride;

  StridedView from(int64_t row, int64_t depth) const {
    return {first + row * row_stride + depth * k_stride, row_stride, k_stride};
  }
  StridedView moved(int64_t elements) const { return {first + elements, row_stride, k_stride}; }
  bool is_contiguous_in_k() const { return k_stride == 1; }
};

// Layout of a tile. kRowMajor (for a): a row of the tile is a row of the view. kVnni (for b): a row of the tile is a
// pair of neighbouring k of all rows of the view.
enum class PanelLayout { kRowMajor, kVnni };

// Packs `count` rows, `depth` deep, into panels_of(count) panels, padded with zeros.
template <typename T>
void pack_panels(const StridedView<T>& view, int64_t count, int64_t depth, PanelLayout layout, Element* panels);

// Configures the AMX tiles of the calling thread; multiply_panels may run on this thread while the object lives.
class AmxTileScope {
 public:
  AmxTileScope();
  ~AmxTileScope();
  AmxTileScope(const AmxTileScope&) = delete;
  AmxTileScope& operator=(const AmxTileScope&) = delete;
};

// Panels to fetch into the L2 cache during a product: `cache_lines` lines in each step.
struct Prefetch {
  const Element* next = nullptr;
  int64_t cache_lines = 0;
};

// The numbers of the panels of a and b that are multiplied, and the offsets of their rows in the operands, in elements
// relative to Block::a and Block::b.
struct PanelPair {
  int32_t a, b;
  int32_t a_offset, b_offset;
};

struct PanelPairs {
  const PanelPair* first;
  int64_t count;
  int64_t a_size, b_size;  // distance between panels, in elements
};

inline constexpr PanelPair kFirstPanelPair{};
inline constexpr PanelPairs kOnePanelPair{&kFirstPanelPair, 1, 0, 0};

// sums = Σ over pairs of a bᵀ, added to `sums` when `accumulate`. Panels have `steps` steps of kDepth.
// sums[kPanel][kPanel] is aligned to 64 bytes.
template <typename T>
void multiply_panels(const Element* a, const Element* b, const PanelPairs& pairs, int64_t steps, bool accumulate,
                     const Prefetch& prefetch, float* sums);

// A block of y, at most kPanel x kPanel: y = alpha sums + (y, the bias, or 0).
template <typename T>
struct Block {
  StridedView<T> a, b;  // operands of the sums
  int64_t rows, columns, depth;
  float alpha;
  bool accumulate;
  const float* bias;  // one row, or null
  float* y;
  BFloat16* rounded;  // destination instead of y, or null
  int64_t y_row;      // row stride of y and of `rounded`
};

// Writes a block. Split operands that are not finite or that overflow give sums that are not finite; those blocks are
// recomputed without AMX.
template <typename T>
void write(const Block<T>& block, const PanelPairs& pairs, float* sums);

}  // namespace onnx_train::cpu::amx
