#include "kernels/cpu/x86/amx_panels.h"

#include <algorithm>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 reports false positives in its own intrinsics header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "kernels/cpu/x86/tiles.h"
#pragma GCC diagnostic pop

namespace onnx_train::cpu::amx {

#if defined(__x86_64__)

#define ONNX_TRAIN_TARGET_AMX [[gnu::target("arch=x86-64-v4,amx-tile,amx-bf16")]]

namespace {

constexpr int64_t kTile = kTileRows * kDepth;  // elements
constexpr int64_t kPartSize = 2 * kTile;       // one part of a panel, kDepth deep
template <typename T>
constexpr int64_t kStepSize = kParts<T>* kPartSize;  // all parts
constexpr int64_t kCacheLine = 64 / sizeof(Element);

ONNX_TRAIN_TARGET_AVX512 __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

ONNX_TRAIN_TARGET_AVX512 void fetch(const void* address) { _mm_prefetch(address, _MM_HINT_T0); }

// x = part[0] + part[1] + part[2], each in the upper 16 bits. Ties round away from 0, which is as accurate.
struct Split {
  __m512i part[kParts<float>];

  ONNX_TRAIN_TARGET_AVX512 explicit Split(__m512 x) {
    part[0] = nearest(x);
    x = _mm512_sub_ps(x, _mm512_castsi512_ps(part[0]));
    part[1] = nearest(x);
    part[2] = _mm512_castps_si512(_mm512_sub_ps(x, _mm512_castsi512_ps(part[1])));
  }

 private:
  ONNX_TRAIN_TARGET_AVX512 static __m512i nearest(__m512 x) {
    const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  }
};

// Packs rows that are contiguous along k: row r of the tile of each part is row r of the view.
ONNX_TRAIN_TARGET_AVX512 void pack_row_major(const StridedView<float>& view, int64_t count, int64_t depth,
                                             Element* tiles) {
  alignas(64) static constexpr uint16_t kUpperHalves[] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                          23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                          45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i upper_halves = _mm512_load_si512(kUpperHalves);
  const __mmask16 first_half = first_lanes(depth), second_half = first_lanes(depth - 16);
  for (int64_t r = 0; r < kTileRows; ++r, tiles += kDepth) {
    const float* row = view.first + r * view.row_stride;
    if (r < count) {
      fetch(row + 2 * kDepth);
      fetch(row + 2 * kDepth + 16);
    }
    const __mmask16 there = r < count ? 0xffff : 0;
    const Split first(_mm512_maskz_loadu_ps(first_half & there, row));
    const Split second(_mm512_maskz_loadu_ps(second_half & there, row + 16));
    for (int64_t p = 0; p < kParts<float>; ++p) {
      _mm512_store_si512(tiles + p * kPartSize, _mm512_permutex2var_epi16(first.part[p], upper_halves, second.part[p]));
    }
  }
}

ONNX_TRAIN_TARGET_AVX512 void pack_row_major(const StridedView<BFloat16>& view, int64_t count, int64_t depth,
                                             Element* tile) {
  const __mmask32 along = depth >= kDepth ? ~__mmask32{0} : (__mmask32{1} << depth) - 1;
  for (int64_t r = 0; r < kTileRows; ++r, tile += kDepth) {
    const BFloat16* row = view.first + r * view.row_stride;
    if (r < count) fetch(row + 4 * kDepth);
    _mm512_store_si512(tile, _mm512_maskz_loadu_epi16(r < count ? along : 0, row));
  }
}

// Loads one column: the element at one k of each row. `first` is the element of the first row.
ONNX_TRAIN_TARGET_AVX512 __m512 load_column(const StridedView<float>& view, const float* first, __mmask16 there) {
  if (view.row_stride == 1) return _mm512_maskz_loadu_ps(there, first);
  const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i places = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(static_cast<int>(view.row_stride)));
  return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, places, first, sizeof(float));
}

// Addresses of columns 2 r and 2 r + 1 of k, in the first row. Prefetches columns ahead: the hardware prefetcher does
// not follow strided rows.
template <typename T>
struct DepthPair {
  const T *even, *odd;

