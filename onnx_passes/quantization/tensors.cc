#include "onnx_passes/quantization/tensors.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"

namespace onnx_train {
namespace {

// Maps an element to its scale.
class ScaleIndex {
 public:
  ScaleIndex(const Shape& shape, const Granularity& of) : of_(of) {
    if (of.axis < 0) return;
    const auto at = static_cast<size_t>(of.axis);
    along_ = shape[at];
    for (size_t i = at + 1; i < shape.size(); ++i) inner_ *= shape[i];
    blocks_ = of.block > 0 ? (along_ + of.block - 1) / of.block : along_;
    count_ = of.block > 0 ? num_elements(shape) / std::max<int64_t>(along_, 1) * blocks_ : along_;
  }
  int64_t count() const { return count_; }
  int64_t operator()(int64_t element) const {
    if (of_.axis < 0) return 0;
    const int64_t index = element / inner_ % along_;
    if (of_.block == 0) return index;
    return (element / (inner_ * along_) * blocks_ + index / of_.block) * inner_ + element % inner_;
  }

 private:
  Granularity of_;
  int64_t along_ = 1, inner_ = 1, blocks_ = 1, count_ = 1;
};

// The largest magnitude for each scale, divided by `high`.
Tensor largest_steps(const Tensor& w, const Granularity& of, const Shape& shape, double high) {
  const ScaleIndex index(w.shape(), of);
  Tensor scales(w.dtype(), shape);
  for (int64_t i = 0; i < w.size(); ++i) {
    const int64_t at = index(i);
    scales.set(at, std::max(scales.at(at), std::fabs(w.at(i))));
  }
  for (int64_t i = 0; i < scales.size(); ++i) {
    if (w.dtype() == DType::kFloat) {
      scales.set(i, static_cast<double>(static_cast<float>(scales.at(i)) / static_cast<float>(high)));
    } else {
      scales.set(i, scales.at(i) / high);
    }
    if (!(scales.at(i) > 0)) scales.set(i, 1);
  }
  return scales;
}

// The integer that is nearest, in the arithmetic of T.
template <typename T>
double nearest(double x, double scale) {
  return static_cast<double>(std::nearbyint(static_cast<T>(x) / static_cast<T>(scale)));
}

}  // namespace

Tensor constant_operand(const Value* operand) {
  const Node* node = operand->producer();
  if (!node) return operand->is_initializer() ? contents_of(*operand) : Tensor();
  if (!node->is("Transpose") || !node->input(0)->is_initializer() || node->input(0)->rank() != 2) return {};
  if (node->attr("perm", std::vector<int64_t>{1, 0}) != std::vector<int64_t>{1, 0}) return {};
  const Tensor x = contents_of(*node->input(0));
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  Tensor y(x.dtype(), {columns, rows});
  for (int64_t i = 0; i < y.size(); ++i) y.set(i, x.at(i % rows * columns + i / rows));
  return y;
}

std::string stored_name(const Value& operand) {
  return operand.producer() ? operand.producer()->input(0)->name() : operand.name();
}

Tensor symmetric_scales(const Tensor& w, int64_t axis, double high) {
  return largest_steps(w, {axis, 0}, axis < 0 ? Shape{} : Shape{w.shape()[static_cast<size_t>(axis)]}, high);
}

Tensor block_scales(const Tensor& w, const Granularity& of, double high) {
  Shape shape = w.shape();
  int64_t& along = shape[static_cast<size_t>(of.axis)];
  along = (along + of.block - 1) / of.block;
  return largest_steps(w, of, shape, high);
}

Tensor quantize(const Tensor& w, const Tensor& scale, const Tensor& zero_point, const Granularity& of, DType to) {
  const auto range = range_of(to);
  const ScaleIndex index(w.shape(), of);
  if (!range || index.count() != scale.size() || !(is_float(w.dtype()))) return {};
  const bool wide = to == kInt4 || to == kUint4;  // in 8 bits
  Tensor q(!wide ? to : to == kInt4 ? DType::kInt8 : DType::kUint8, w.shape());
  for (int64_t i = 0; i < w.size(); ++i) {
    const int64_t at = index(i);
    const double rounded =
        w.dtype() == DType::kFloat ? nearest<float>(w.at(i), scale.at(at)) : nearest<double>(w.at(i), scale.at(at));
    q.set(i, std::clamp(rounded + (zero_point.empty() ? 0 : zero_point.at(at)), range->low, range->high));
  }
  return q;
}

Tensor dequantize(const Tensor& q, const Tensor& scale, const Tensor& zero_point, const Granularity& of) {
  const ScaleIndex index(q.shape(), of);
  if (index.count() != scale.size() || (!zero_point.empty() && zero_point.size() != scale.size())) return {};
  Tensor x(scale.dtype(), q.shape());
  for (int64_t i = 0; i < q.size(); ++i) {
    const int64_t at = index(i);
    const double steps = q.at(i) - (zero_point.empty() ? 0 : zero_point.at(at));
    x.set(i, scale.dtype() == DType::kFloat
                 ? static_cast<double>(static_cast<float>(steps) * static_cast<float>(scale.at(at)))
                 : steps * scale.at(at));
  }
  return x;
}

}  // namespace onnx_train
