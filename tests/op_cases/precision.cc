#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/half.h"
#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

// Between -1 and 1, in a 16-bit type.
OpInput narrow(DType dtype, Shape shape, int64_t seed) {
  Tensor tensor(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.set(i, static_cast<double>(static_cast<float>((i + seed) * 48271 % 2017 - 1008) / 1008));
  }
  return {.shape = {}, .value = std::move(tensor)};
}

// Sums of products of 16-bit numbers are made in float32, in whatever order. Biases, which are float32 in every
// row: tests/passes/mixed_precision_test.cc.
OpCase product(const char* op, Shape a, Shape b, Attrs attrs = {}, std::vector<OpInput> more = {}, int outputs = 1,
               DType dtype = DType::kBFloat16) {
  std::vector<OpInput> inputs = {narrow(dtype, std::move(a), 1), narrow(dtype, std::move(b), 500)};
  inputs.insert(inputs.end(), more.begin(), more.end());
  return {.op = op,
          .inputs = std::move(inputs),
          .attrs = std::move(attrs),
          .num_outputs = outputs,
          .domain = "onnx_train",
          .gradient = false,
          .dynamic = false};
}

Attrs windows(int64_t group, Ints strides, Ints dilations, Ints pads) {
  return {{"group", group},
          {"strides", std::move(strides)},
          {"dilations", std::move(dilations)},
          {"pads", std::move(pads)}};
}

Shape channels_last(Shape shape) {
  std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
  return shape;
}

void add_convolutions(std::vector<OpCase>& cases, const Shape& x, const Shape& w, const Shape& y, const Attrs& attrs) {
  cases.push_back(product("Conv", x, w, attrs));
  cases.push_back(product("ConvGradInput", y, w, attrs, {sizes(x)}));
  cases.push_back(product("ConvGradWeight", x, y, attrs, {sizes(w)}));
  cases.push_back(product("ConvGradWeight", x, y, attrs, {sizes(w)}, 2));
  Attrs last = attrs;
  last.emplace_back("channels_last", 1);
  const Shape x_last = channels_last(x), y_last = channels_last(y);
  cases.push_back(product("Conv", x_last, w, last));
  cases.push_back(product("ConvGradInput", y_last, w, last, {sizes(x_last)}));
  cases.push_back(product("ConvGradWeight", x_last, y_last, last, {sizes(w)}));
  cases.push_back(product("ConvGradWeight", x_last, y_last, last, {sizes(w)}, 2));
}

Tensor nearest_bfloat16(const std::vector<Tensor>& in) {
  Tensor y(DType::kDouble, in[0].shape());
  for (int64_t i = 0; i < y.size(); ++i) {
    y.set(i, static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(in[0].at(i))))));
  }
  return y;
}

// The numbers of an 8-bit float type that are not negative, by their codes; without infinities and NaN.
std::vector<double> numbers_of_float8(DType dtype) {
  const bool gradients = dtype == DType::kFloat8E5M2;
  const int mantissa = gradients ? 2 : 3, bias = gradients ? 15 : 7, count = gradients ? 0x7c : 0x7f;
  std::vector<double> numbers;
  for (int code = 0; code < count; ++code) {
    const int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
    const double significand = std::ldexp(fraction, -mantissa) + (exponent > 0 ? 1 : 0);
    numbers.push_back(std::ldexp(significand, std::max(exponent, 1) - bias));
  }
  return numbers;
}

// The nearest number to x / scale, times scale; of two that are equally near, the one with the even code.
Tensor nearest_float8(const std::vector<Tensor>& in, DType dtype) {
  const std::vector<double> numbers = numbers_of_float8(dtype);
  const double scale = in[1].at(0);
  Tensor y(DType::kDouble, in[0].shape());
  for (int64_t i = 0; i < y.size(); ++i) {
    const double x = in[0].at(i), magnitude = std::abs(x) / scale;
    size_t nearest = 0;
    for (size_t code = 1; code < numbers.size(); ++code) {
      const double distance = std::abs(numbers[code] - magnitude), before = std::abs(numbers[nearest] - magnitude);
      if (distance < before || (distance == before && code % 2 == 0)) nearest = code;
    }
    y.set(i, std::copysign(numbers[nearest] * scale, x));
  }
  return y;
}

