#include <cmath>
#include <iterator>

#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

using Scalar = double (*)(double);

// What the operator's first output is, element by element.
std::function<Tensor(const std::vector<Tensor>&)> elementwise(const std::function<double(double)>& f) {
  return [f](const std::vector<Tensor>& x) {
    Tensor y = x[0].clone();
    for (int64_t i = 0; i < y.size(); ++i) y.set(i, f(y.at(i)));
    return y;
  };
}

// A function of one float, its domain, and where it has no derivative.
struct Unary {
  const char* op;
  double low, high;
  Scalar expected;
  std::vector<double> kinks = {};
  bool flat = false;  // between its jumps
};

const std::vector<Unary>& unary_functions() {
  static const std::vector<Unary> all = {
      {"Neg", -2, 2, [](double x) { return -x; }},
      {"Abs", -2, 2, std::fabs, {0}},
      {"Sign", -2, 2, [](double x) { return x < 0 ? -1.0 : 1.0; }, {0}, true},
      {"Floor", -3, 3, std::floor, {-2, -1, 0, 1, 2}, true},
      {"Ceil", -3, 3, std::ceil, {-2, -1, 0, 1, 2}, true},
      {"Round", -3, 3, std::nearbyint, {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}, true},
      {"Sqrt", 0.1, 3, std::sqrt},
      {"Reciprocal", 0.3, 2, [](double x) { return 1 / x; }},
      {"Exp", -3, 3, std::exp},
      {"Log", 0.1, 3, std::log},
      {"Erf", -3, 3, std::erf},
      {"Sin", -4, 4, std::sin},
      {"Cos", -4, 4, std::cos},
      {"Tan", -1.2, 1.2, std::tan},
      {"Asin", -0.9, 0.9, std::asin},
      {"Acos", -0.9, 0.9, std::acos},
      {"Atan", -3, 3, std::atan},
      {"Sinh", -2, 2, std::sinh},
      {"Cosh", -2, 2, std::cosh},
      {"Asinh", -3, 3, std::asinh},
      {"Acosh", 1.2, 4, std::acosh},
      {"Atanh", -0.9, 0.9, std::atanh},
      {"Identity", -2, 2, [](double x) { return x; }},
  };
  return all;
}

std::vector<OpCase> unary_cases() {
  std::vector<OpCase> cases;
  for (const Unary& f : unary_functions()) {
    for (const Shape& shape : std::vector<Shape>{{4, 5}, {1}, {}, {0, 3}}) {
      const OpInput x{.shape = shape, .low = f.low, .high = f.high, .away_from = f.kinks, .zero_gradient = f.flat};
      cases.push_back({.op = f.op, .inputs = {x}, .expected = elementwise(f.expected)});
    }
  }
  return cases;
}

const std::vector<std::pair<Shape, Shape>>& broadcast_shapes() {
  static const std::vector<std::pair<Shape, Shape>> all = {
      {{3, 4}, {3, 4}},    {{3, 4}, {4}},       {{4}, {3, 4}},    {{3, 1}, {1, 4}}, {{2, 3}, {}},     {{}, {2, 3}},
      {{2, 3, 4}, {3, 1}}, {{2, 1, 4}, {3, 1}}, {{1, 4}, {1, 4}}, {{0, 3}, {3}},    {{3, 1}, {1, 0}},
  };
  return all;
}

std::vector<OpCase> arithmetic_cases() {
  std::vector<OpCase> cases;
  for (const auto& [a, b] : broadcast_shapes()) {
    for (const char* op : {"Add", "Sub", "Mul", "Div"}) cases.push_back({.op = op, .inputs = {{a}, {b, 0.5, 2}}});
    for (const char* op : {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}) {
      cases.push_back({.op = op, .inputs = {{a}, {b}}, .gradient = false});
    }
  }
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Mod", "Equal", "Less", "Greater"}) {
    cases.push_back({.op = op,
                     .inputs = {{.shape = {3, 4}, .low = -9, .high = 9, .dtype = DType::kInt64},
                                {.shape = {4}, .low = -4, .high = 4, .dtype = DType::kInt64}},
                     .gradient = false});
  }
  // Quotients between 2 and 3, and between -3 and -2: away from the jumps.
  cases.push_back({.op = "Mod", .inputs = {{{3, 4}, 2.1, 2.9}, {{4}, 1, 1.04}}, .attrs = {{"fmod", 1}}});
  cases.push_back({.op = "Mod", .inputs = {{{3, 4}, -2.9, -2.1}, {{3, 1}, 1, 1.04}}, .attrs = {{"fmod", 1}}});
  return cases;
}

