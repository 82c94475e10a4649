#include "kernels/cpu/attention/attention_mask.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"

namespace onnx_train::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kUnderflow = 105;  // exp(-kUnderflow) is 0

// Numbers stored per tile: its gap, its minimum, its maximum, and its maximum in the row that is being scanned.
constexpr int64_t kNumbers = 4;

struct Extremes {
  float low = kInfinity, high = -kInfinity;
  bool defined = true;
};

template <typename T, typename Value>
Extremes extremes_of(const T* mask, int64_t n, const Value& value) {
  float low = kInfinity, high = -kInfinity;
  int undefined = 0;
#pragma omp simd reduction(min : low) reduction(max : high) reduction(| : undefined)
  for (int64_t i = 0; i < n; ++i) {
    const float x = value(mask[i]);
    low = x < low ? x : low;
    high = x > high ? x : high;
    undefined |= x != x;
  }
  return {low, high, undefined == 0};
}

void scale_tile(int64_t rows, int64_t n, float scale, float* scores, int64_t stride) {
  vectorized([=] {
    for (int64_t i = 0; i < rows; ++i) {
      float* row = scores + i * stride;
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) row[j] *= scale;
    }
  });
}

}  // namespace

size_t MaskTiles::workspace() const {
  return static_cast<size_t>(layout_.planes * row_blocks() * keys_.count() * kNumbers);
}

int64_t MaskTiles::place(int64_t head, int64_t query_block, int64_t key_block) const {
  const int64_t block = layout_.rows == 1 ? 0 : query_block;
  const int64_t plane = layout_.plane[static_cast<size_t>(head)];
  return ((plane * row_blocks() + block) * keys_.count() + key_block) * kNumbers;
}

int64_t MaskTiles::offset(int64_t head, int64_t query_block, int64_t key_block) const {
  const int64_t row = layout_.rows == 1 ? 0 : queries_.begin(query_block);
  return (layout_.plane[static_cast<size_t>(head)] * layout_.rows + row) * layout_.columns + keys_.begin(key_block);
}

// A row without a finite maximum is NaN or fully masked; it must not cause any tile to be skipped.
template <typename T, typename Value>
void MaskTiles::scan_row(const T* row, float* tiles, const Value& value) const {
  float row_max = -kInfinity;
  bool defined = true;
  for (int64_t j = 0; j < keys_.count(); ++j) {
    const Extremes found = extremes_of(row + keys_.begin(j), keys_.length(j), value);
    float* tile = tiles + j * kNumbers;
    tile[1] = std::min(tile[1], found.low);
    tile[2] = std::max(tile[2], found.defined ? found.high : kInfinity);
    tile[3] = found.high;
    row_max = std::max(row_max, found.high);
    defined = defined && found.defined;
  }
  defined = defined && std::isfinite(row_max);
  for (int64_t j = 0; j < keys_.count(); ++j) {
    float* tile = tiles + j * kNumbers;
    tile[0] = std::min(tile[0], defined ? row_max - tile[3] : 0.0f);
  }
}

template <typename T, typename Value>
void MaskTiles::scan_all(const T* mask, float* workspace, const Value& value) const {
  const int64_t blocks = row_blocks(), in_row = keys_.count() * kNumbers;
  parallel_for(layout_.planes * blocks, 1, [&](int64_t begin, int64_t end) {
    vectorized([&] {
      for (int64_t block = begin; block < end; ++block) {
        float* tiles = workspace + block * in_row;
        for (int64_t j = 0; j < keys_.count(); ++j) {
          const float nothing[kNumbers] = {kInfinity, kInfinity, -kInfinity, -kInfinity};
          std::copy_n(nothing, kNumbers, tiles + j * kNumbers);
        }
        const int64_t plane = block / blocks, first = layout_.rows == 1 ? 0 : queries_.begin(block % blocks);
        const int64_t rows = layout_.rows == 1 ? 1 : queries_.length(block % blocks);
        const T* row = mask + (plane * layout_.rows + first) * layout_.columns;
        for (int64_t i = 0; i < rows; ++i) scan_row(row + i * layout_.columns, tiles, value);
      }
    });
  });
}

void MaskTiles::scan(const void* mask, float* workspace) const {
  const float fill = layout_.fill;
  switch (layout_.kind) {
    case MaskKind::kNone: return;
    case MaskKind::kAdded: return scan_all(static_cast<const float*>(mask), workspace, [](float x) { return x; });
    case MaskKind::kKeptWhereTrue:
      return scan_all(static_cast<const uint8_t*>(mask), workspace, [=](uint8_t kept) { return kept ? 0.0f : fill; });
    case MaskKind::kKeptWhereFalse:
      return scan_all(static_cast<const uint8_t*>(mask), workspace, [=](uint8_t gone) { return gone ? fill : 0.0f; });
  }
}

bool MaskTiles::is_empty(const float* workspace, int64_t head, int64_t query_block, int64_t key_block,
                         float bound) const {
  if (layout_.kind == MaskKind::kNone) return false;
  return workspace[place(head, query_block, key_block)] >= 2 * bound + kUnderflow;
}

void MaskTiles::apply(const void* mask, const float* workspace, int64_t head, int64_t query_block, int64_t key_block,
                      float scale, float* scores, int64_t stride) const {
  const int64_t rows = queries_.length(query_block), n = keys_.length(key_block);
  const auto each = [=](const auto* masks, int64_t step, const auto& masked) {
    vectorized([&] {
      for (int64_t i = 0; i < rows; ++i) {
        float* __restrict row = scores + i * stride;
        const auto* __restrict mask_row = masks + i * step;
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) row[j] = masked(row[j] * scale, mask_row[j]);
      }
    });
  };
  const float* tile = layout_.kind == MaskKind::kNone ? nullptr : workspace + place(head, query_block, key_block);
  if (!tile || (tile[1] == 0 && tile[2] == 0)) return scale_tile(rows, n, scale, scores, stride);
  const int64_t first = offset(head, query_block, key_block);
  const float fill = layout_.fill;
  if (layout_.kind == MaskKind::kAdded) {
    each(static_cast<const float*>(mask) + first, row_step(), [](float x, float m) { return x + m; });
  } else if (layout_.kind == MaskKind::kKeptWhereTrue) {
    each(static_cast<const uint8_t*>(mask) + first, row_step(), [=](float x, uint8_t m) { return m ? x : fill; });
  } else {
    each(static_cast<const uint8_t*>(mask) + first, row_step(), [=](float x, uint8_t m) { return m ? fill : x; });
  }
}

void MaskTiles::select(const void* mask, int64_t head, int64_t query_block, int64_t key_block, float* gradients,
                       int64_t stride) const {
  if (!layout_.selects()) return;
  const int64_t rows = queries_.length(query_block), n = keys_.length(key_block), step = row_step();
  const uint8_t* masks = static_cast<const uint8_t*>(mask) + offset(head, query_block, key_block);
  const bool keeps_true = layout_.kind == MaskKind::kKeptWhereTrue;
  vectorized([=] {
    for (int64_t i = 0; i < rows; ++i) {
      float* row = gradients + i * stride;
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) row[j] = (masks[i * step + j] != 0) == keeps_true ? row[j] : 0.0f;
    }
  });
}

}  // namespace onnx_train::cpu
