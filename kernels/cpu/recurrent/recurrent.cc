#include "kernels/cpu/recurrent/recurrent.h"

#include <algorithm>

#include "kernels/cpu/products/products.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/dispatch.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kRowsOfPart = 16;  // with fewer rows each product reads R too often; with more, threads are idle

}  // namespace

std::vector<BatchPart> cut_batch(const Extents& extents) {
  std::vector<BatchPart> parts;
  // There are at least two parts in total, of sizes as equal as possible.
  const int64_t least = extents.directions == 1 ? 2 : 1;
  const int64_t count = std::min(extents.batch, std::max(least, (extents.batch + kRowsOfPart - 1) / kRowsOfPart));
  for (int64_t d = 0; d < extents.directions; ++d) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = extents.batch * i / count, end = extents.batch * (i + 1) / count;
      parts.push_back({parts.size(), d, first, end - first});
    }
  }
  return parts;
}

// ---- Products

template <typename Operand>
StepProduct<Operand>::StepProduct(const std::vector<BatchPart>& parts, GemmShape shape, int64_t directions,
                                  Workspace* workspace) {
  shape.packed = shape.one_thread = true;
  if (parts.empty()) return;
  shape.m = parts.front().rows;
  const Gemm<Operand> first(shape);
  for (const BatchPart& part : parts) {
    if (part.rows == shape.m) {
      gemms_.push_back(first);
    } else {
      gemms_.push_back(first.with_rows(part.rows));
    }
    scratch_.push_back(workspace->reserve(gemms_.back().scratch_bytes()));
  }
  for (int64_t d = 0; d < directions; ++d) packed_.push_back(workspace->reserve(first.packed_bytes()));
  b_.resize(static_cast<size_t>(directions));
}

template <typename Operand>
void StepProduct<Operand>::pack(const Launch& launch, const Operand* b, int64_t distance) {
  if (gemms_.empty()) return;
  for (size_t d = 0; d < b_.size(); ++d) {
    b_[d] = gemms_.front().pack(b + static_cast<int64_t>(d) * distance, address(packed_[d], launch));
  }
}

template <typename Operand>
void StepProduct<Operand>::run(const Launch& launch, const BatchPart& part, const Operand* a, Computed<Operand>* y) {
  gemms_[part.index].run(a, b_[static_cast<size_t>(part.direction)], y, address(scratch_[part.index], launch));
}

template <typename Operand>
InputProduct<Operand>::InputProduct(const Extents& e, int64_t input, bool bias, std::vector<bool> whole,
                                    Workspace* workspace)
    : extents_(e),
      bias_(bias),
      whole_(std::move(whole)),
      gemm_({.m = e.samples(),
             .n = e.gate_stride(),
             .k = input,
             .a_row = input,
             .b_row = 1,
             .b_column = input,
             .y_row = e.gate_stride(),
             .bias = bias}),
      scratch_(workspace->reserve(gemm_.scratch_bytes())),
      sum_(workspace->reserve(static_cast<size_t>(e.gate_stride()) * sizeof(T))) {}

template <typename Operand>
void InputProduct<Operand>::sum_biases(const T* b, T* sum) const {
  const int64_t row = extents_.gate_row();
  for (int64_t d = 0; d < extents_.directions; ++d) {
    const T *of_w = b + 2 * d * row, *of_r = of_w + row;
    for (int64_t i = 0; i < row; ++i) {
      sum[d * row + i] = whole_[static_cast<size_t>(i / extents_.hidden)] ? of_w[i] + of_r[i] : of_w[i];
    }
  }
}

template <typename Operand>
void InputProduct<Operand>::run(const Launch& launch, const Operand* x, const Operand* w, const T* b, T* gates) {
  T* sum = static_cast<T*>(address(sum_, launch));
  if (bias_) sum_biases(b, sum);
  gemm_.run(x, w, gates, address(scratch_, launch), sum);
}

template <typename Operand>
OuterProduct<Operand>::OuterProduct(const Extents& e, int64_t rows, int64_t a_stride, Workspace* workspace)
    : gemm_({.m = rows,
             .n = e.hidden,
             .k = e.samples(),
             .a_row = 1,
             .a_column = a_stride,
             .b_row = e.hidden,
             .y_row = e.hidden}),
      scratch_(workspace->reserve(gemm_.scratch_bytes())) {}

template <typename Operand>
void OuterProduct<Operand>::run(const Launch& launch, const Operand* a, const Operand* b, Computed<Operand>* dr) {
  gemm_.run(a, b, dr, address(scratch_, launch));
}

