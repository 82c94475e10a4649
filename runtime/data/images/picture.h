// A picture in memory: rows of pixels of 8-bit channels. A mask, whose pixels are classes of up to 16 bits, is a
// picture whose two channels are the high and the low byte of the class, so that all that moves pixels moves masks. A
// picture knows where the pixels of the one that it was made of are, so that boxes follow; one without channels has
// nothing else. Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace onnx_train {

// Where the point (x, y) goes: (a x + b y + c, d x + e y + f). The top left pixel covers (0, 0) to (1, 1).
struct AffineMap {
  double a = 1, b = 0, c = 0, d = 0, e = 1, f = 0;
};

struct Picture {
  int height = 0, width = 0, channels = 0;
  std::vector<uint8_t> bytes;
  AffineMap from_original;  // from points of the picture that was read; kept up by all that transform.h declares

  Picture() = default;
  Picture(int rows, int columns, int depth)  // black
      : height(rows), width(columns), channels(depth), bytes(size_t(rows) * size_t(columns) * size_t(depth)) {}

  uint8_t* at(int y, int x) { return bytes.data() + (size_t(y) * size_t(width) + size_t(x)) * size_t(channels); }
  const uint8_t* at(int y, int x) const {
    return bytes.data() + (size_t(y) * size_t(width) + size_t(x)) * size_t(channels);
  }
};

struct Box {
  int top, left, height, width;
};

constexpr int kMaskChannels = 2;
constexpr uint8_t kLetterboxGrey = 114;  // as YOLO's own code pads

}  // namespace onnx_train
