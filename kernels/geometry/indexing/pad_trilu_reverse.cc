#include "kernels/geometry/indexing/pad_trilu_reverse.h"

#include <algorithm>
#include <numeric>

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

PadMode mode_named(const std::string& name) {
  if (name == "constant") return PadMode::kConstant;
  if (name == "edge") return PadMode::kEdge;
  return name == "wrap" ? PadMode::kWrap : PadMode::kReflect;
}

}  // namespace

Padding padding_of(const NodeSpec& spec) {
  Padding padding{spec.in_shape(0), spec.out_shape(), {}, mode_named(spec.node().attr("mode", "constant"))};
  Shape &in = padding.in, &out = padding.out;
  std::vector<int64_t> axes(in.size()), pads = spec.constant(1).to_ints(), &before = padding.before;
  std::iota(axes.begin(), axes.end(), 0);
  if (spec.is_constant(3)) axes = spec.constant(3).to_ints();
  if (pads.size() != 2 * axes.size()) fail(spec.node().label(), ": ", pads.size(), " pads for ", axes.size(), " axes");
  before.resize(in.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    constexpr int64_t kMost = int64_t{1} << 56;  // offsets fit 64 bits
    if (pads[i] > kMost || pads[i] < -kMost) fail(spec.node().label(), ": a padding of ", pads[i], " is too large");
    before[static_cast<size_t>(normalize_axis(axes[i], static_cast<int64_t>(in.size())))] = pads[i];
  }
  if (in.empty()) in = out = {1}, before = {0};
  for (size_t k = 0; k < in.size(); ++k) {
    if (in[k] == 0 && out[k] > 0 && padding.mode != PadMode::kConstant) {
      fail(spec.node().label(), ": an axis without elements has none to pad with; use mode constant");
    }
  }
  return padding;
}

bool supports_pad(const NodeSpec& spec) {
  const bool value_fits = !spec.has_input(2) || (spec.in_type(2) == spec.in_type(0) && spec.in_size(2) == 1);
  return is_movable(spec.in_type(0)) && value_fits && spec.is_constant(1) &&
         (!spec.has_input(3) || spec.is_constant(3));
}

Triangle triangle_of(const NodeSpec& spec) {
  const Shape shape = spec.in_shape(0);
  return {shape[shape.size() - 2], shape.back(), spec.node().attr("upper", 1) != 0};
}

bool supports_trilu(const NodeSpec& spec) {
  if (spec.has_input(1) && (spec.in_type(1) != DType::kInt64 || spec.in_size(1) != 1)) return false;
  return is_movable(spec.in_type(0)) && spec.in_shape(0).size() >= 2;
}

SequenceReversal reversal_of(const NodeSpec& spec) {
  const Shape shape = spec.in_shape(0);
  const bool batch_first = spec.node().attr("batch_axis", 1) == 0;
  SequenceReversal reversal;
  reversal.batch = shape[batch_first ? 0 : 1];
  reversal.time = shape[batch_first ? 1 : 0];
  reversal.batch_stride = batch_first ? reversal.time : 1;
  reversal.time_stride = batch_first ? 1 : reversal.batch;
  reversal.row_bytes = spec.in_size(0) / std::max<int64_t>(reversal.batch * reversal.time, 1) *
                       static_cast<int64_t>(size_of(spec.in_type(0)));
  if (spec.in_size(1) != reversal.batch) {
    fail(spec.node().label(), ": ", spec.in_size(1), " lengths for ", reversal.batch, " sequences");
  }
  return reversal;
}

std::function<std::string(const Fault&)> explain_length(int64_t time) {
  return [time](const Fault& fault) {
    return concat("sequence ", fault.position, " has length ", fault.value, "; there is room for 0 to ", time);
  };
}

bool supports_reverse_sequence(const NodeSpec& spec) {
  const int64_t batch = spec.node().attr("batch_axis", 1), time = spec.node().attr("time_axis", 0);
  return is_movable(spec.in_type(0)) && spec.in_type(1) == DType::kInt64 && spec.in_shape(0).size() >= 2 &&
         ((batch == 0 && time == 1) || (batch == 1 && time == 0));
}

}  // namespace onnx_train
