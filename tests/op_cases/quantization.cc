// Quantization: integers as floats, stored integers, and pairs of QuantizeLinear and DequantizeLinear.
#include <algorithm>
#include <cmath>

#include "tests/op_cases/op_case.h"

namespace onnx_train {

namespace {

constexpr const char* kStraight = "it goes straight through, unlike differences: tests/python/quantization";

// Rounds x [.., 3, 4] with a scale and a zero point for each of the 3.
Tensor rounded(const std::vector<Tensor>& in, double low, double high) {
  Tensor y(DType::kDouble, in[0].shape());
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t at = in[1].size() == 1 ? 0 : i / 4 % 3;
    const double scale = in[1].at(at), zero = in[2].at(in[2].size() == 1 ? 0 : at);
    y.set(i, (std::clamp(std::nearbyint(in[0].at(i) / scale) + zero, low, high) - zero) * scale);
  }
  return y;
}

OpCase integers(Shape x, Tensor scale, Tensor zero, float low, float high) {
  return {.op = "FakeQuantizeInteger",
          .inputs = {{std::move(x), -5, 5}, {.value = std::move(scale)}, {.value = std::move(zero)}},
          .attrs = {{"low", low}, {"high", high}},
          .domain = "onnx_train",
          .expected = [low, high](const std::vector<Tensor>& in) { return rounded(in, low, high); },
          .gradient = false,
          .no_derivative = kStraight};
}

OpCase ours(const char* op, std::vector<OpInput> inputs, Attrs attrs) {
  return {.op = op,
          .inputs = std::move(inputs),
          .attrs = std::move(attrs),
          .domain = "onnx_train",
          .gradient = false,
          .no_derivative = kStraight};
}

}  // namespace

std::vector<OpCase> quantization_cases() {
  const Tensor scales = Tensor::of<float>({3, 1}, {0.5f, 0.03125f, 1}), zeros = Tensor::of<float>({3, 1}, {0, 3, -2});
  const Tensor scale = Tensor::scalar(0.25f), zero = Tensor::scalar(1.0f),
               range = Tensor::of<float>({2}, {-2, 1.984375f});  // 255 / 64
  const OpInput stored = {{3, 4}, -128, 127, {}, {}, DType::kInt8};
  std::vector<OpCase> cases = {integers({2, 3, 4}, scales, zeros, -8, 7),
                               integers({2, 3, 4}, scale, zero, 0, 15),
                               integers({0, 3, 4}, scale, zero, -128, 127),
                               ours("FakeQuantizeSign", {{{5, 7}, -3, 3}, {.value = scale}}, {}),
                               ours("FakeQuantizeInteger", {{{5, 7}, -5, 5}, {.value = scale}, {.value = zero}},
                                    {{"low", -8.0f}, {"high", 7.0f}, {"rounding", "half_up"}, {"parts", 4.0f}}),
                               ours("FakeQuantizeActivation", {{{5, 7}, -3, 3}, {.value = range}}, {}),
                               ours("FakeQuantizeWeight", {{{3, 4}}}, {{"axes", std::vector<int64_t>{1}}})};
  // 12, 24 and 2,057 bytes: CUDA's kernel takes 8 together.
  for (const Shape& packed : {Shape{3, 4}, Shape{2, 3, 4}, Shape{17, 121}})
    cases.push_back(ours("UnpackInt4", {{packed, 0, 255, {}, {}, DType::kUint8}}, {}));
  OpCase to_integers{.op = "QuantizeLinear",
                     .inputs = {{.value = Tensor::of<float>({4}, {-1, 0.3f, 5, 90}), .single = true},
                                {.value = Tensor::scalar(0.25f), .single = true}}};
  to_integers.gradient = false;
  to_integers.no_derivative = kStraight;
  to_integers.dynamic = false;
  cases.push_back(to_integers);
  for (const Tensor& s : {Tensor::scalar(0.25f), Tensor::of<float>({4}, {1, 0.5f, 0.25f, 2})}) {
    OpCase row{.op = "DequantizeLinear", .inputs = {stored, {.value = s, .single = true}}};
    row.attrs = {{"axis", 1}};
    row.gradient = false;
    row.no_derivative = "its scale is float32: tests/python/quantization";
    cases.push_back(row);
  }
  return cases;
}

}  // namespace onnx_train