std::vector<OpCase> pow_cases() {
  std::vector<OpCase> cases;
  for (const auto& [a, b] : broadcast_shapes()) {
    cases.push_back({.op = "Pow", .inputs = {{a, 0.3, 2}, {b, -2, 3}}});
  }
  // Constant exponents; whole ones take negative bases.
  const std::string no_logarithm = "the exponent's is xᵉ log x: a base may be negative, or zero";
  for (const double exponent : {0.0, 1.0, 2.0, 3.0, 5.0, -1.0, -2.0}) {
    cases.push_back({.op = "Pow",
                     .inputs = {{{3, 4}, -2, 2, {0, 0.05, -0.05, 0.1, -0.1}},
                                {.value = Tensor::full(DType::kFloat, {}, exponent),
                                 .constant = true,
                                 .no_derivative = no_logarithm}},
                     .expected = elementwise([=](double x) { return std::pow(x, exponent); })});
  }
  for (const double exponent : {0.5, -0.5, 1.5}) {
    cases.push_back(
        {.op = "Pow",
         .inputs = {{{3, 4}, 0.3, 2}, {.value = Tensor::full(DType::kFloat, {1}, exponent), .constant = true}},
         .expected = elementwise([=](double x) { return std::pow(x, exponent); })});
  }
  cases.push_back({.op = "Pow", .inputs = {{{3}, -2, 2, {0}}, {.value = Tensor::ints({2, 3, 1})}}});
  // x⁰ and x¹ at zero have the derivatives 0 and 1, not NaN; nor has the exponent one there.
  cases.push_back({.op = "Pow",
                   .inputs = {{.value = Tensor::of<float>({4}, {0, 0, 0, -1.5f})},
                              {.value = Tensor::of<float>({4}, {0, 1, 2, 2}), .no_derivative = no_logarithm}}});
  cases.push_back(
      {.op = "Pow",
       .inputs = {{.value = Tensor::of<float>({3}, {0, 0, 2})}, {.value = Tensor::of<float>({3}, {1, 2, 3})}}});
  return cases;
}

std::vector<OpCase> variadic_cases() {
  std::vector<OpCase> cases;
  for (const char* op : {"Max", "Min", "Sum", "Mean"}) {
    const auto operand = [](Shape shape, double shift) {
      return OpInput{.shape = std::move(shape), .low = -1 + shift, .high = 1 + shift, .distinct = true};
    };
    cases.push_back({.op = op, .inputs = {operand({3, 4}, 0)}});
    cases.push_back({.op = op, .inputs = {operand({3, 4}, 0), operand({3, 4}, 0.05)}});
    cases.push_back({.op = op, .inputs = {operand({3, 4}, 0), operand({4}, 0.05)}});
    cases.push_back({.op = op, .inputs = {operand({3, 1}, 0), operand({}, 0.03), operand({2, 1, 4}, 0.1)}});
    cases.push_back({.op = op, .inputs = {operand({0, 4}, 0), operand({4}, 0)}});
    // Ties share: the derivative is the mean of those of the operands.
    const OpInput ties{.value = Tensor::of<float>({2}, {1, -2})};
    cases.push_back({.op = op, .inputs = {ties, ties}});
  }
  for (const char* op : {"Max", "Min"}) {
    const OpInput integers{.shape = {3, 4}, .low = -9, .high = 9, .dtype = DType::kInt64};
    cases.push_back({.op = op, .inputs = {integers, integers}, .gradient = false});
  }
  return cases;
}

