#include "onnx_passes/inference/builder.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/shared_constants.h"

namespace onnx_train {

int64_t Var::rank() const {
  if (!value_->has_rank()) {
    fail("the rank of '", value_->name(),
         "' is not known; give the model's inputs shapes, or run shape inference on it");
  }
  return value_->rank();
}

std::vector<Var> Builder::ops(const std::string& op, int num_outputs, const std::vector<Var>& inputs,
                              const Attrs& attrs, const std::string& domain, const std::string& overload) {
  std::vector<Value*> values;
  for (const Var& input : inputs) values.push_back(input.value());
  while (!values.empty() && !values.back()) values.pop_back();
  std::vector<std::string> names;
  std::unordered_set<std::string> taken;  // names of this node's outputs, which are not in the graph yet
  std::string name = graph_->unique_name(name_.empty() ? op : name_);
  for (int i = 0; i < num_outputs; ++i) {
    constexpr int kMaxSuffixes = 4;  // this many suffixes "_o"; after that, outputs are numbered
    while (!taken.insert(name).second) name = graph_->unique_name(name + "_o");
    names.push_back(name);
    if (i >= kMaxSuffixes) name = graph_->unique_name(concat(names[kMaxSuffixes - 1], "_", i));
  }
  // A call of a function has one entry per output of the function; absent outputs have an empty name.
  const auto* function = graph_->context().find_function(domain, op, overload);
  if (function && function->output_size() > num_outputs) names.resize(static_cast<size_t>(function->output_size()));
  onnx::NodeProto shell;
  shell.set_op_type(op);
  if (!domain.empty()) shell.set_domain(domain);
  if (!overload.empty()) shell.set_overload(overload);
  Node* node = graph_->add_node(shell, values, names, before_);
  for (const Attr& attr : attrs) {
    std::visit([&](const auto& value) { node->set_attr(attr.name, value); }, attr.value);
  }
  infer_types(node);
  std::vector<Var> results;
  for (int i = 0; i < num_outputs; ++i) results.push_back(var(node->output(i)));
  return results;
}

Var Builder::op(const std::string& op, const std::vector<Var>& inputs, const Attrs& attrs, const std::string& domain) {
  return ops(op, 1, inputs, attrs, domain)[0];
}

std::vector<Var> Builder::like(const Node& node, const std::vector<Var>& inputs, int num_outputs) {
  std::vector<Value*> values;
  for (const Var& input : inputs) values.push_back(input.value());
  std::vector<std::string> names;
  for (int i = 0; i < num_outputs; ++i) {
    names.push_back(graph_->unique_name(concat(name_.empty() ? node.op() : name_, i ? concat("_o", i) : "")));
  }
  onnx::NodeProto shell = node.shell();
  shell.clear_name();
  Node* copy = graph_->add_node(shell, values, names, before_);
  infer_types(copy);
  std::vector<Var> results;
  for (Value* output : copy->outputs()) results.push_back(var(output));
  return results;
}

Var Builder::constant(const Tensor& tensor) {
  constexpr int64_t kShared = 16;
  std::string name = "const";
  if (tensor.size() <= kShared) {
    std::ostringstream out;
    out.precision(17);
    out << kSharedConstant << onnx_train::name(tensor.dtype());
    if (!tensor.shape().empty()) out << to_string(tensor.shape());
    out << '/';
    for (int64_t i = 0; i < tensor.size(); ++i) out << (i ? "," : "") << tensor.at(i);
    name = out.str();
    Value* known = graph_->find(name);
    if (known && known->is_constant()) return var(known);  // the name encodes type, shape and contents
  }
  Value* value = graph_->add_constant(graph_->unique_name(name), tensor);
  return var(value);
}

namespace {

Var unary(const char* op, Var x) { return x.builder().op(op, {x}); }
Var binary(const char* op, Var a, Var b) { return a.builder().op(op, {a, b}); }
Var right(const char* op, Var a, double b) { return binary(op, a, a.builder().scalar(a.dtype(), b)); }
Var left(const char* op, double a, Var b) { return b.builder().op(op, {b.builder().scalar(b.dtype(), a), b}); }

}  // namespace

Var operator+(Var a, Var b) { return binary("Add", a, b); }
Var operator-(Var a, Var b) { return binary("Sub", a, b); }
Var operator*(Var a, Var b) { return binary("Mul", a, b); }
Var operator/(Var a, Var b) { return binary("Div", a, b); }
Var operator-(Var a) { return unary("Neg", a); }
Var operator+(Var a, double b) { return right("Add", a, b); }
Var operator+(double a, Var b) { return left("Add", a, b); }
Var operator-(Var a, double b) { return right("Sub", a, b); }
Var operator-(double a, Var b) { return left("Sub", a, b); }
Var operator*(Var a, double b) { return right("Mul", a, b); }
Var operator*(double a, Var b) { return left("Mul", a, b); }
Var operator/(Var a, double b) { return right("Div", a, b); }
Var operator/(double a, Var b) { return left("Div", a, b); }
Var operator<(Var a, Var b) { return binary("Less", a, b); }
Var operator>(Var a, Var b) { return binary("Greater", a, b); }
Var operator<=(Var a, Var b) { return binary("LessOrEqual", a, b); }
Var operator>=(Var a, Var b) { return binary("GreaterOrEqual", a, b); }
Var operator<(Var a, double b) { return right("Less", a, b); }
Var operator>(Var a, double b) { return right("Greater", a, b); }
Var operator<=(Var a, double b) { return right("LessOrEqual", a, b); }
Var operator>=(Var a, double b) { return right("GreaterOrEqual", a, b); }
Var equal(Var a, Var b) { return binary("Equal", a, b); }
Var logical_and(Var a, Var b) { return binary("And", a, b); }
Var logical_or(Var a, Var b) { return binary("Or", a, b); }
Var logical_not(Var a) { return unary("Not", a); }
Var where(Var condition, Var a, Var b) { return a.builder().op("Where", {condition, a, b}); }
Var where(Var condition, Var a, double b) { return where(condition, a, a.builder().scalar(a.dtype(), b)); }
Var exp(Var x) { return unary("Exp", x); }
Var log(Var x) { return unary("Log", x); }
Var sqrt(Var x) { return unary("Sqrt", x); }
Var sin(Var x) { return unary("Sin", x); }
Var cos(Var x) { return unary("Cos", x); }
Var tanh(Var x) { return unary("Tanh", x); }
Var erf(Var x) { return unary("Erf", x); }
Var sigmoid(Var x) { return unary("Sigmoid", x); }
Var sign(Var x) { return unary("Sign", x); }
Var abs(Var x) { return unary("Abs", x); }
Var reciprocal(Var x) { return unary("Reciprocal", x); }
Var pow(Var x, Var y) { return binary("Pow", x, y); }
Var pow(Var x, double y) { return right("Pow", x, y); }
Var max(Var a, Var b) { return binary("Max", a, b); }
Var min(Var a, Var b) { return binary("Min", a, b); }

Var cast(Var x, DType dtype) {
  return x.dtype() == dtype ? x : x.builder().op("Cast", {x}, {{"to", static_cast<int>(dtype)}});
}
Var cast_like(Var x, Var other) { return cast(x, other.dtype()); }

Var shape(Var x) { return x.builder().op("Shape", {x}); }
Var shape_of(Var x) { return x.type().is_static() ? x.builder().ints(x.type().shape()) : shape(x); }
Var size(Var x) { return x.builder().op("Size", {x}); }
Var reshape(Var x, Var shape) { return x.builder().op("Reshape", {x, shape}, {{"allowzero", 1}}); }
Var reshape(Var x, const std::vector<int64_t>& shape) {
  return x.builder().op("Reshape", {x, x.builder().ints(shape)});
}
Var flatten_to_2d(Var x, int64_t axis) { return x.builder().op("Flatten", {x}, {{"axis", axis}}); }

Var transpose(Var x, const std::vector<int64_t>& permutation) {
  return x.builder().op("Transpose", {x}, {{"perm", permutation}});
}

Var transpose_last(Var x) {
  std::vector<int64_t> permutation;
  for (int64_t i = 0; i < x.rank(); ++i) permutation.push_back(i);
  std::swap(permutation[permutation.size() - 1], permutation[permutation.size() - 2]);
  return transpose(x, permutation);
}

Var expand(Var x, Var shape) { return x.builder().op("Expand", {x, shape}); }
Var expand_like(Var x, Var other) {
  if (x.type().is_static() && x.type().dims == other.type().dims) return x;
  return expand(x, shape_of(other));
}
Var unsqueeze(Var x, const std::vector<int64_t>& axes) {
  return x.builder().op("Unsqueeze", {x, x.builder().ints(axes)});
}
Var squeeze(Var x, const std::vector<int64_t>& axes) { return x.builder().op("Squeeze", {x, x.builder().ints(axes)}); }
Var concat(const std::vector<Var>& xs, int64_t axis) { return xs.at(0).builder().op("Concat", xs, {{"axis", axis}}); }
Var slice(Var x, Var starts, Var ends, Var axes, Var steps) {
  return x.builder().op("Slice", {x, starts, ends, axes, steps});
}
Var slice(Var x, int64_t start, int64_t end, int64_t axis) {
  Builder& b = x.builder();
  return slice(x, b.ints({start}), b.ints({end}), b.ints({axis}));
}
Var gather(Var x, Var indices, int64_t axis) { return x.builder().op("Gather", {x, indices}, {{"axis", axis}}); }

Var full(Var shape, DType dtype, double value) {
  return shape.builder().op("ConstantOfShape", {shape}, {{"value", Tensor::full(dtype, {1}, value)}});
}
Var full_like(Var x, double value) { return full(shape(x), x.dtype(), value); }
Var zeros_like(Var x) { return full_like(x, 0); }
Var ones_like(Var x) { return full_like(x, 1); }
Var dim(Var x, int64_t axis) {
  if (x.value()->has_rank()) {
    axis = normalize_axis(axis, x.rank());
    const Dim& d = (*x.type().dims)[static_cast<size_t>(axis)];
    if (d.known()) return x.builder().ints({d.value()});
  }
  return x.builder().op("Shape", {x}, axis == -1 ? Attrs{{"start", -1}} : Attrs{{"start", axis}, {"end", axis + 1}});
}

Var matmul(Var a, Var b) { return binary("MatMul", a, b); }
Var gemm(Var a, Var b, bool transpose_a, bool transpose_b) {
  return a.builder().op("Gemm", {a, b}, {{"transA", transpose_a ? 1 : 0}, {"transB", transpose_b ? 1 : 0}});
}

namespace {

Var reduce(const char* op, Var x, const std::vector<int64_t>& axes, bool keepdims) {
  return x.builder().op(op, {x, x.builder().ints(axes)}, {{"keepdims", keepdims ? 1 : 0}});
}

}  // namespace

Var reduce_sum(Var x, const std::vector<int64_t>& axes, bool keepdims) {
  return axes.empty() ? x : reduce("ReduceSum", x, axes, keepdims);
}
Var reduce_sum(Var x, Var axes, bool keepdims) {
  return x.builder().op("ReduceSum", {x, axes}, {{"keepdims", keepdims ? 1 : 0}, {"noop_with_empty_axes", 1}});
}
Var reduce_mean(Var x, const std::vector<int64_t>& axes, bool keepdims) {
  return axes.empty() ? x : reduce("ReduceMean", x, axes, keepdims);
}
Var reduce_max(Var x, const std::vector<int64_t>& axes, bool keepdims) {
  return axes.empty() ? x : reduce("ReduceMax", x, axes, keepdims);
}
Var sum_all(Var x) { return x.builder().op("ReduceSum", {x}, {{"keepdims", 0}}); }

namespace {

// Finds the axes from the shapes: those where `like`, padded with ones on the left, is 1 and x is not.
Var sum_to_shape_at_run_time(Var x, Var like) {
  Builder& b = x.builder();
  const Var target = shape(like);
  Var padded = target;
  if (x.value()->has_rank() && like.value()->has_rank()) {
    const std::vector<int64_t> ones(static_cast<size_t>(x.rank() - like.rank()), 1);
    if (!ones.empty()) padded = concat({b.ints(ones), target}, 0);
  } else {
    const Var rank = size(shape(x)), missing = rank - size(target);
    padded = concat({full(reshape(missing, std::vector<int64_t>{1}), DType::kInt64, 1), target}, 0);
  }
  const Var one = b.scalar(DType::kInt64, 1);
  const Var is_one = equal(padded, one), repeated = logical_and(is_one, logical_not(equal(shape(x), one)));
  const Var axes = reshape(b.op("NonZero", {repeated}), std::vector<int64_t>{-1});
  return reshape(reduce_sum(x, axes), target);
}

}  // namespace

Var sum_to_shape_of(Var x, Var like) {
  if (!x.value()->has_rank() || !like.value()->has_rank()) return sum_to_shape_at_run_time(x, like);
  const Dims& from = *x.type().dims;
  const Dims& to = *like.type().dims;
  const size_t extra = from.size() - to.size();
  std::vector<int64_t> axes;
  for (size_t i = 0; i < from.size(); ++i) {
    if (i < extra) {
      axes.push_back(static_cast<int64_t>(i));
    } else if (to[i - extra] == Dim(1)) {
      if (from[i] != Dim(1)) axes.push_back(static_cast<int64_t>(i));
    } else if (!to[i - extra].same(from[i]) && !to[i - extra].known()) {
      return sum_to_shape_at_run_time(x, like);
    }
  }
  if (axes.size() == extra) return reduce_sum(x, axes, /*keepdims=*/false);
  const Var sum = reduce_sum(x, axes);
  if (extra == 0) return sum;
  axes.resize(extra);  // the extra leading axes
  return squeeze(sum, axes);
}

}  // namespace onnx_train
