#include "onnx_passes/operators/windows.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

Shape list_attr(const Node& node, const char* name, size_t size, int64_t otherwise, int64_t lowest) {
  const Shape values = node.attr(name, Shape(size, otherwise));
  if (values.size() != size) fail(node.label(), ": ", name, " has ", values.size(), " numbers; its input needs ", size);
  for (int64_t v : values) {
    if (v < lowest) fail(node.label(), ": ", name, " holds ", v, "; the least allowed is ", lowest);
  }
  return values;
}

// Upper bound for sizes: real tensors are far smaller, and sums and products of such numbers fit 64 bits.
constexpr int64_t kLargest = int64_t{1} << 30;

// The total padding along one axis for which a Conv or pool has ceil(in / stride) outputs; for ConvTranspose the
// inverse.
std::optional<int64_t> total_padding(const Node& node, const Windows& w, size_t axis) {
  const int64_t extent = (w.kernel[axis] - 1) * w.dilations[axis] + 1, stride = w.strides[axis];
  const Dim in = (*node.input(0)->type().dims)[axis + 2];
  if (in.value() > kLargest) fail(node.label(), ": an image of size ", in.value(), " is too large for windows");
  if (node.op() == "ConvTranspose") {
    const Value* y = node.output();
    if (!in.known() || !y || !y->has_rank() || y->rank() != node.input(0)->rank()) return std::nullopt;
    const Dim out = (*y->type().dims)[axis + 2];
    if (!out.known()) return std::nullopt;
    const Shape extra = list_attr(node, "output_padding", w.kernel.size(), 0, 0);
    if (extra[axis] > kLargest || out.value() > kLargest)
      fail(node.label(), ": an output of size ", out.value(), " is too large for windows");
    return stride * (in.value() - 1) + extra[axis] + extent - out.value();
  }
  if (stride == 1) return extent - 1;
  if (!in.known()) return std::nullopt;
  const int64_t out = (in.value() + stride - 1) / stride;
  return (out - 1) * stride + extent - in.value();
}

}  // namespace

Shape Windows::pads() const {
  Shape all = pads_begin;
  all.insert(all.end(), pads_end.begin(), pads_end.end());
  return all;
}

Shape Windows::counts(const Shape& image) const {
  Shape counts;
  for (size_t i = 0; i < kernel.size(); ++i) {
    const int64_t extent = (kernel[i] - 1) * dilations[i] + 1;
    int64_t room = 0;
    if (__builtin_add_overflow(image[i], pads_begin[i] + pads_end[i] - extent, &room)) room = -1;
    counts.push_back(room < 0 ? 0 : room / strides[i] + 1);
  }
  return counts;
}

bool is_channels_last(const Node& node) { return !node.domain().empty() && node.attr("channels_last", 0) != 0; }

Windows windows_of(const Node& node, const Shape& kernel) {
  const size_t rank = kernel.size();
  const Shape pads = list_attr(node, "pads", 2 * rank, 0, 0);
  const auto middle = pads.begin() + static_cast<std::ptrdiff_t>(rank);
  Windows w = {kernel,
               list_attr(node, "strides", rank, 1, 1),
               list_attr(node, "dilations", rank, 1, 1),
               {pads.begin(), middle},
               {middle, pads.end()}};
  for (const Shape& numbers : {w.kernel, w.strides, w.dilations, pads}) {
    for (int64_t v : numbers) {
      if (v < 0 || v > kLargest) fail(node.label(), ": a window of ", v, " is out of range");
    }
  }
  return w;
}

std::optional<Windows> find_windows(const Node& node) {
  const Value* x = node.input(0);
  if (!x || !x->has_rank()) return std::nullopt;
  if (x->rank() < 3) fail(node.label(), ": its input has ", x->rank(), " dimensions; it needs batch, channels, sizes");
  const auto rank = static_cast<size_t>(x->rank() - 2);
  Shape kernel;
  if (node.has_attr("kernel_shape")) {
    kernel = list_attr(node, "kernel_shape", rank, 1, 1);
  } else {
    const Value* weight = node.input(1);
    if (!weight || !weight->has_rank()) return std::nullopt;
    for (int64_t axis = 2; axis < weight->rank(); ++axis) {
      const Dim size = (*weight->type().dims)[static_cast<size_t>(axis)];
      if (!size.known()) return std::nullopt;
      kernel.push_back(size.value());
    }
    if (kernel.size() != rank) fail(node.label(), ": its weight and its input differ in rank");
  }
  Windows w = windows_of(node, kernel);

  const std::string auto_pad = node.attr("auto_pad", "NOTSET");
  const bool given = auto_pad == "NOTSET" && !node.has_attr("output_shape");
  for (size_t axis = 0; axis < rank && !given; ++axis) {
    if (auto_pad == "VALID") {
      w.pads_begin[axis] = w.pads_end[axis] = 0;
      continue;
    }
    auto total = total_padding(node, w, axis);
    if (!total) return std::nullopt;
    total = std::max<int64_t>(*total, 0);  // output_shape of a ConvTranspose may be larger than what its windows cover
    const int64_t less = *total / 2, more = *total - less;
    w.pads_begin[axis] = auto_pad == "SAME_UPPER" ? less : more;
    w.pads_end[axis] = auto_pad == "SAME_UPPER" ? more : less;
  }
  return w;
}

void drop_windows_behind_input(Node* pool) {
  const auto w = find_windows(*pool);
  if (!w || !pool->output() || !pool->output()->has_rank()) return;
  TensorType type = pool->output()->type();
  for (size_t axis = 0; axis < w->kernel.size(); ++axis) {
    const Dim in = (*pool->input(0)->type().dims)[axis + 2];
    Dim& out = (*type.dims)[axis + 2];
    if (!in.known() || !out.known()) continue;
    if ((out.value() - 1) * w->strides[axis] >= in.value() + w->pads_begin[axis]) out = out.value() - 1;
  }
  const DType dtype = type.dtype;
  for (Value* output : pool->outputs()) {
    if (!output) continue;
    type.dtype = output == pool->output() ? dtype : output->dtype();
    output->set_type(type);
  }
}

}  // namespace onnx_train
