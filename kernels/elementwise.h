// The element-wise operators of every device, one row each: the operator, its element types and its formula, a scalar
// functor of kernels/math. A device makes its kernels from these rows with a sink, which has a function template for
// each form of operator:
//
//   sink.unary(op, types, formula, domain)     y = f(x)
//   sink.binary(op, types, formula, domain)    y = f(a, b); the operands broadcast
//   sink.variadic(op, types, f, combination)   y = f(... f(f(a, b), c) ...); the operands broadcast
//   sink.power(op)                             y = Pow(a, b) for elements of two types (math::exponent_of_product)
//   sink.clip(op)                              y = Clip::between(low, high)(x); the bounds are optional scalars
//   sink.dropout_gradient(op, domain)          dx = DropoutGrad::of_ratio(ratio)(dy, mask); the ratio is a scalar
//   sink.choose(op)                            y = condition ? a : b of any type; the operands broadcast
//   sink.cast(op)                              y = Convert(x)
//
// Scalar operands are read when the kernel runs. `op` and `domain` are literals. `types` has contains(dtype) and
// dispatch(dtype, f), which calls f(T{}). A formula is called as formula(node, T{}, use): it reads the node's
// attributes and returns use(functor). A functor is a value without pointers that host and device code can copy and
// call; the type of the result is the one it returns.
//
// The rows are grouped, so that a device can compile each group in a separate file. The functions are pure except for
// the sink's effects; any thread may call them. They throw nothing.
#pragma once

#include "kernels/element_types.h"
#include "kernels/math/activations.h"
#include "kernels/math/binary.h"
#include "kernels/math/convert.h"
#include "kernels/math/float8.h"
#include "kernels/math/unary.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// ---- Formulas

// The functor F without attributes.
template <typename F>
auto formula() {
  return [](const Node&, auto, auto use) { return use(F{}); };
}

// A parameter of a functor: a float attribute of the node, or a constant.
struct Parameter {
  const char* attribute;  // null for a constant
  float value;            // the constant, or the attribute's default
  float of(const Node& node) const { return attribute ? node.attr(attribute, value) : value; }
};

inline Parameter attribute(const char* name, float otherwise) { return {name, otherwise}; }
inline Parameter constant(float value) { return {nullptr, value}; }

// The functor F<T> with these parameters, converted to T.
template <template <typename> typename F, typename... Parameters>
auto formula(Parameters... parameters) {
  return [=]<typename T, typename Use>(const Node& node, T, Use use) {
    return use(F<T>{static_cast<T>(parameters.of(node))...});
  };
}

// A if the node satisfies the condition, else B.
template <typename A, typename B>
auto formula_if(bool (*condition)(const Node&)) {
  return [=](const Node& node, auto, auto use) { return condition(node) ? use(A{}) : use(B{}); };
}

// The result of a variadic operator: the combination of all operands, or that times 1 / their number (math::Scale).
enum class Combination { kWhole, kMean };

// ---- Rows

template <typename Sink>
void for_each_arithmetic_operator(Sink& sink) {
  sink.binary("Add", Numbers{}, formula<math::Add>());
  sink.binary("Sub", Numbers{}, formula<math::Sub>());
  sink.binary("Mul", Numbers{}, formula<math::Mul>());
  sink.binary("Div", Numbers{}, formula<math::Div>());
  sink.variadic("Sum", Numbers{}, math::Add{}, Combination::kWhole);
  sink.variadic("Mean", Floats{}, math::Add{}, Combination::kMean);
  sink.unary("Neg", Numbers{}, formula<math::Neg>());
  sink.unary("Abs", Numbers{}, formula<math::Abs>());
  sink.unary("Sign", Numbers{}, formula<math::Sign>());
}

template <typename Sink>
void for_each_bound_operator(Sink& sink) {
  sink.variadic("Max", Numbers{}, math::Max{}, Combination::kWhole);
  sink.variadic("Min", Numbers{}, math::Min{}, Combination::kWhole);
  sink.clip("Clip");
}

template <typename Sink>
void for_each_power_operator(Sink& sink) {
  sink.power("Pow");
  sink.binary("Mod", Numbers{}, formula_if<math::TruncatedMod, math::FloorMod>([](const Node& node) {
                return node.attr("fmod", 0) != 0;
              }));
}

template <typename Sink>
void for_each_function_of_floats(Sink& sink) {
  sink.unary("Sqrt", Floats{}, formula<math::Sqrt>());
  sink.unary("Reciprocal", Floats{}, formula<math::Reciprocal>());
  sink.unary("Exp", Floats{}, formula<math::Exp>());
  sink.unary("Log", Floats{}, formula<math::Log>());
  sink.unary("Erf", Floats{}, formula<math::Erf>());
  sink.unary("Floor", Floats{}, formula<math::Floor>());
  sink.unary("Ceil", Floats{}, formula<math::Ceil>());
  sink.unary("Round", Floats{}, formula<math::Round>());
  sink.unary("Sin", Floats{}, formula<math::Sin>());
  sink.unary("Cos", Floats{}, formula<math::Cos>());
  sink.unary("Tan", Floats{}, formula<math::Tan>());
  sink.unary("Asin", Floats{}, formula<math::Asin>());
  sink.unary("Acos", Floats{}, formula<math::Acos>());
  sink.unary("Atan", Floats{}, formula<math::Atan>());
  sink.unary("Sinh", Floats{}, formula<math::Sinh>());
  sink.unary("Cosh", Floats{}, formula<math::Cosh>());
  sink.unary("Asinh", Floats{}, formula<math::Asinh>());
  sink.unary("Acosh", Floats{}, formula<math::Acosh>());
  sink.unary("Atanh", Floats{}, formula<math::Atanh>());
}