  ONNX_TRAIN_TARGET_AVX512 DepthPair(const StridedView<T>& view, int64_t r, int64_t depth)
      : even(view.first + 2 * r * view.k_stride), odd(even + view.k_stride) {
    constexpr int64_t kAhead = 8;
    if (2 * r + kAhead >= depth) return;
    fetch(even + kAhead * view.k_stride);
    fetch(odd + kAhead * view.k_stride);
  }
};

// Packs rows that are not contiguous along k: row r of the tile of each part holds the pairs (k = 2 r, k = 2 r + 1) of
// all rows of the view.
ONNX_TRAIN_TARGET_AVX512 void pack_vnni(const StridedView<float>& view, int64_t count, int64_t depth, Element* tiles) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const __mmask16 there = first_lanes(count);
  for (int64_t r = 0; r < kDepth / 2; ++r, tiles += kDepth) {
    const DepthPair from(view, r, depth);
    const Split first(load_column(view, from.even, 2 * r < depth ? there : 0));
    const Split second(load_column(view, from.odd, 2 * r + 1 < depth ? there : 0));
    for (int64_t p = 0; p < kParts<float>; ++p) {
      _mm512_store_si512(tiles + p * kPartSize, _mm512_or_si512(_mm512_srli_epi32(first.part[p], 16),
                                                                _mm512_and_si512(second.part[p], upper)));
    }
  }
}

ONNX_TRAIN_TARGET_AVX512 void pack_vnni(const StridedView<BFloat16>& view, int64_t count, int64_t depth,
                                        Element* tile) {
  const __mmask16 there = first_lanes(count);
  for (int64_t r = 0; r < kDepth / 2; ++r, tile += kDepth) {
    const DepthPair from(view, r, depth);
    const __m256i first = _mm256_maskz_loadu_epi16(2 * r < depth ? there : 0, from.even);
    const __m256i second = _mm256_maskz_loadu_epi16(2 * r + 1 < depth ? there : 0, from.odd);
    _mm512_store_si512(
        tile, _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16)));
  }
}

// Transposes a tile of 16 x 16 pairs, which converts between the two layouts.
ONNX_TRAIN_TARGET_AVX512 void transpose(Element* tile) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_load_si512(tile + i * kDepth);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  constexpr int kEven = 0x88, kOdd = 0xdd;  // 128-bit lanes of the two operands
  for (int half = 0; half < 16; half += 8) {
    for (int i = half; i < half + 4; ++i) {
      b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], kEven);
      b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], kOdd);
    }
  }
  for (int i = 0; i < 8; ++i) {
    _mm512_store_si512(tile + i * kDepth, _mm512_shuffle_i32x4(b[i], b[i + 8], kEven));
    _mm512_store_si512(tile + (i + 8) * kDepth, _mm512_shuffle_i32x4(b[i], b[i + 8], kOdd));
  }
}

// Packs one panel over one step of kDepth; `depth` and `count` are what is left of the view.
template <typename T>
void pack_step(const StridedView<T>& view, int64_t count, int64_t depth, PanelLayout layout, Element* step) {
  const bool contiguous_in_k = view.is_contiguous_in_k();
  for (int64_t first = 0; first < kPanel; first += kTileRows, step += kTile) {
    const StridedView<T> tile = view.from(first, 0);
    contiguous_in_k ? pack_row_major(tile, count - first, depth, step) : pack_vnni(tile, count - first, depth, step);
    if (contiguous_in_k == (layout == PanelLayout::kRowMajor)) continue;
    for (int64_t p = 0; p < kParts<T>; ++p) transpose(step + p * kPartSize);
  }
}

ONNX_TRAIN_TARGET_AMX void configure_tiles() {
  struct [[gnu::packed]] {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } configuration;
  asm volatile(""
               :
               : "r"(&configuration)
               : "memory");  // without it GCC 12 assumes that the next statement reads only eight bytes
  _tile_loadconfig(&configuration);
}

ONNX_TRAIN_TARGET_AMX void release_tiles() { _tile_release(); }

