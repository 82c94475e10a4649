// Graphs of element-wise nodes, for the tests of fusion on every device.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/elementwise/loops.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/model.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"

namespace onnx_train {

// Bit for bit, but for the bits of a NaN.
inline bool equal_but_nan(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  if (a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0) return true;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double p = a.at(i), q = b.at(i);
    if (!(p == q && std::signbit(p) == std::signbit(q)) && !(std::isnan(p) && std::isnan(q))) return false;
  }
  return true;
}

// The operator applied to x [3, 700] and as many other operands as it takes, which `input` makes. Operators of the
// domain onnx_train have operands of one shape; others broadcast.
inline Var apply(Builder& b, const cpu::ElementwiseRow& row, Var x, const std::function<Var(DType, Dims)>& input) {
  const DType dtype = x.dtype();
  const bool ours = row.domain == std::string(kDomain);
  std::vector<Var> operands = {x};
  Attrs attrs;
  const std::string op = row.op;
  if (op == "Where") {
    operands = {input(DType::kBool, {3, 1}), x, input(dtype, {700})};
  } else if (op == "DropoutGrad") {
    operands.push_back(input(DType::kBool, {3, 700}));
    operands.push_back(b.constant(Tensor::scalar(0.25f)));
  } else if (op == "FakeQuantize") {
    operands.push_back(b.scalar(dtype, 0.5));
    attrs.emplace_back("to", static_cast<int64_t>(DType::kFloat8E4M3FN));
  } else if (op == "Clip") {
    operands.push_back(b.scalar(dtype, -0.5));
    operands.push_back(b.scalar(dtype, 0.5));
  } else if (op == "Cast") {
    attrs.emplace_back("to", static_cast<int64_t>(DType::kBFloat16));
  } else if (row.operands == 2) {
    operands.push_back(input(dtype, ours ? Dims{3, 700} : Dims{3, 1}));
  }
  if (op == "Mod" && is_float(dtype)) attrs.emplace_back("fmod", 1);
  if (op == "BitShift") attrs.emplace_back("direction", "LEFT");
  return ours ? call(b, op, operands, attrs) : b.op(op, operands, attrs);
}

// Small numbers for the inputs of a graph; whole ones where they are integers.
inline TensorMap draw_inputs(const Model& model) {
  TensorMap inputs;
  unsigned seed = 48;
  for (const Value* input : model.graph->inputs()) {
    Tensor drawn = random_tensor(DType::kDouble, input->type().shape(), seed++);
    if (!is_float(input->dtype())) {
      for (int64_t i = 0; i < drawn.size(); ++i) drawn.set(i, std::floor(4 * drawn.at(i)));
    }
    inputs[input->name()] = drawn.cast(input->dtype());
  }
  return inputs;
}

class RandomGraph {
 public:
  RandomGraph(unsigned seed, DType dtype, bool with_closed) : random_(seed), dtype_(dtype), with_closed_(with_closed) {
    const int64_t sizes[] = {1, 2, 3, 5, 8, 17, 64, 130, 600, 1100};
    const int rank = pick(1, 4);
    int64_t elements = 1;
    for (int i = 0; i < rank; ++i) {
      int64_t size = sizes[pick(0, 9)];
      if (elements * size > 200000) size = 2;
      elements *= size;
      space_.push_back(size);
    }
    for (int i = pick(1, 4); i > 0; --i) add_input(i == 1 ? space_ : broadcastable());
    for (int i = pick(2, 25); i > 0; --i) add_node();
    for (Var var : floats_) {
      if (pick(0, 3) == 0) add_output(var);
    }
    add_output(floats_.back());
    for (Var closed : closed_) add_output(closed);
    if (!bools_.empty()) add_output(bools_.back());
  }

  Model take_model() { return std::move(model_); }
  const TensorMap& inputs() const { return inputs_; }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  Var any(const std::vector<Var>& from) {
    return from[static_cast<size_t>(
        pick(std::max(0, static_cast<int>(from.size()) - 6), static_cast<int>(from.size()) - 1))];
  }

