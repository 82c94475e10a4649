#include "kernels/cpu/amx_panels.h"

#include <algorithm>

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 finds one in its own header
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace onnx_train::cpu::amx {

#if defined(__x86_64__)

#define ONNX_TRAIN_VECTORS [[gnu::target("arch=x86-64-v4")]]
#define ONNX_TRAIN_TILES [[gnu::target("arch=x86-64-v4,amx-tile,amx-bf16")]]

namespace {

constexpr int64_t kTile = kTileLines * kDepth;     // elements
constexpr int64_t kPartSize = 2 * kTile;           // of one part of a panel, kDepth deep
constexpr int64_t kStepSize = kParts * kPartSize;  // of all parts
constexpr int64_t kCacheLine = 64;

ONNX_TRAIN_VECTORS __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

// x = part[0] + part[1] + part[2], each in the upper halves. Ties are rounded away from 0, which is as good.
struct Split {
  __m512i part[kParts];

  ONNX_TRAIN_VECTORS explicit Split(__m512 x) {
    part[0] = nearest(x);
    x = _mm512_sub_ps(x, _mm512_castsi512_ps(part[0]));
    part[1] = nearest(x);
    part[2] = _mm512_castps_si512(_mm512_sub_ps(x, _mm512_castsi512_ps(part[1])));
  }

 private:
  ONNX_TRAIN_VECTORS static __m512i nearest(__m512 x) {
    const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  }
};

// Lines that lie in one piece: row r of the tiles of each part is line r.
ONNX_TRAIN_VECTORS void split_lines(const Lines& lines, int64_t count, int64_t depth, Element* tiles) {
  alignas(64) static constexpr uint16_t kUpperHalves[] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                          23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                          45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i upper_halves = _mm512_load_si512(kUpperHalves);
  const __mmask16 first_half = first_lanes(depth), second_half = first_lanes(depth - 16);
  for (int64_t r = 0; r < kTileLines; ++r, tiles += kDepth) {
    const float* line = lines.first + r * lines.next_line;
    if (r < count) {
      _mm_prefetch(line + 2 * kDepth, _MM_HINT_T0);
      _mm_prefetch(line + 2 * kDepth + 16, _MM_HINT_T0);
    }
    const __mmask16 there = r < count ? 0xffff : 0;
    const Split first(_mm512_maskz_loadu_ps(first_half & there, line));
    const Split second(_mm512_maskz_loadu_ps(second_half & there, line + 16));
    for (int64_t p = 0; p < kParts; ++p) {
      _mm512_store_si512(tiles + p * kPartSize, _mm512_permutex2var_epi16(first.part[p], upper_halves, second.part[p]));
    }
  }
}

// Of each line the number at one depth, whose place in the first line is `first`.
ONNX_TRAIN_VECTORS __m512 number_of_each(const Lines& lines, const float* first, __mmask16 there) {
  if (lines.next_line == 1) return _mm512_maskz_loadu_ps(there, first);
  const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i places = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(static_cast<int>(lines.next_line)));
  return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, places, first, sizeof(float));
}

// Other lines: row r of the tiles of each part is depths 2 r and 2 r + 1 of all of them.
ONNX_TRAIN_VECTORS void split_pairs(const Lines& lines, int64_t count, int64_t depth, Element* tiles) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const __mmask16 there = first_lanes(count);
  constexpr int64_t kAhead = 8;  // depths: the processor does not see lines come
  for (int64_t r = 0; r < kDepth / 2; ++r, tiles += kDepth) {
    const float *even = lines.first + 2 * r * lines.next_depth, *odd = even + lines.next_depth;
    if (2 * r + kAhead < depth) {
      _mm_prefetch(even + kAhead * lines.next_depth, _MM_HINT_T0);
      _mm_prefetch(odd + kAhead * lines.next_depth, _MM_HINT_T0);
    }
    const Split first(number_of_each(lines, even, 2 * r < depth ? there : 0));
    const Split second(number_of_each(lines, odd, 2 * r + 1 < depth ? there : 0));
    for (int64_t p = 0; p < kParts; ++p) {
      _mm512_store_si512(tiles + p * kPartSize, _mm512_or_si512(_mm512_srli_epi32(first.part[p], 16),
                                                                _mm512_and_si512(second.part[p], upper)));
    }
  }
}

