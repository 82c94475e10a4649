// NonMaxSuppression (Neubeck and Van Gool, "Efficient non-maximum suppression", 2006), for the kernels of every device:
// of each class of each image, the box with the best score is taken, boxes that overlap it too much are dropped, and so
// on. Plain values and pure functions; any thread.
#pragma once

#include "kernels/dispatch.h"
#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace onnx_train {

struct BoxSelection {
  int64_t images = 0, classes = 0, boxes = 0;
  bool center = false;  // boxes are center and size, else two opposite corners

  ONNX_TRAIN_HD int64_t lines() const { return images * classes; }
};

// SelectBoxes (kernels/functions/selections.cc).
inline BoxSelection find_box_selection(const NodeSpec& spec) {
  const Shape scores = spec.in_shape(1);
  return {scores[0], scores[1], scores[2], spec.node().attr("center", 0) != 0};
}

// float32 or float64; most boxes of a class, int64, is one element.
inline bool supports_box_selection(const NodeSpec& spec) {
  for (const int i : {0, 1, 3, 4}) {
    if (spec.in_type(i) != spec.in_type(0)) return false;
  }
  return is_float_or_double(spec.in_type(0)) && spec.in_type(2) == DType::kInt64;
}

template <typename T>
struct CandidateBox {
  T low[2], high[2];

  ONNX_TRAIN_HD CandidateBox(const BoxSelection& selection, const T* numbers) {
    for (int k = 0; k < 2; ++k) {
      const T a = numbers[k], b = numbers[k + 2];
      low[k] = selection.center ? a - b / 2 : a < b ? a : b;
      high[k] = selection.center ? a + b / 2 : a < b ? b : a;
    }
  }
  ONNX_TRAIN_HD T area() const { return (high[0] - low[0]) * (high[1] - low[1]); }

  // Whether the part that both have in common is more than `most` of what both cover.
  ONNX_TRAIN_HD bool overlaps(const CandidateBox& other, T most) const {
    T common = 1;
    for (int k = 0; k < 2; ++k) {
      const T first = low[k] > other.low[k] ? low[k] : other.low[k];
      const T last = high[k] < other.high[k] ? high[k] : other.high[k];
      if (!(last > first)) return false;
      common *= last - first;
    }
    const T joint = area() + other.area() - common;
    return area() > 0 && other.area() > 0 && joint > 0 && common > 0 && common / joint > most;
  }
};

// Whether a score takes part. A bound that is not a number is none.
template <typename T>
ONNX_TRAIN_HD inline bool is_candidate(T score, T bound) {
  return score == score && (score > bound || bound != bound);
}

}  // namespace onnx_train