  // A shape that broadcasts to the space: some axes of size one, some leading ones left out.
  Shape broadcastable() {
    Shape shape(space_.begin() + pick(0, static_cast<int>(space_.size())), space_.end());
    for (int64_t& size : shape) size = pick(0, 2) == 0 ? 1 : size;
    return shape;
  }

  void add_input(const Shape& shape) {
    const std::string name = "x" + std::to_string(inputs_.size());
    Tensor tensor = random_tensor(dtype_, shape, static_cast<unsigned>(pick(1, 1000000)));
    constexpr double kSpecial[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40, 3e38};
    for (int i = pick(0, 3); i > 0 && tensor.size() > 0; --i) {
      tensor.set(pick(0, static_cast<int>(tensor.size()) - 1), kSpecial[pick(0, 6)]);
    }
    inputs_[name] = tensor;
    Value* value = model_.graph->add_input(name, {dtype_, Dims(shape.begin(), shape.end())});
    floats_.push_back(b_.var(value));
  }

  void add_node() {
    static constexpr const char* kUnary[] = {"Neg",  "Abs",      "Relu",       "Tanh",  "Sigmoid",
                                             "Exp",  "Sqrt",     "Erf",        "Floor", "LeakyRelu",
                                             "Gelu", "Softplus", "Reciprocal", "Sign",  "Clip"};
    static constexpr const char* kBinary[] = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"};
    static constexpr const char* kCompare[] = {"Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"};
    static constexpr const char* kGradients[] = {"TanhGrad", "ReluGrad", "GeluGrad", "SigmoidGrad", "GeluTanhGrad"};
    switch (pick(0, 11)) {
      case 0:
      case 1: return floats_.push_back(b_.op(kUnary[pick(0, 14)], {any(floats_)}));
      case 2:
      case 3:
      case 4: return floats_.push_back(b_.op(kBinary[pick(0, 6)], {any(floats_), any(floats_)}));
      case 5: return bools_.push_back(b_.op(kCompare[pick(0, 4)], {any(floats_), any(floats_)}));
      case 6:
        if (bools_.empty()) return bools_.push_back(b_.op("IsNaN", {any(floats_)}));
        return floats_.push_back(where(any(bools_), any(floats_), any(floats_)));
      case 7: {
        const Var x = any(floats_);
        return floats_.push_back(call(b_, kGradients[pick(0, 4)], {x, b_.op("Neg", {x})}));
      }
      case 8:
      case 10: return add_reduction();
      case 9: return add_movement();
      default: {
        const Var x = any(floats_);
        if (pick(0, 1) == 0) return floats_.push_back(b_.op("Sum", {x, any(floats_), x}));
        return floats_.push_back(x * 0.5 + b_.scalar(dtype_, 1.25));
      }
    }
  }

  void add_reduction() {
    static constexpr const char* kOps[] = {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare"};
    const Var x = any(floats_);
    if (x.rank() == 0) return;
    if (!with_closed_) {
      if (x.type().shape().back() == num_elements(x.type().shape())) return;  // may be summed in another order
      return floats_.push_back(b_.op(kOps[pick(0, 4)], {x, b_.ints({-1})}));
    }
    std::vector<int64_t> axes;
    for (int64_t axis = 0; axis < x.rank(); ++axis) {
      if (pick(0, 1) == 0) axes.push_back(axis);
    }
    closed_.push_back(b_.op(kOps[pick(0, 4)], {x, b_.ints(axes)}, {{"keepdims", pick(0, 1)}}));
  }

  void add_movement() {
    const Var x = any(floats_);
    if (pick(0, 1) == 0) return floats_.push_back(expand(x, b_.ints(space_)));
    const Var flat = reshape(x, std::vector<int64_t>{-1});
    floats_.push_back(reshape(b_.op("Neg", {flat}), b_.ints(x.type().shape())));
  }

  void add_output(Var var) {
    if (model_.graph->is_output(var.value()) || !var.value()->producer()) return;
    model_.graph->add_output(var.value());
  }

  std::mt19937 random_;
  const DType dtype_;
  const bool with_closed_;
  Model model_ = empty_model();
  Builder b_{model_.graph.get()};
  Shape space_;
  std::vector<Var> floats_, bools_, closed_;
  TensorMap inputs_;
};

}  // namespace onnx_train