OpCase fake_quantize(DType dtype, Shape shape, double scale, double range) {
  const char* straight = "it goes straight through, unlike differences: float8_test.cc";
  return {.op = "FakeQuantize",
          .inputs = {{std::move(shape), -range, range}, {.value = Tensor::full(DType::kFloat, {}, scale)}},
          .attrs = {{"to", static_cast<int>(dtype)}},
          .domain = "onnx_train",
          .expected = [dtype](const std::vector<Tensor>& in) { return nearest_float8(in, dtype); },
          .gradient = false,
          .no_derivative = straight,
          .no_body = "its body has tensors of 8 bits; other runtimes run it: test_precision.py"};
}

OpCase rounding(const char* op, OpInput input, std::function<Tensor(const std::vector<Tensor>&)> expected) {
  return {.op = op,
          .inputs = {std::move(input)},
          .attrs = {{"to", static_cast<int>(DType::kBFloat16)}},
          .domain = "onnx_train",
          .expected = std::move(expected),
          .gradient = false,
          .no_derivative = "it goes straight through, unlike differences: mixed_precision_test.cc"};
}

void add_float16_products(std::vector<OpCase>& cases) {
  const auto add = [&](const char* op, Shape a, Shape b, Attrs attrs, std::vector<OpInput> more = {}, int outputs = 1) {
    cases.push_back(
        product(op, std::move(a), std::move(b), std::move(attrs), std::move(more), outputs, DType::kFloat16));
  };
  add("MatMul", {64, 48}, {48, 80}, {});
  add("MatMul", {2, 1, 4, 5}, {1, 3, 5, 6}, {});
  add("Gemm", {5, 4}, {3, 5}, {{"transA", 1}, {"transB", 1}});
  add("TransposedMatMul", {2, 5, 4}, {6, 5},
      {{"perm_a", Ints{0, 2, 1}}, {"perm_b", Ints{1, 0}}, {"perm_y", Ints{1, 0, 2}}});
  const Shape x = {2, 16, 9, 8}, w = {32, 16, 3, 2}, y = {2, 32, 5, 3};
  const Attrs attrs = windows(1, {2, 3}, {1, 1}, {1, 0, 1, 1});
  add("Conv", x, w, attrs);
  add("ConvGradInput", y, w, attrs, {sizes(x)});
  add("ConvGradWeight", x, y, attrs, {sizes(w)}, 2);
}

}  // namespace

