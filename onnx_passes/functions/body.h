// Writes the bodies of our functions in the notation of mathematics:
//
//   // y = tanh(x)    dx = dy (1 - y²)
//   function("TanhGrad (dy, y) => (dx)", [](Term dy, Term y) { return dy * (1 - y * y); })
//
// A Term is a value of the body or a literal: 1 is a number, {1} a list of int64. A body does not know the types of its
// inputs: a number takes the type of the tensor that it is combined with, rounded once. Numbers are literals (in
// float64), and attributes that are float64 tensors or floats; what is computed of numbers alone stays a number, so
// that a step size is computed in float64 and rounded when it is multiplied by a tensor.
//
// Equal expressions are computed once. What no output needs is left out, and the order of the rest is that in which the
// outputs need it, whichever operand of an expression the compiler evaluates first. A node of a step (scan) whose
// inputs do not change from step to step is computed before the steps. A Body belongs to one thread, and its Terms must
// not outlive it. Mistakes of a body, such as an operator of literals alone, throw Error.
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/functions/functions.h"

namespace onnx_train {

class Body;

class Term {
 public:
  Term() = default;  // an input that is left out
  template <typename T>
  requires std::is_arithmetic_v<T> Term(T number) : kind_(Kind::kNumber), number_(static_cast<double>(number)) {}
  Term(std::initializer_list<int64_t> list) : kind_(Kind::kList), list_(list) {}  // int64[n]
  Term(std::vector<int64_t> list) : kind_(Kind::kList), list_(std::move(list)) {}

  explicit operator bool() const { return kind_ != Kind::kNone; }
  bool is_list() const { return kind_ == Kind::kList; }
  Body* body() const { return body_; }  // null for literals

 private:
  friend class Body;
  enum class Kind { kNone, kNumber, kList, kValue };
  Term(Body* body, int value) : body_(body), kind_(Kind::kValue), value_(value) {}
  Body* body_ = nullptr;
  Kind kind_ = Kind::kNone;
  int value_ = -1;
  double number_ = 0;
  std::vector<int64_t> list_;
};

using Terms = std::vector<Term>;

class Body {
 public:
  // `signature` is that of ONNX's text, "Name <axis: int = -1, scale> (x, int64 y) => (z)", in which int64 may stand
  // before an input that has integers. An attribute without a type has that which the call gives it.
  Body(const std::string& signature, const FunctionCall& call);
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;

  Term input(const std::string& name);
  Terms inputs();
  Terms inputs_of(size_t count);  // all of them; throws Error if they are not so many. 0: any number
  const std::vector<std::string>& input_names() const { return inputs_; }
  Term attribute(const std::string& name);           // a number, or int64
  bool has(const std::string& input) const;          // whether the call gives the input
  const Var& given(const std::string& input) const;  // what the call gives for it
  const FunctionCall& call() const { return call_; }
  // Says that two inputs have one type.
  void same_type(const std::string& input, const std::string& like) {
    values_[index_of(input)].type.like = static_cast<int>(index_of(like));
  }
  // Says that the body depends on more than the function's name: part of the overload.
  void depends_on(const std::string& what) { overload_ += overload_.empty() ? what : "_" + what; }

  // Adds a node. `attributes` are ONNX's text: "axis = 1, to: int = @to". Literals and numbers take the type of the
  // first tensor among the inputs. The result has the type of the first input, if `result` does not say it.
  Term op(const std::string& op, const Terms& inputs, const std::string& attributes = "",
          DType result = DType::kUndefined);
  Terms ops(const std::string& op, int num_outputs, const Terms& inputs, const std::string& attributes = "",
            DType result = DType::kUndefined);
  // Adds a call of a function of ours whose text does not depend on the call. A body calls at most one.
  Term apply(const std::string& op, const Terms& inputs, const std::string& attributes = "");
  Terms apply(const std::string& op, int num_outputs, const Terms& inputs, const std::string& attributes = "");

  Term constant(DType dtype, double value);                       // a scalar
  Term constant(DType dtype, const std::vector<double>& values);  // [n]
  Term number(const Term& x);                                     // a literal or a scalar as a number of float64
  Term as(const Term& x, DType dtype);                            // a literal in the type; other terms stay
  Term as(const Term& x, const Term& like);  // a literal or a number in the type of `like`; other terms stay

  // Runs `step` along the first axis of `inputs`, from its end if `backwards`. The step takes the states and one
  // element of each input, and returns the next states and its outputs. Returns the last states and the outputs of all
  // steps, next to each other on a new first axis.
  using Step = std::function<Terms(const Terms& states, const Terms& elements)>;
  Terms scan(const Terms& states, const Terms& inputs, bool backwards, const Step& step);

  // The outputs, by name or all in the order of the signature.
  void output(const std::string& name, const Term& value);
  FunctionText text() const;
  FunctionText text(const Terms& outputs);

  // Where(condition, a, b), whose condition is no number whatever a and b are.
  Term where(const Term& condition, const Term& a, const Term& b);
  Term cast_like(const Term& x, const Term& other);
  Term cast(const Term& x, DType dtype);

 private:
  // An element type: known, or that of the value `like`. Numbers are scalars that take another one.
  struct Type {
    DType dtype = DType::kUndefined;
    int like = -1;
    bool is_number = false;
  };
  struct Value {
    Type type;
    int scope, node;        // of an input: node < 0
    std::string name = {};  // of inputs and outputs
  };
  struct Node {
    std::string op, attributes;
    std::vector<int> inputs, outputs;
    std::vector<int> formals = {}, results = {};  // of the step of a Scan
    int step = 0;                                 // its scope; 0: no Scan
  };
  struct Order;