// Tile registers: 0 to 3 hold 2 x 2 tiles of sums, 4 and 5 hold a, 6 and 7 hold b.
ONNX_TRAIN_TARGET_AMX void load_sums(bool zeros, const float* sums) {
  if (zeros) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kPanel * sizeof(float));
    _tile_loadd(1, sums + kTileRows, kPanel * sizeof(float));
    _tile_loadd(2, sums + kTileRows * kPanel, kPanel * sizeof(float));
    _tile_loadd(3, sums + kTileRows * kPanel + kTileRows, kPanel * sizeof(float));
  }
}

ONNX_TRAIN_TARGET_AMX void store_sums(float* sums) {
  _tile_stored(0, sums, kPanel * sizeof(float));
  _tile_stored(1, sums + kTileRows, kPanel * sizeof(float));
  _tile_stored(2, sums + kTileRows * kPanel, kPanel * sizeof(float));
  _tile_stored(3, sums + kTileRows * kPanel + kTileRows, kPanel * sizeof(float));
}

ONNX_TRAIN_TARGET_AMX void load_a(const Element* part) {
  _tile_loadd(4, part, 64);
  _tile_loadd(5, part + kTile, 64);
}

ONNX_TRAIN_TARGET_AMX void load_b(const Element* part) {
  _tile_loadd(6, part, 64);
  _tile_loadd(7, part + kTile, 64);
}

ONNX_TRAIN_TARGET_AMX void multiply_tiles() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

template <typename T>
ONNX_TRAIN_TARGET_AMX void multiply_step(const Element* a, const Element* b) {
  if constexpr (kParts<T> == 1) {
    load_a(a);
    load_b(b);
    multiply_tiles();
  } else {
    // The order keeps one operand loaded from one product to the next.
    load_a(a + 2 * kPartSize);
    load_b(b);
    multiply_tiles();  // a3 b1
    load_a(a + kPartSize);
    multiply_tiles();  // a2 b1
    load_b(b + kPartSize);
    multiply_tiles();  // a2 b2
    load_a(a);
    multiply_tiles();  // a1 b2
    load_b(b);
    multiply_tiles();  // a1 b1
    load_b(b + 2 * kPartSize);
    multiply_tiles();  // a1 b3
  }
}

template <typename T>
ONNX_TRAIN_TARGET_AMX void multiply(const Element* a, const Element* b, const PanelPairs& pairs, int64_t steps,
                                    bool accumulate, const Prefetch& prefetch, float* sums) {
  const Element* next = prefetch.next;
  load_sums(!accumulate, sums);
  for (const PanelPair* pair = pairs.first; pair < pairs.first + pairs.count; ++pair) {
    const Element *from_a = a + pair->a * pairs.a_size, *from_b = b + pair->b * pairs.b_size;
    for (int64_t step = 0; step < steps; ++step, from_a += kStepSize<T>, from_b += kStepSize<T>) {
      for (int64_t i = 0; i < prefetch.cache_lines; ++i, next += kCacheLine) _mm_prefetch(next, _MM_HINT_T1);
      multiply_step<T>(from_a, from_b);
    }
  }
  store_sums(sums);
}

ONNX_TRAIN_TARGET_AVX512 bool all_finite(const float* sums) {
  constexpr int kInfiniteOrNan = 0x01 | 0x08 | 0x10 | 0x80;
  __mmask16 found = 0;
  for (int64_t i = 0; i < kPanel * kPanel; i += 16) {
    found |= _mm512_fpclass_ps_mask(_mm512_load_ps(sums + i), kInfiniteOrNan);
  }
  return found == 0;
}

// Computes the same sums without AMX, from the unsplit operands.
ONNX_TRAIN_TARGET_AVX512 void multiply_without_amx(const Block<float>& block, const PanelPairs& pairs, float* sums) {
  std::fill_n(sums, kPanel * kPanel, 0.0f);
  for (const PanelPair* pair = pairs.first; pair < pairs.first + pairs.count; ++pair) {
    const StridedView<float> a = block.a.moved(pair->a_offset), b = block.b.moved(pair->b_offset);
    for (int64_t k = 0; k < block.depth; ++k) {
      float row_of_b[kPanel] = {};
      for (int64_t j = 0; j < block.columns; ++j) row_of_b[j] = *b.from(j, k).first;
      for (int64_t i = 0; i < block.rows; ++i) {
        const float from_a = *a.from(i, k).first;
        for (int64_t j = 0; j < kPanel; ++j) sums[i * kPanel + j] += from_a * row_of_b[j];
      }
    }
  }
}