// ---- States

template <typename T>
FirstState<T>::FirstState(const NodeSpec& spec, int i, const Extents& extents, Workspace* workspace)
    : size_(extents.state_size()) {
  if (i < spec.num_inputs() && spec.has_input(i)) {
    input_ = i;
    narrows_ = spec.in_type(i) != dtype_of<T>();
  }
  if (input_ < 0 || narrows_) made_ = workspace->reserve(static_cast<size_t>(size_) * sizeof(T));
}

template <typename T>
const T* FirstState<T>::get(const Launch& launch) const {
  if (input_ >= 0 && !narrows_) return launch.in<T>(input_);
  T* made = static_cast<T*>(address(made_, launch));
  if (narrows_) {
    to_operand(true, size_, launch.in<Computed<T>>(input_), made);
  } else {
    std::fill(made, made + size_, T{});
  }
  return made;
}

template <typename T>
void copy_h_before(const Extents& e, const Order& order, const BatchPart& part, const int32_t* lengths, const T* y,
                   const T* h0, T* h_before) {
  const int64_t d = part.direction;
  for (int64_t t = 0; t < e.steps; ++t) {
    const int64_t before = order.before(d, t);
    for (int64_t b = part.first; b < part.first + part.rows; ++b) {
      const bool first = order.is_first(d, t) || (order.backwards[d] && !is_live(lengths, before, b));
      const T* h = first ? h0 + e.state(d, b) : y + e.value(before, d, b);
      std::copy(h, h + e.hidden, h_before + ((d * e.steps + t) * e.batch + b) * e.hidden);
    }
  }
}

template class StepProduct<float>;
template class StepProduct<double>;
template class StepProduct<BFloat16>;
template class InputProduct<float>;
template class InputProduct<double>;
template class InputProduct<BFloat16>;
template class OuterProduct<float>;
template class OuterProduct<double>;
template class OuterProduct<BFloat16>;
template class FirstState<float>;
template class FirstState<double>;
template class FirstState<BFloat16>;
template void copy_h_before(const Extents&, const Order&, const BatchPart&, const int32_t*, const float*, const float*,
                            float*);
template void copy_h_before(const Extents&, const Order&, const BatchPart&, const int32_t*, const double*,
                            const double*, double*);
template void copy_h_before(const Extents&, const Order&, const BatchPart&, const int32_t*, const BFloat16*,
                            const BFloat16*, BFloat16*);

// ---- Rows

namespace {

bool holds(const std::vector<int>& list, int i) { return std::find(list.begin(), list.end(), i) != list.end(); }

// Whether no input or output except those listed is bfloat16.
bool rest_is_float32(const NodeSpec& spec, const std::vector<int>& inputs, const std::vector<int>& outputs) {
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (spec.has_input(i) && spec.in_type(i) == DType::kBFloat16 && !holds(inputs, i)) return false;
  }
  for (int i = 0; i < spec.num_outputs(); ++i) {
    if (spec.has_output(i) && spec.out_type(i) == DType::kBFloat16 && !holds(outputs, i)) return false;
  }
  return true;
}

bool takes_bfloat16(const NodeSpec& spec) {
  return isa() >= Isa::kAvx512Bf16 && find_recurrence(spec.node()).round_operands && spec.in_type() == DType::kBFloat16;
}

}  // namespace

bool takes_bfloat16_forward(const NodeSpec& spec) {
  const int64_t gates = find_recurrence(spec.node()).gates();
  const std::vector<int> stored = gates == 4 ? std::vector{0, 3} : gates == 3 ? std::vector{0, 2, 3} : std::vector{0};
  return takes_bfloat16(spec) && spec.in_type(1) == DType::kBFloat16 && spec.in_type(2) == DType::kBFloat16 &&
         rest_is_float32(spec, {0, 1, 2, 5}, stored);
}

bool takes_bfloat16_backward(const NodeSpec& spec, int y, const std::vector<int>& stored) {
  const int64_t gates = find_recurrence(spec.node()).gates();
  return takes_bfloat16(spec) && spec.in_type(y) == DType::kBFloat16 && spec.out_type() == DType::kBFloat16 &&
         rest_is_float32(spec, stored, gates == 3 ? std::vector{0, 3} : std::vector{0});
}

std::vector<Kernel> recurrent_kernels() {
  std::vector<Kernel> all;
  for (auto family : {lstm_kernels, gru_kernels, rnn_kernels}) {
    for (Kernel& kernel : family()) all.push_back(std::move(kernel));
  }
  return all;
}

}  // namespace onnx_train::cpu
