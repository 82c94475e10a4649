// Panels of matrices' lines, and their products on AMX's tiles, which multiply bfloat16 numbers and add up in float32.
// float32 numbers are split into three of them (amx_product.h says how).
//
// A line is a row of a or a column of b: two lines that meet make one number of y. A panel is kPanel lines of one
// operand in the order in which tiles are read: for each kDepth of k, the parts one after the other, two tiles of
// kTileLines lines each. Two panels meet in registers: four tiles of sums stay there while k runs.
//
// Only where isa() is kAmx. T is float or BFloat16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu::amx {

using Element = uint16_t;  // the bits of a bfloat16 number

constexpr int64_t kTileLines = 16, kPanel = 2 * kTileLines, kDepth = 32;
template <typename T>
constexpr int64_t kParts = std::is_same_v<T, float> ? 3 : 1;

inline int64_t panels_of(int64_t lines) { return (lines + kPanel - 1) / kPanel; }
inline int64_t steps_of(int64_t depth) { return (depth + kDepth - 1) / kDepth; }
// In elements.
template <typename T>
int64_t panel_size(int64_t depth) {
  return steps_of(depth) * kDepth * kPanel * kParts<T>;
}
template <typename T>
int64_t panel_bytes(int64_t depth) {
  return panel_size<T>(depth) * static_cast<int64_t>(sizeof(Element));
}

// Some lines of an operand, and the distances in elements from line to line and along a line. One of the two is 1;
// of float32, none may be.
template <typename T>
struct Lines {
  const T* first;
  int64_t next_line, next_depth;

  Lines from(int64_t line, int64_t depth) const {
    return {first + line * next_line + depth * next_depth, next_line, next_depth};
  }
  Lines moved(int64_t elements) const { return {first + elements, next_line, next_depth}; }
  bool lie_in_one_piece() const { return next_depth == 1; }
};

// How a tile holds its lines: for a, a row of the tile is a line; for b, it is a pair of depths of all lines.
enum class Form { kLines, kPairs };

// Copies `count` lines, `depth` deep, into panels_of(count) panels. What is missing in them is zeros.
template <typename T>
void to_panels(const Lines<T>& lines, int64_t count, int64_t depth, Form form, Element* panels);

// While there is one, this thread may multiply panels.
class Tiles {
 public:
  Tiles();
  ~Tiles();
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// What will be needed next, fetched into the L2 cache while panels are multiplied, so many cache lines in each step.
struct Ahead {
  const Element* next = nullptr;
  int64_t cache_lines = 0;
};

// A panel of a and one of b that meet, counted from the first ones; and where their lines are, in elements from those
// of a block.
struct Pair {
  int32_t a, b;
  int32_t a_lines, b_lines;
};

struct Pairs {
  const Pair* first;
  int64_t count;
  int64_t a_size, b_size;  // from a panel to the next, in elements
};

inline constexpr Pair kFirstPair{};
inline constexpr Pairs kOnePair{&kFirstPair, 1, 0, 0};

// sums = Σ a b over the pairs, or sums + that, of panels of `steps` times kDepth of k; kPanel x kPanel numbers, aligned
// to 64 bytes.
template <typename T>
void multiply_panels(const Element* a, const Element* b, const Pairs& pairs, int64_t steps, bool onto_sums,
                     const Ahead& ahead, float* sums);

// A block of y, at most kPanel x kPanel: alpha times sums is added to y, or to a bias, or to 0.
template <typename T>
struct Block {
  Lines<T> a, b;  // what the sums are of
  int64_t rows, columns, depth;
  float alpha;
  bool onto_y;
  const float* bias;  // a row, or null
  float* y;
  BFloat16* rounded;  // where the result goes instead of y, or null
  int64_t y_row;      // of y and of `rounded`
};

// Where sums of split numbers are not finite, because numbers are not or overflow, they are made anew without AMX.
template <typename T>
void write(const Block<T>& block, const Pairs& pairs, float* sums);

}  // namespace onnx_train::cpu::amx