  size_t index_of(const std::string& input) const;
  Type common_type(const Terms& terms) const;
  const Type& type_of(int value) const { return values_[static_cast<size_t>(value)].type; }
  int value_of(const Term& term, const Type& type);
  int literal(double number, const Type& type);
  int innermost(const std::vector<int>& values) const;
  int new_value(const Type& type, int scope, int node);
  std::vector<int> add(const std::string& op, const std::vector<int>& inputs, const std::string& attributes,
                       const std::vector<Type>& types, int scope = -1);
  void arrange(int value, Order* order) const;
  std::string lines(int scope, const Order& order) const;
  Term term(int value) { return {this, value}; }

  const FunctionCall& call_;
  std::string head_, overload_, inner_;  // "Name <..> (x, y) => (z)"
  std::map<std::string, std::string> attribute_types_;
  std::vector<std::string> inputs_, outputs_;
  std::vector<int> results_;  // by output
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<int> depths_;                        // by scope
  std::map<std::string, std::vector<int>> known_;  // the outputs of a node by its text
};

// ---- Rows. `write` takes the inputs of the function, and the body before them if it needs it; it returns the outputs.

FunctionRow function_of(const char* signature, std::function<Terms(Body&)> write);

template <typename Result, typename... Inputs>
FunctionRow function_of(const char* signature, std::function<Result(Body&, Inputs...)> write) {
  return function_of(signature, std::function<Terms(Body&)>([write](Body& body) {
                       const Terms inputs = body.inputs_of(sizeof...(Inputs));
                       return [&]<size_t... I>(std::index_sequence<I...>) {
                         return Terms{write(body, inputs.at(I)...)};
                       }
                       (std::index_sequence_for<Inputs...>());
                     }));
}

template <typename Result, typename... Inputs>
FunctionRow function_of(const char* signature, std::function<Result(Inputs...)> write) {
  return function_of(signature, std::function<Result(Body&, Inputs...)>(
                                    [write](Body&, const Inputs&... inputs) { return write(inputs...); }));
}

template <typename Write>
FunctionRow function(const char* signature, Write write) {
  return function_of(signature, std::function(std::move(write)));
}

// ---- Element-wise, with broadcasting
Term operator+(const Term& a, const Term& b);
Term operator-(const Term& a, const Term& b);
Term operator*(const Term& a, const Term& b);
Term operator/(const Term& a, const Term& b);
Term operator-(const Term& a);
Term operator<(const Term& a, const Term& b);  // bool tensors
Term operator>(const Term& a, const Term& b);
Term operator<=(const Term& a, const Term& b);
Term operator>=(const Term& a, const Term& b);
Term equal(const Term& a, const Term& b);
Term logical_and(const Term& a, const Term& b);
Term logical_or(const Term& a, const Term& b);
Term logical_not(const Term& a);
Term where(const Term& condition, const Term& a, const Term& b);
Term exp(const Term& x);
Term log(const Term& x);
Term sqrt(const Term& x);
Term abs(const Term& x);
Term sign(const Term& x);
Term tanh(const Term& x);
Term sigmoid(const Term& x);
Term erf(const Term& x);
Term floor(const Term& x);
Term ceil(const Term& x);
Term round(const Term& x);
Term pow(const Term& x, const Term& y);
Term max(const Term& a, const Term& b);
Term min(const Term& a, const Term& b);
Term cast(const Term& x, DType dtype);
Term cast_like(const Term& x, const Term& other);

// ---- Shape. Axes, shapes and indices are int64: lists, scalars for `gather` and `range`.
Term shape(const Term& x);                              // int64[rank]
Term shape(const Term& x, int64_t start, int64_t end);  // a part of it
Term shape_from(const Term& x, int64_t start);
Term size(const Term& x);                        // int64[]
Term reshape(const Term& x, const Term& shape);  // -1 and 0 as in ONNX in a list; else 0 is a size
Term transpose(const Term& x, const std::vector<int64_t>& permutation);
Term expand(const Term& x, const Term& shape);
Term unsqueeze(const Term& x, const Term& axes);
Term squeeze(const Term& x, const Term& axes = {});
Term slice(const Term& x, const Term& starts, const Term& ends, const Term& axes = {});
Term gather(const Term& x, const Term& indices, int64_t axis = 0);
Term gather_elements(const Term& x, const Term& indices, int64_t axis);
Term range(const Term& end);                      // 0, 1, .. below the scalar, of its type
Term zeros(const Term& shape, const Term& like);  // of like's type
template <std::integral Axis>
Term concat(const Terms& xs, Axis axis) {
  for (const Term& x : xs) {
    if (x.body()) return x.body()->op("Concat", xs, "axis = " + std::to_string(axis));
  }
  return {};
}
// data + the updates at the places that the indices say.
Term scatter_add(const Term& data, const Term& indices, const Term& updates, int64_t axis);

// ---- Products and reductions
Term matmul(const Term& a, const Term& b);
Term reduce(const char* op, const Term& x, const Term& axes, bool keepdims);
inline Term reduce_sum(const Term& x, const Term& axes, bool keepdims = true) {
  return reduce("ReduceSum", x, axes, keepdims);
}
inline Term reduce_mean(const Term& x, const Term& axes, bool keepdims = true) {
  return reduce("ReduceMean", x, axes, keepdims);
}
inline Term reduce_max(const Term& x, const Term& axes, bool keepdims = true) {
  return reduce("ReduceMax", x, axes, keepdims);
}
inline Term reduce_prod(const Term& x, bool keepdims = true) { return reduce("ReduceProd", x, {}, keepdims); }

}  // namespace onnx_train