// x rounded to the nearest bfloat16, as BFloat16 rounds. GCC 12 generates slow code for stored.h's version here.
ONNX_TRAIN_TARGET_AVX512 __m256i rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan, nearest, nan), 16));
}

template <typename T>
ONNX_TRAIN_TARGET_AVX512 void write_sums(const Block<T>& block, const float* sums) {
  const __m512 alpha = _mm512_set1_ps(block.alpha);
  for (int64_t half = 0; half < kPanel; half += kTileRows) {
    const __mmask16 there = first_lanes(block.columns - half);
    const __m512 bias = block.bias ? _mm512_maskz_loadu_ps(there, block.bias + half) : _mm512_setzero_ps();
    for (int64_t i = 0; i < block.rows; ++i) {
      const int64_t at = i * block.y_row + half;
      const __m512 before = block.accumulate ? _mm512_maskz_loadu_ps(there, block.y + at) : bias;
      const __m512 y = _mm512_fmadd_ps(alpha, _mm512_load_ps(sums + i * kPanel + half), before);
      if (block.rounded) {
        _mm256_mask_storeu_epi16(block.rounded + at, there, rounded(y));
      } else {
        _mm512_mask_storeu_ps(block.y + at, there, y);
      }
    }
  }
}

}  // namespace

AmxTileScope::AmxTileScope() { configure_tiles(); }
AmxTileScope::~AmxTileScope() { release_tiles(); }

template <typename T>
void pack_panels(const StridedView<T>& view, int64_t count, int64_t depth, PanelLayout layout, Element* panels) {
  const int64_t all_panels = panels_of(count), all_steps = steps_of(depth);
  for (int64_t i = 0; i < all_panels * all_steps; ++i) {
    // Follows the order of the elements in memory.
    const int64_t panel = view.is_contiguous_in_k() ? i / all_steps : i % all_panels;
    const int64_t step = view.is_contiguous_in_k() ? i % all_steps : i / all_panels;
    pack_step(view.from(panel * kPanel, step * kDepth), count - panel * kPanel, depth - step * kDepth, layout,
              panels + (panel * all_steps + step) * kStepSize<T>);
  }
}

template <typename T>
void multiply_panels(const Element* a, const Element* b, const PanelPairs& pairs, int64_t steps, bool accumulate,
                     const Prefetch& prefetch, float* sums) {
  multiply<T>(a, b, pairs, steps, accumulate, prefetch, sums);
}

template <typename T>
void write(const Block<T>& block, [[maybe_unused]] const PanelPairs& pairs, float* sums) {
  if constexpr (std::is_same_v<T, float>) {
    if (!all_finite(sums)) multiply_without_amx(block, pairs, sums);
  }
  write_sums(block, sums);
}

#else

AmxTileScope::AmxTileScope() = default;
AmxTileScope::~AmxTileScope() = default;
template <typename T>
void pack_panels(const StridedView<T>&, int64_t, int64_t, PanelLayout, Element*) {}
template <typename T>
void multiply_panels(const Element*, const Element*, const PanelPairs&, int64_t, bool, const Prefetch&, float*) {}
template <typename T>
void write(const Block<T>&, const PanelPairs&, float*) {}

#endif

template void pack_panels(const StridedView<float>&, int64_t, int64_t, PanelLayout, Element*);
template void pack_panels(const StridedView<BFloat16>&, int64_t, int64_t, PanelLayout, Element*);
template void multiply_panels<float>(const Element*, const Element*, const PanelPairs&, int64_t, bool, const Prefetch&,
                                     float*);
template void multiply_panels<BFloat16>(const Element*, const Element*, const PanelPairs&, int64_t, bool,
                                        const Prefetch&, float*);
template void write(const Block<float>&, const PanelPairs&, float*);
template void write(const Block<BFloat16>&, const PanelPairs&, float*);

}  // namespace onnx_train::cpu::amx
