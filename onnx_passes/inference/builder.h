// Builds nodes in the notation of mathematics: `dy * (1.0f - y * y)`, `matmul(a, transpose(b))`.
//
// A Builder adds nodes to one graph at one position; a Var is a value together with its Builder. Types are inferred for
// every node as it is added, so the rank and element type of a new value can be queried at once. Scalars take the
// element type of the other operand. The caller owns a Builder; it and its Vars must not outlive the graph and belong
// to one thread. Operators throw Error for operands that do not fit.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "onnx_passes/ir/attrs.h"
#include "onnx_passes/ir/graph.h"

namespace onnx_train {

class Builder;

class Var {
 public:
  Var() = default;
  Var(Builder* builder, Value* value) : builder_(builder), value_(value) {}
  Value* value() const { return value_; }
  Builder& builder() const { return *builder_; }
  explicit operator bool() const { return value_ != nullptr; }
  const TensorType& type() const { return value_->type(); }
  DType dtype() const { return value_->dtype(); }
  int64_t rank() const;  // throws Error if unknown

 private:
  Builder* builder_ = nullptr;
  Value* value_ = nullptr;
};

class Builder {
 public:
  // Inserts nodes before `before`, or at the end of the graph if it is null.
  explicit Builder(Graph* graph, Node* before = nullptr) : graph_(graph), before_(before) {}

  Graph& graph() const { return *graph_; }
  Node* before() const { return before_; }
  // Names of new values until the next call: `name`, name_1, ... If empty, names follow from the operator.
  void set_name(std::string name) { name_ = std::move(name); }

  Var var(Value* value) { return {this, value}; }

  // Adds one node with one output. Var() is an absent input.
  Var op(const std::string& op, const std::vector<Var>& inputs, const Attrs& attrs = {},
         const std::string& domain = "");
  // Adds one node with several outputs.
  std::vector<Var> ops(const std::string& op, int num_outputs, const std::vector<Var>& inputs, const Attrs& attrs = {},
                       const std::string& domain = "", const std::string& overload = "");
  // Adds a node with the operator and attributes of `node` and other inputs.
  std::vector<Var> like(const Node& node, const std::vector<Var>& inputs, int num_outputs = 1);

  // Constants. Equal small constants share one initializer of the graph.
  Var constant(const Tensor& tensor);
  Var ints(const std::vector<int64_t>& values) { return constant(Tensor::ints(values)); }
  Var scalar(DType dtype, double value) { return constant(Tensor::full(dtype, {}, value)); }

 private:
  Graph* graph_;
  Node* before_;
  std::string name_;
};

// ---- Element-wise, with broadcasting
Var operator+(Var a, Var b);
Var operator-(Var a, Var b);
Var operator*(Var a, Var b);
Var operator/(Var a, Var b);
Var operator-(Var a);
Var operator+(Var a, double b);
Var operator+(double a, Var b);
Var operator-(Var a, double b);
Var operator-(double a, Var b);
Var operator*(Var a, double b);
Var operator*(double a, Var b);
Var operator/(Var a, double b);
Var operator/(double a, Var b);
Var operator<(Var a, Var b);  // bool tensors
Var operator>(Var a, Var b);
Var operator<=(Var a, Var b);
Var operator>=(Var a, Var b);
Var operator<(Var a, double b);
Var operator>(Var a, double b);
Var operator<=(Var a, double b);
Var operator>=(Var a, double b);
Var equal(Var a, Var b);
Var logical_and(Var a, Var b);
Var logical_or(Var a, Var b);
Var logical_not(Var a);
Var where(Var condition, Var a, Var b);
Var where(Var condition, Var a, double b);
Var exp(Var x);
Var log(Var x);
Var sqrt(Var x);
Var sin(Var x);
Var cos(Var x);
Var tanh(Var x);
Var erf(Var x);
Var sigmoid(Var x);
Var sign(Var x);
Var abs(Var x);
Var reciprocal(Var x);
Var pow(Var x, Var y);
Var pow(Var x, double y);
Var max(Var a, Var b);
Var min(Var a, Var b);
Var cast(Var x, DType dtype);     // x itself if it already has the type
Var cast_like(Var x, Var other);  // to other's type

// ---- Shape
Var shape(Var x);                                       // int64[rank]
Var shape_of(Var x);                                    // the same, as a constant if the sizes are known
Var size(Var x);                                        // int64[]
Var reshape(Var x, Var shape);                          // 0 in `shape` is a size of 0, not a copy (allowzero)
Var reshape(Var x, const std::vector<int64_t>& shape);  // -1 and 0 as in ONNX: the rest, a copy
Var flatten_to_2d(Var x, int64_t axis);                 // [d0 .. d(axis-1)] x [d(axis) ..]
Var transpose(Var x, const std::vector<int64_t>& permutation);
Var transpose_last(Var x);  // swaps the last two axes
Var expand(Var x, Var shape);
Var expand_like(Var x, Var other);
Var unsqueeze(Var x, const std::vector<int64_t>& axes);
Var squeeze(Var x, const std::vector<int64_t>& axes);
Var concat(const std::vector<Var>& xs, int64_t axis);
Var slice(Var x, Var starts, Var ends, Var axes, Var steps = {});
Var slice(Var x, int64_t start, int64_t end, int64_t axis);
Var gather(Var x, Var indices, int64_t axis);
Var zeros_like(Var x);
Var ones_like(Var x);
Var full_like(Var x, double value);
Var full(Var shape, DType dtype, double value);
// One dimension of x as an int64 tensor of shape [1].
Var dim(Var x, int64_t axis);

// ---- Products and reductions
Var matmul(Var a, Var b);
Var gemm(Var a, Var b, bool transpose_a, bool transpose_b);  // 2-D
Var reduce_sum(Var x, const std::vector<int64_t>& axes, bool keepdims = true);
Var reduce_sum(Var x, Var axes, bool keepdims = true);  // without axes: x itself
Var reduce_mean(Var x, const std::vector<int64_t>& axes, bool keepdims = true);
Var reduce_max(Var x, const std::vector<int64_t>& axes, bool keepdims = true);
Var sum_all(Var x);  // to a scalar

// Sums x over the axes along which `like` is broadcast to x's shape; the result has the shape of `like`. Adds no node
// if the types show that there are no such axes. If a size is not known, the axes are computed at run time (plans with
// concrete shapes fold that).
Var sum_to_shape_of(Var x, Var like);

}  // namespace onnx_train
