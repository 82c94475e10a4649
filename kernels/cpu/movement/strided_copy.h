// Copies a box of elements from one strided layout to another: the engine of Transpose, Expand, Slice, Concat, Split,
// Tile and their gradients. The constructor analyses sizes and strides. A StridedCopy is immutable; run() uses the
// thread pool and allocates nothing, and any thread may call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/geometry/indexing/boxes.h"

namespace onnx_train::cpu {

constexpr int kMaxAxes = 32;  // after merging contiguous axes

// Traverses the positions of a box in row-major order, with their offsets in both layouts.
class StridedIndex {
 public:
  StridedIndex(const CopyAxis* axes, int num_axes, int64_t index);
  int64_t from() const { return from_; }
  int64_t to() const { return to_; }
  void next();

 private:
  const CopyAxis* axes_;
  int num_axes_;
  int64_t at_[kMaxAxes];  // num_axes_ of them are used
  int64_t from_ = 0, to_ = 0;
};

class StridedCopy {
 public:
  // Throws Error if the box has more than kMaxAxes axes that cannot be merged.
  StridedCopy(std::vector<CopyAxis> axes, size_t element_bytes);
  // Copies the box; `from` and `to` point to its first element.
  void run(const void* from, void* to) const;

 private:
  template <typename T>
  void run_as(const T* from, T* to) const;
  template <typename T>
  void transpose(const T* from, T* to) const;

  std::vector<CopyAxis> outer_;   // all axes except the innermost; except two if `transposes_`
  CopyAxis inner_ = {1, 1, 1};    // the innermost in `to`
  CopyAxis columns_ = {1, 1, 1};  // if transposes_: contiguous in `from`
  bool transposes_ = false;       // inner_ and columns_ are a matrix to transpose
  int64_t num_outer_ = 1;         // positions of outer_; 0 if the box is empty
  size_t element_bytes_;
};

}  // namespace onnx_train::cpu