std::vector<OpCase> choice_cases() {
  const auto bound = [](float value) { return OpInput{.value = Tensor::scalar(value)}; };
  const OpInput none{.absent = true};
  const OpInput x{.shape = {4, 5}, .low = -2, .high = 2, .away_from = {-0.5, 0.75}};
  const auto condition = [](Shape shape) {
    return OpInput{.shape = std::move(shape), .low = 0, .high = 2, .dtype = DType::kBool};
  };
  return {
      {.op = "Clip", .inputs = {x}},
      {.op = "Clip", .inputs = {x, bound(-0.5f)}},
      {.op = "Clip", .inputs = {x, none, bound(0.75f)}},
      {.op = "Clip", .inputs = {x, bound(-0.5f), bound(0.75f)}},
      {.op = "Clip", .inputs = {x, bound(0.75f), bound(-0.5f)}},
      {.op = "Clip", .inputs = {{.shape = {0, 3}}, bound(-0.5f), bound(0.75f)}},
      {.op = "Where", .inputs = {condition({3, 4}), {{3, 4}}, {{3, 4}}}},
      {.op = "Where", .inputs = {condition({3, 4}), {{4}}, {{}}}},
      {.op = "Where", .inputs = {condition({4}), {{3, 1}}, {{2, 1, 4}}}},
      {.op = "Where", .inputs = {condition({}), {{3, 4}}, {{1, 4}}}},
      {.op = "Where", .inputs = {condition({0, 4}), {{4}}, {{}}}},
  };
}

std::vector<OpCase> type_cases() {
  const auto to = [](DType dtype) { return Attrs{{"to", static_cast<int>(dtype)}}; };
  const OpInput x{.shape = {3, 4}, .low = -5, .high = 5, .away_from = {-4, -3, -2, -1, 0, 1, 2, 3, 4}};
  const OpInput doubles{.value = Tensor(DType::kDouble, {1}), .zero_gradient = true};
  return {
      {.op = "Cast", .inputs = {x}, .attrs = to(DType::kDouble)},
      {.op = "Cast", .inputs = {{{0, 3}}}, .attrs = to(DType::kDouble)},
      {.op = "Cast",
       .inputs = {x},
       .attrs = to(DType::kFloat),
       .gradient = false,
       .no_derivative = "float32 rounds away what differences tell"},
      {.op = "Cast", .inputs = {x}, .attrs = to(DType::kInt64), .gradient = false},
      {.op = "Cast", .inputs = {x}, .attrs = to(DType::kBool), .gradient = false},
      {.op = "CastLike", .inputs = {x, doubles}},
      {.op = "CastLike", .inputs = {x, {.value = Tensor::ints({1})}}, .gradient = false},
      {.op = "IsNaN", .inputs = {x}, .gradient = false},
      {.op = "IsInf", .inputs = {x}, .gradient = false},
  };
}

std::vector<OpCase> bit_cases() {
  std::vector<OpCase> cases;
  const OpInput bools{.shape = {3, 4}, .low = 0, .high = 2, .dtype = DType::kBool};
  const OpInput bool_row{.shape = {4}, .low = 0, .high = 2, .dtype = DType::kBool};
  const OpInput integers{.shape = {3, 4}, .low = 0, .high = 200, .dtype = DType::kUint64};
  const OpInput shifts{.shape = {4}, .low = 0, .high = 8, .dtype = DType::kUint64};
  for (const char* op : {"And", "Or", "Xor"}) {
    cases.push_back({.op = op, .inputs = {bools, bool_row}, .gradient = false});
  }
  for (const char* op : {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}) {
    cases.push_back({.op = op, .inputs = {integers, shifts}, .gradient = false});
  }
  cases.push_back({.op = "Not", .inputs = {bools}, .gradient = false});
  cases.push_back({.op = "BitwiseNot", .inputs = {integers}, .gradient = false});
  for (const char* direction : {"LEFT", "RIGHT"}) {
    cases.push_back(
        {.op = "BitShift", .inputs = {integers, shifts}, .attrs = {{"direction", direction}}, .gradient = false});
  }
  return cases;
}

}  // namespace

std::vector<OpCase> elementwise_cases() {
  std::vector<OpCase> all;
  for (auto* part : {unary_cases, arithmetic_cases, pow_cases, variadic_cases, choice_cases, type_cases, bit_cases}) {
    std::vector<OpCase> cases = part();
    std::move(cases.begin(), cases.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace onnx_train
