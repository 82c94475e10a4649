// Panels of split float32 numbers, and their products on AMX's tiles (amx_product.h says how numbers are split).
//
// A line is a row of a or a column of b: two lines that meet make one number of y. A panel is kPanel lines of one
// operand, split, in the order in which tiles are read: for each kDepth of k, kParts parts, two tiles of kTileLines
// lines each. Two panels meet in registers: four tiles of y stay there while k runs.
//
// Only where has_amx().
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnx_train::cpu::amx {

using Element = uint16_t;  // the bits of a bfloat16 number

constexpr int64_t kTileLines = 16, kPanel = 2 * kTileLines, kDepth = 32;
constexpr int64_t kParts = 3;

inline int64_t panels_of(int64_t lines) { return (lines + kPanel - 1) / kPanel; }
inline int64_t steps_of(int64_t depth) { return (depth + kDepth - 1) / kDepth; }
// In elements.
inline int64_t panel_size(int64_t depth) { return steps_of(depth) * kDepth * kPanel * kParts; }
inline int64_t panel_bytes(int64_t depth) { return panel_size(depth) * static_cast<int64_t>(sizeof(Element)); }

// Some lines of an operand, and the distances in elements from line to line and along a line. They are split fastest
// where one of the two is 1.
struct Lines {
  const float* first;
  int64_t next_line, next_depth;

  Lines from(int64_t line, int64_t depth) const {
    return {first + line * next_line + depth * next_depth, next_line, next_depth};
  }
  Lines moved(int64_t elements) const { return {first + elements, next_line, next_depth}; }
  bool lie_in_one_piece() const { return next_depth == 1; }
};

// How a tile holds its lines: for a, a row of the tile is a line; for b, it is a pair of depths of all lines.
enum class Form { kLines, kPairs };

// Splits `count` lines, `depth` deep, into panels_of(count) panels. What is missing in them is zeros.
void split(const Lines& lines, int64_t count, int64_t depth, Form form, Element* panels);

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
  const void* next = nullptr;
  int64_t cache_lines = 0;
};

// A block of y, at most kPanel x kPanel.
struct Block {
  Lines a, b;
  int64_t rows, columns, depth;
  float* y;
  int64_t y_row;
  float alpha = 1;
  bool onto_y = false;          // y, or else
  const float* bias = nullptr;  // this row, or else 0, is what alpha a b is added to
};

// A panel of a and one of b that meet, counted from the first ones; and where their lines are, in elements from those
// of the block.
struct Pair {
  int32_t a, b;
  int32_t a_lines, b_lines;
};

struct Pairs {
  const Pair* first;
  int64_t count;
  int64_t a_size, b_size;  // from a panel to the next, in elements
};

// The sum of the products of pairs of panels. Where numbers are not finite, or overflow, their lines are multiplied.
void multiply_pairs(const Element* a, const Element* b, const Pairs& pairs, const Block& block,
                    const Ahead& ahead = {});

// Of one pair: the panels of a's and b's lines.
inline void multiply_panels(const Element* a, const Element* b, const Block& block, const Ahead& ahead = {}) {
  constexpr Pair kPair{};
  multiply_pairs(a, b, {&kPair, 1, 0, 0}, block, ahead);
}

}  // namespace onnx_train::cpu::amx