std::vector<OpCase> precision_cases() {
  std::vector<OpCase> cases = {
      rounding("RoundTo", {{7, 33}, -300, 300}, nearest_bfloat16),
      rounding("RoundTo", {{0, 3}}, nearest_bfloat16),
      rounding("RoundTo", {{}}, nearest_bfloat16),
      rounding("RoundGradientTo", {{3, 4}}, [](const std::vector<Tensor>& in) { return in[0]; }),

      fake_quantize(DType::kFloat8E4M3FN, {65, 33}, 1.0 / 64, 9),  // some beyond the largest number
      fake_quantize(DType::kFloat8E4M3FN, {65, 33}, 16, 1),        // below the least normal number
      fake_quantize(DType::kFloat8E5M2, {65, 33}, 1.0 / 32768, 2),
      fake_quantize(DType::kFloat8E5M2, {65, 33}, 4, 1e-4),
      fake_quantize(DType::kFloat8E4M3FN, {}, 1, 1),
      fake_quantize(DType::kFloat8E5M2, {0, 3}, 1, 1),

      product("MatMul", {4, 5}, {5, 3}),
      product("MatMul", {1, 1}, {1, 1}),
      product("MatMul", {64, 48}, {48, 80}),
      product("MatMul", {5}, {5, 3}),
      product("MatMul", {2, 3, 4, 5}, {5, 3}),
      product("MatMul", {2, 3, 4, 5}, {2, 3, 5, 6}),
      product("MatMul", {2, 1, 4, 5}, {1, 3, 5, 6}),
      product("MatMul", {0, 5}, {5, 3}),
      product("MatMul", {4, 0}, {0, 3}),
      product("Gemm", {4, 5}, {5, 3}),
      product("Gemm", {5, 4}, {3, 5}, {{"transA", 1}, {"transB", 1}}),
      product("Gemm", {4, 5}, {3, 5}, {{"transB", 1}}),
      product("Gemm", {4, 5}, {5, 3}, {{"alpha", 0.5f}}),
      product("Gemm", {4, 0}, {0, 3}),
      product("TransposedMatMul", {2, 4, 3, 5}, {2, 6, 3, 5},
              {{"perm_a", Ints{0, 2, 1, 3}}, {"perm_b", Ints{0, 2, 3, 1}}, {"perm_y", Ints{0, 2, 1, 3}}}),
      product("TransposedMatMul", {2, 5, 4}, {6, 5},
              {{"perm_a", Ints{0, 2, 1}}, {"perm_b", Ints{1, 0}}, {"perm_y", Ints{1, 0, 2}}}),
  };
  add_float16_products(cases);
  for (const char* sums : {"sums_of_a", "sums_of_b"}) {
    cases.push_back(product("MatMul", {40, 30}, {30, 7}, {{"epilogue", sums}}, {}, 2));
    cases.push_back(product("Gemm", {300, 40}, {300, 70}, {{"transA", 1}, {"epilogue", sums}}, {}, 2));
  }
  add_convolutions(cases, {2, 3, 8, 9}, {4, 3, 3, 3}, {2, 4, 8, 9}, windows(1, {1, 1}, {1, 1}, {1, 1, 1, 1}));
  add_convolutions(cases, {2, 16, 9, 8}, {32, 16, 3, 2}, {2, 32, 5, 3}, windows(1, {2, 3}, {1, 1}, {1, 0, 1, 1}));
  add_convolutions(cases, {2, 4, 7, 7}, {6, 2, 3, 3}, {2, 6, 3, 3}, windows(2, {1, 1}, {2, 2}, {0, 0, 0, 0}));
  add_convolutions(cases, {2, 16, 7, 7}, {16, 1, 3, 3}, {2, 16, 7, 7}, windows(16, {1, 1}, {1, 1}, {1, 1, 1, 1}));
  // Where there are kernels of our own: small images, and weight gradients of several images, in chunks of them.
  add_convolutions(cases, {8, 32, 4, 4}, {32, 32, 3, 3}, {8, 32, 4, 4}, windows(1, {1, 1}, {1, 1}, {1, 1, 1, 1}));
  add_convolutions(cases, {7, 30, 5, 4}, {28, 30, 3, 3}, {7, 28, 3, 2}, windows(1, {2, 2}, {1, 1}, {1, 1, 1, 1}));
  add_convolutions(cases, {9, 24, 20, 20}, {32, 24, 3, 3}, {9, 32, 20, 20}, windows(1, {1, 1}, {1, 1}, {1, 1, 1, 1}));
  add_convolutions(cases, {8, 16, 9}, {32, 16, 5}, {8, 32, 5}, windows(1, {1}, {2}, {2, 2}));
  add_convolutions(cases, {8, 32, 3, 2, 4}, {32, 32, 2, 2, 3}, {8, 32, 2, 2, 2},
                   windows(1, {2, 1, 2}, {1, 1, 1}, {0, 1, 0, 1, 0, 1}));
  add_convolutions(cases, {2, 3, 11}, {4, 3, 3}, {2, 4, 6}, windows(1, {2}, {1}, {1, 2}));
  add_convolutions(cases, {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, windows(1, {1, 1}, {1, 1}, {0, 0, 0, 0}));
  add_convolutions(cases, {0, 3, 8, 8}, {4, 3, 3, 3}, {0, 4, 6, 6}, windows(1, {1, 1}, {1, 1}, {0, 0, 0, 0}));
  return cases;
}

}  // namespace onnx_train