// Transposes a tile of 16 x 16 pairs: from one form to the other.
ONNX_TRAIN_VECTORS void transpose(Element* tile) {
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
  constexpr int kEven = 0x88, kOdd = 0xdd;  // of the quarters of both
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

// One panel, kDepth deep, of lines of this depth. A second tile of a without lines is never read.
void split_step(const Lines& lines, int64_t count, int64_t depth, Form form, Element* step) {
  const bool in_one_piece = lines.lie_in_one_piece();
  const int64_t lines_to_fill = form == Form::kLines ? count : kPanel;
  for (int64_t first = 0; first < lines_to_fill; first += kTileLines, step += kTile) {
    const auto split_tile = in_one_piece ? split_lines : split_pairs;
    split_tile(lines.from(first, 0), count - first, depth, step);
    if (in_one_piece == (form == Form::kLines)) continue;
    for (int64_t p = 0; p < kParts; ++p) transpose(step + p * kPartSize);
  }
}

ONNX_TRAIN_TILES void configure_tiles() {
  struct [[gnu::packed]] {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } configuration;
  asm volatile("" : : "r"(&configuration) : "memory");  // GCC 12 thinks that the next line reads eight bytes of it
  _tile_loadconfig(&configuration);
}

ONNX_TRAIN_TILES void release_tiles() { _tile_release(); }

// Tiles 0 to 3 are sums, 4 and 5 a's, 6 and 7 b's.
ONNX_TRAIN_TILES void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

ONNX_TRAIN_TILES void load_a(const Element* part) {
  _tile_loadd(4, part, 64);
  _tile_loadd(5, part + kTile, 64);
}

ONNX_TRAIN_TILES void load_b(const Element* part) {
  _tile_loadd(6, part, 64);
  _tile_loadd(7, part + kTile, 64);
}

ONNX_TRAIN_TILES void multiply_tiles() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

ONNX_TRAIN_TILES void store_sums(float* sums) {
  constexpr int kRowBytes = kPanel * sizeof(float);
  _tile_stored(0, sums, kRowBytes);
  _tile_stored(1, sums + kTileLines, kRowBytes);
  _tile_stored(2, sums + kTileLines * kPanel, kRowBytes);
  _tile_stored(3, sums + kTileLines * kPanel + kTileLines, kRowBytes);
}

// From one product of parts to the next, one of the two stays.
ONNX_TRAIN_TILES void multiply_whole(const Element* a, const Element* b, int64_t steps, int64_t fetched,
                                     const char*& next) {
  for (; steps-- > 0; a += kStepSize, b += kStepSize) {
    for (int64_t i = 0; i < fetched; ++i, next += kCacheLine) _mm_prefetch(next, _MM_HINT_T1);
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

// Where a has one tile of lines. Two tiles of sums alone would wait for themselves: there are two of each, which take
// turns and are added up in the end.
ONNX_TRAIN_TILES void multiply_half(const Element* a, const Element* b, int64_t steps) {
  for (; steps-- > 0; a += kStepSize, b += kStepSize) {
    _tile_loadd(4, a + 2 * kPartSize, 64);
    load_b(b);
    _tile_dpbf16ps(0, 4, 6);  // a3 b1
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(4, a + kPartSize, 64);
    _tile_dpbf16ps(2, 4, 6);  // a2 b1
    _tile_dpbf16ps(3, 4, 7);
    load_b(b + kPartSize);
    _tile_dpbf16ps(0, 4, 6);  // a2 b2
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(4, a, 64);
    _tile_dpbf16ps(2, 4, 6);  // a1 b2
    _tile_dpbf16ps(3, 4, 7);
    load_b(b);
    _tile_dpbf16ps(0, 4, 6);  // a1 b1
    _tile_dpbf16ps(1, 4, 7);
    load_b(b + 2 * kPartSize);
    _tile_dpbf16ps(2, 4, 6);  // a1 b3
    _tile_dpbf16ps(3, 4, 7);
  }
}

ONNX_TRAIN_TILES void add_products(const Element* a, const Element* b, const Pairs& pairs, const Block& block,
                                   const Ahead& ahead, float* sums) {
  const bool whole = block.rows > kTileLines;
  const int64_t steps = steps_of(block.depth);
  const char* next = static_cast<const char*>(ahead.next);
  zero_sums();
  for (const Pair* pair = pairs.first; pair < pairs.first + pairs.count; ++pair) {
    const Element *from_a = a + pair->a * pairs.a_size, *from_b = b + pair->b * pairs.b_size;
    whole ? multiply_whole(from_a, from_b, steps, ahead.cache_lines, next) : multiply_half(from_a, from_b, steps);
  }
  store_sums(sums);
  constexpr int64_t kHalf = kTileLines * kPanel;
  for (int64_t i = 0; i < kHalf && !whole; ++i) sums[i] += sums[kHalf + i];
}

ONNX_TRAIN_VECTORS bool all_finite(const float* sums) {
  constexpr int kInfiniteOrNan = 0x01 | 0x08 | 0x10 | 0x80;
  __mmask16 found = 0;
  for (int64_t i = 0; i < kPanel * kPanel; i += 16) {
    found |= _mm512_fpclass_ps_mask(_mm512_load_ps(sums + i), kInfiniteOrNan);
  }
  return found == 0;
}

// The same without AMX.
ONNX_TRAIN_VECTORS void multiply_lines(const Lines& a, const Lines& b, const Block& block, float* sums) {
  for (int64_t k = 0; k < block.depth; ++k) {
    float row_of_b[kPanel] = {};
    for (int64_t j = 0; j < block.columns; ++j) row_of_b[j] = *b.from(j, k).first;
    for (int64_t i = 0; i < block.rows; ++i) {
      const float from_a = *a.from(i, k).first;
      for (int64_t j = 0; j < kPanel; ++j) sums[i * kPanel + j] += from_a * row_of_b[j];
    }
  }
}

ONNX_TRAIN_VECTORS void write(const Block& block, const float* sums) {
  const __m512 alpha = _mm512_set1_ps(block.alpha);
  for (int64_t half = 0; half < kPanel; half += kTileLines) {
    const __mmask16 there = first_lanes(block.columns - half);
    const __m512 bias = block.bias ? _mm512_maskz_loadu_ps(there, block.bias + half) : _mm512_setzero_ps();
    float* y = block.y + half;
    for (int64_t i = 0; i < block.rows; ++i, y += block.y_row) {
      const __m512 before = block.onto_y ? _mm512_maskz_loadu_ps(there, y) : bias;
      _mm512_mask_storeu_ps(y, there, _mm512_fmadd_ps(alpha, _mm512_load_ps(sums + i * kPanel + half), before));
    }
  }
}

}  // namespace

Tiles::Tiles() { configure_tiles(); }
Tiles::~Tiles() { release_tiles(); }

void split(const Lines& lines, int64_t count, int64_t depth, Form form, Element* panels) {
  const int64_t all_panels = panels_of(count), all_steps = steps_of(depth);
  for (int64_t i = 0; i < all_panels * all_steps; ++i) {
    // In the order in which the numbers lie.
    const int64_t panel = lines.lie_in_one_piece() ? i / all_steps : i % all_panels;
    const int64_t step = lines.lie_in_one_piece() ? i % all_steps : i / all_panels;
    split_step(lines.from(panel * kPanel, step * kDepth), std::min(kPanel, count - panel * kPanel),
               depth - step * kDepth, form, panels + (panel * all_steps + step) * kStepSize);
  }
}

void multiply_pairs(const Element* a, const Element* b, const Pairs& pairs, const Block& block, const Ahead& ahead) {
  alignas(kCacheLine) float sums[kPanel * kPanel];
  add_products(a, b, pairs, block, ahead, sums);
  if (!all_finite(sums)) {
    std::fill_n(sums, kPanel * kPanel, 0.0f);
    for (const Pair* pair = pairs.first; pair < pairs.first + pairs.count; ++pair) {
      multiply_lines(block.a.moved(pair->a_lines), block.b.moved(pair->b_lines), block, sums);
    }
  }
  write(block, sums);
}

#else

Tiles::Tiles() = default;
Tiles::~Tiles() = default;
void split(const Lines&, int64_t, int64_t, Form, Element*) {}
void multiply_pairs(const Element*, const Element*, const Pairs&, const Block&, const Ahead&) {}

#endif

}  // namespace onnx_train::cpu::amx
