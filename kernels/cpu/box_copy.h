// Moving a box of elements from one layout to another: the engine under Transpose, Expand, Slice, Concat, Split, Tile
// and their gradients. Made once from sizes and strides; running it uses the pool of threads and allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "onnx_passes/ir/types.h"

namespace onnx_train::cpu {

// One axis of a box: its size, and how many elements apart its neighbours lie in the two layouts. Strides may be 0
// (repeat) in `from`, and negative in both.
struct CopyAxis {
  int64_t size;
  int64_t from;
  int64_t to;
};

constexpr int kMaxAxes = 32;  // after merging those that lie together

// Walks the places of a box in row-major order and knows the offset of each in both layouts.
class Cursor {
 public:
  // At place number `index`.
  Cursor(const CopyAxis* axes, int num_axes, int64_t index);
  int64_t from() const { return from_; }
  int64_t to() const { return to_; }
  void next();

 private:
  const CopyAxis* axes_;
  int num_axes_;
  int64_t at_[kMaxAxes];  // of which num_axes_ are in use
  int64_t from_ = 0, to_ = 0;
};

class BoxCopy {
 public:
  // Throws Error when the box has more than kMaxAxes axes that cannot be merged.
  BoxCopy(std::vector<CopyAxis> axes, size_t element_bytes);
  // Copies; the pointers are those of the box's first element.
  void run(const void* from, void* to) const;

 private:
  template <typename T>
  void run_as(const T* from, T* to) const;
  template <typename T>
  void transpose(const T* from, T* to) const;

  std::vector<CopyAxis> outer_;   // all but the innermost, two when `transposes_`
  CopyAxis inner_ = {1, 1, 1};    // the innermost in `to`
  CopyAxis columns_ = {1, 1, 1};  // when transposes_: contiguous in `from`
  bool transposes_ = false;       // inner_ and columns_ are a matrix to transpose
  int64_t num_outer_ = 1;         // places of outer_; 0 when the box is empty
  size_t element_bytes_;
};

// Strides, in elements, of a dense tensor in row-major order.
Shape dense_strides(const Shape& shape);

}  // namespace onnx_train::cpu
