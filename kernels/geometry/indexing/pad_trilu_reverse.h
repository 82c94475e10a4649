// Pad, Trilu and ReverseSequence, for the kernels of every device. Plain values and pure functions; any thread. They
// throw Error that names the node.
#pragma once

#include <functional>
#include <string>

#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace onnx_train {

// ---- Pad

enum class PadMode { kConstant, kReflect, kEdge, kWrap };

// The padding has at least one axis; a scalar counts as a tensor of one element.
struct Padding {
  Shape in, out;
  std::vector<int64_t> before;  // elements added before each axis
  PadMode mode;
};

Padding padding_of(const NodeSpec& spec);
bool supports_pad(const NodeSpec& spec);

inline constexpr int64_t kBorder = -1;

ONNX_TRAIN_HD inline int64_t positive_modulo(int64_t a, int64_t n) { return (a % n + n) % n; }

// Maps `place`, which may be outside [0, size), to the element of the axis that appears there.
ONNX_TRAIN_HD inline int64_t shown(PadMode mode, int64_t place, int64_t size) {
  if (place >= 0 && place < size) return place;
  if (mode == PadMode::kConstant) return kBorder;
  if (mode == PadMode::kEdge || size == 1) return place < 0 ? 0 : size - 1;
  if (mode == PadMode::kWrap) return positive_modulo(place, size);
  const int64_t in_period = positive_modulo(place, 2 * (size - 1));  // kReflect
  return in_period < size ? in_period : 2 * (size - 1) - in_period;
}

// ---- Trilu: copies one side of the k-th diagonal, zeros elsewhere

struct Triangle {
  int64_t rows, columns;
  bool upper;
  // The range [first, last) of copied columns of row `row`. Any k is allowed.
  struct Columns {
    int64_t first, last;
  };
  ONNX_TRAIN_HD Columns columns_of(int64_t row, int64_t k) const {
    const int64_t within = k < -rows ? -rows : k > columns ? columns : k;  // so that sums cannot overflow
    const int64_t at = row + within + (upper ? 0 : 1), edge = at < 0 ? 0 : at > columns ? columns : at;
    return {upper ? edge : 0, upper ? columns : edge};
  }
};

Triangle triangle_of(const NodeSpec& spec);
bool supports_trilu(const NodeSpec& spec);

// ---- ReverseSequence: reverses the first n elements of each sequence, where n is its length

struct SequenceReversal {
  int64_t batch, time;
  int64_t batch_stride, time_stride;  // strides in rows
  int64_t row_bytes;
};

SequenceReversal reversal_of(const NodeSpec& spec);
std::function<std::string(const Fault&)> explain_length(int64_t time);
bool supports_reverse_sequence(const NodeSpec& spec);

}  // namespace onnx_train