template <typename Sink>
void for_each_activation(Sink& sink) {
  sink.unary("Relu", Floats{}, formula<math::Relu>());
  sink.unary("LeakyRelu", Floats{}, formula<math::LeakyRelu>(attribute("alpha", 0.01f)));
  sink.binary("PRelu", Floats{}, formula<math::PRelu>());
  sink.unary("Elu", Floats{}, formula<math::Exponential>(constant(1), attribute("alpha", 1), constant(1)));
  sink.unary("Selu", Floats{},
             formula<math::Exponential>(attribute("gamma", 1.05070102214813232421875f),
                                        attribute("alpha", 1.67326319217681884765625f), constant(1)));
  sink.unary("Celu", Floats{}, formula<math::Exponential>(constant(1), attribute("alpha", 1), attribute("alpha", 1)));
  sink.unary("ThresholdedRelu", Floats{}, formula<math::ThresholdedRelu>(attribute("alpha", 1)));
  sink.unary("Shrink", Floats{}, formula<math::Shrink>(attribute("bias", 0), attribute("lambd", 0.5f)));
  sink.unary("Sigmoid", Floats{}, formula<math::Sigmoid>());
  sink.unary("HardSigmoid", Floats{}, formula<math::HardSigmoid>(attribute("alpha", 0.2f), attribute("beta", 0.5f)));
  sink.unary("HardSwish", Floats{}, formula<math::HardSwish>());
  sink.unary("Tanh", Floats{}, formula<math::Tanh>());
  sink.unary("Softplus", Floats{}, formula<math::Softplus>());
  sink.unary("Softsign", Floats{}, formula<math::Softsign>());
  sink.unary("Gelu", Floats{}, formula_if<math::GeluTanh, math::Gelu>([](const Node& node) {
               return node.attr("approximate", "none") == "tanh";
             }));
  sink.unary("Swish", Floats{}, formula<math::Swish>(attribute("alpha", 1)));
  sink.unary("Swish", Floats{}, formula<math::Swish>(attribute("alpha", 1)), kDomain);
  sink.unary("Mish", Floats{}, formula<math::Mish>());
}

template <typename Sink>
void for_each_activation_gradient(Sink& sink) {
  sink.binary("ReluGrad", Floats{}, formula<math::ReluGrad>(), kDomain);
  sink.binary("SigmoidGrad", Floats{}, formula<math::SigmoidGrad>(), kDomain);
  sink.binary("TanhGrad", Floats{}, formula<math::TanhGrad>(), kDomain);
  sink.binary("GeluGrad", Floats{}, formula<math::GeluGrad>(), kDomain);
  sink.binary("GeluTanhGrad", Floats{}, formula<math::GeluTanhGrad>(), kDomain);
  sink.binary("SwishGrad", Floats{}, formula<math::SwishGrad>(attribute("alpha", 1)), kDomain);
  sink.dropout_gradient("DropoutGrad", kDomain);
  sink.binary("FakeQuantize", Floats{},
              formula_if<math::FakeQuantize<math::Float8E4M3FN>, math::FakeQuantize<math::Float8E5M2>>(
                  [](const Node& node) { return node.attr("to", 0) == static_cast<int>(DType::kFloat8E4M3FN); }),
              kDomain);
}

template <typename Sink>
void for_each_comparison(Sink& sink) {
  sink.binary("Equal", NumbersAndBool{}, formula<math::Equal>());
  sink.binary("Less", NumbersAndBool{}, formula<math::Less>());
  sink.binary("LessOrEqual", NumbersAndBool{}, formula<math::LessOrEqual>());
  sink.binary("Greater", NumbersAndBool{}, formula<math::Greater>());
  sink.binary("GreaterOrEqual", NumbersAndBool{}, formula<math::GreaterOrEqual>());
  sink.unary("IsNaN", Floats{}, formula<math::IsNaN>());
  sink.unary("IsInf", Floats{}, [](const Node& node, auto, auto use) {
    return use(math::IsInf{node.attr("detect_positive", 1) != 0, node.attr("detect_negative", 1) != 0});
  });
}

// Operators of booleans and of the bits of integers.
template <typename Sink>
void for_each_logic_operator(Sink& sink) {
  sink.binary("And", Bool{}, formula<math::BitwiseAnd>());
  sink.binary("Or", Bool{}, formula<math::BitwiseOr>());
  sink.binary("Xor", Bool{}, formula<math::BitwiseXor>());
  sink.unary("Not", Bool{}, formula<math::Not>());
  sink.binary("BitwiseAnd", BitsOfIntegers{}, formula<math::BitwiseAnd>());
  sink.binary("BitwiseOr", BitsOfIntegers{}, formula<math::BitwiseOr>());
  sink.binary("BitwiseXor", BitsOfIntegers{}, formula<math::BitwiseXor>());
  sink.unary("BitwiseNot", BitsOfIntegers{}, formula<math::BitwiseNot>());
  sink.binary("BitShift", Integers{}, formula_if<math::ShiftLeft, math::ShiftRight>([](const Node& node) {
                return node.attr("direction", "") == "LEFT";
              }));
  sink.choose("Where");
}

template <typename Sink>
void for_each_cast(Sink& sink) {
  sink.cast("Cast");
  sink.cast("CastLike");
}

}  // namespace onnx_train
