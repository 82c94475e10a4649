// Which float initializers are weights: by what the file says, by contents, by readers; and that training models keep
// the decision. tests/python/test_constants.py asks PyTorch's exporters.
#include "onnx_passes/model/constants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/constant_values.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/passes.h"

namespace onnx_train::constants_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr double kPi = 3.14159265358979323846;

Tensor filled(const Shape& shape, const std::function<double(int64_t)>& f) {
  Tensor x(DType::kFloat, shape);
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, f(i));
  return x;
}

Tensor table(int64_t rows, int64_t columns, const std::function<double(int64_t, int64_t)>& f) {
  return filled({rows, columns}, [&](int64_t i) { return f(i / columns, i % columns); });
}

Tensor drawn(const Shape& shape, unsigned seed = 0) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  return filled(shape, [&](int64_t) { return normal(engine); });
}

double frequency(int64_t j, int64_t columns) {
  return std::pow(10000.0, -2.0 * static_cast<double>(j) / static_cast<double>(columns));
}

// ---- Contents

TEST(ConstantValues, MasksHaveZerosAndOneVeryNegativeNumber) {
  for (const double hidden : {-1e4, -1e9, -100.0, -65504.0, double(std::numeric_limits<float>::lowest()), -HUGE_VAL}) {
    EXPECT_TRUE(is_additive_mask(table(4, 4, [&](int64_t i, int64_t j) { return j > i ? hidden : 0; }))) << hidden;
  }
  EXPECT_TRUE(is_additive_mask(Tensor::of<float>({5}, {0, -1e9F, -2e9F, 0, -HUGE_VALF})));
  EXPECT_FALSE(is_additive_mask(Tensor::of<float>({4}, {0, -60, -70, 0})));
  EXPECT_FALSE(is_additive_mask(Tensor(DType::kFloat, {4, 4})));  // weights that are initialized with zeros
  EXPECT_FALSE(is_additive_mask(filled({4}, [](int64_t) { return -1e9; })));
  EXPECT_FALSE(is_additive_mask(table(4, 4, [](int64_t i, int64_t j) { return j > i ? -1 : 0; })));
  EXPECT_FALSE(is_additive_mask(filled({4}, [](int64_t i) { return i == 0 ? 0 : NAN; })));
  EXPECT_TRUE(is_binary(filled({4}, [](int64_t i) { return double(i % 2); })));
  EXPECT_FALSE(is_binary(filled({4}, [](int64_t) { return 1.0; })));
}

TEST(ConstantValues, TablesOfSinesInEveryLayout) {
  const int64_t rows = 9, d = 8;
  const auto angle = [&](int64_t i, int64_t j) { return static_cast<double>(i) * frequency(j, d); };
  const auto interleaved = [&](int64_t i, int64_t j) {
    return j % 2 ? std::cos(angle(i, j / 2)) : std::sin(angle(i, j / 2));
  };
  EXPECT_TRUE(is_sinusoidal(table(rows, d, interleaved)));
  EXPECT_TRUE(is_sinusoidal(table(rows, d, interleaved).reshaped({1, rows, 1, d})));
  EXPECT_TRUE(is_sinusoidal(table(rows, d, interleaved).cast(DType::kFloat16)));
  EXPECT_TRUE(is_sinusoidal(table(d, rows, [&](int64_t j, int64_t i) { return interleaved(i, j); })));
  EXPECT_TRUE(is_sinusoidal(table(rows, d, [&](int64_t i, int64_t j) { return std::cos(angle(i, j % (d / 2))); })));
  // Two axes of positions and a row of zeros for the class token.
  EXPECT_TRUE(is_sinusoidal(table(10, 16, [&](int64_t i, int64_t j) {
    if (i == 0) return 0.0;
    const int64_t at = j < 8 ? (i - 1) % 3 : (i - 1) / 3;
    return j / 4 % 2 ? std::cos(static_cast<double>(at) * frequency(j % 4, 8))
                     : std::sin(static_cast<double>(at) * frequency(j % 4, 8));
  })));
  const auto dft = [](int64_t i, int64_t j) { return std::cos(2 * kPi * static_cast<double>(i * j) / 16); };
  EXPECT_TRUE(is_sinusoidal(table(16, 9, dft)));
  // Windowed, real parts and then imaginary ones: kernels of a short-time Fourier transform.
  EXPECT_TRUE(is_sinusoidal(table(18, 16, [](int64_t k, int64_t i) {
                              const double a = 2 * kPi * static_cast<double>(i * (k % 9)) / 16;
                              return (0.5 - 0.5 * std::cos(2 * kPi * static_cast<double>(i) / 16)) *
                                     (k < 9 ? std::cos(a) : std::sin(a));
                            }).reshaped({18, 1, 16})));
}

TEST(ConstantValues, WeightsAreNoSinesHoweverTheyWereFilled) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    for (const Shape& shape : {Shape{4, 4}, Shape{8, 8}, Shape{64, 16}, Shape{2, 3, 8, 8}}) {
      EXPECT_FALSE(is_sinusoidal(drawn(shape, seed)));
      EXPECT_FALSE(is_fixed_filter(drawn({4, 1, 3, 3}, seed)));
      EXPECT_FALSE(is_geometric(drawn({4}, seed)));
      EXPECT_FALSE(is_window(drawn({8}, seed)));
      EXPECT_FALSE(is_filter_bank(drawn({16, 8}, seed)));
    }
  }
  EXPECT_FALSE(is_sinusoidal(filled({16, 16}, [](int64_t i) { return std::sin(static_cast<double>(i)); })));
  EXPECT_FALSE(is_sinusoidal(filled({16, 16}, [](int64_t i) { return static_cast<double>(i); })));
  EXPECT_FALSE(is_sinusoidal(filled({16, 16}, [](int64_t i) { return static_cast<double>(i) / 256 - 0.5; })));
  EXPECT_FALSE(is_sinusoidal(Tensor(DType::kFloat, {16, 16})));
  EXPECT_FALSE(is_sinusoidal(filled({16, 16}, [](int64_t) { return 1.0; })));
  EXPECT_FALSE(is_sinusoidal(table(16, 16, [](int64_t i, int64_t j) { return i == j ? 1.0 : 0.0; })));
  EXPECT_FALSE(is_filter_bank(table(16, 16, [](int64_t i, int64_t j) { return i == j ? 1.0 : 0.0; })));
  EXPECT_FALSE(is_sinusoidal(filled({16, 16}, [](int64_t) { return NAN; })));
  EXPECT_FALSE(is_sinusoidal(Tensor(DType::kFloat, {0, 8})));
  EXPECT_FALSE(is_geometric(filled({8}, [](int64_t i) { return static_cast<double>(i + 1); })));
  EXPECT_FALSE(is_window(filled({8}, [](int64_t) { return 1.0; })));
  EXPECT_FALSE(is_fixed_filter(filled({4, 2, 3, 3}, [](int64_t) { return 0.1; })));
}

TEST(ConstantValues, FrequenciesWindowsAndFilters) {
  EXPECT_TRUE(is_ramp(filled({6}, [](int64_t i) { return static_cast<double>(i); })));
  EXPECT_TRUE(
      is_ramp(table(6, 6, [](int64_t i, int64_t j) { return j > i ? -1e9 : -0.25 * static_cast<double>(i - j); })));
  EXPECT_TRUE(is_ramp(table(6, 6, [](int64_t i, int64_t j) { return -0.25 * std::abs(static_cast<double>(i - j)); })));
  EXPECT_FALSE(is_ramp(drawn({6, 6})));
  EXPECT_TRUE(is_grid(table(2, 80, [](int64_t i, int64_t j) { return static_cast<double>(i ? j / 8 : j % 8) + 0.5; })));
  EXPECT_TRUE(is_grid(table(64, 2, [](int64_t i, int64_t j) { return static_cast<double>(j ? i / 8 : i % 8) - 0.5; })));
  EXPECT_TRUE(is_grid(filled({1, 80}, [](int64_t i) { return i < 64 ? 8.0 : 16.0; })));
  EXPECT_FALSE(is_grid(filled({1, 80}, [](int64_t) { return 8.0; })));
  EXPECT_FALSE(is_grid(drawn({8, 10})));
  EXPECT_FALSE(is_ramp(Tensor(DType::kFloat, {6, 6})));
  EXPECT_TRUE(is_geometric(filled({8}, [](int64_t j) { return frequency(j, 8); })));
  EXPECT_TRUE(
      is_geometric(filled({1, 8, 1, 1}, [](int64_t j) { return std::pow(2.0, -1.0 - static_cast<double>(j)); })));
  EXPECT_TRUE(
      is_window(filled({16}, [](int64_t i) { return 0.5 - 0.5 * std::cos(2 * kPi * static_cast<double>(i) / 16); })));
  EXPECT_TRUE(
      is_window(filled({15}, [](int64_t i) { return std::exp(-std::pow(static_cast<double>(i - 7), 2) / 8); })));
  const Tensor sobel = Tensor::of<float>({2, 1, 3, 3}, {-1, 0, 1, -2, 0, 2, -1, 0, 1, -1, -2, -1, 0, 0, 0, 1, 2, 1});
  EXPECT_TRUE(is_fixed_filter(sobel));
  EXPECT_TRUE(is_fixed_filter(Tensor::of<float>({1, 1, 3, 3}, {0, 1, 0, 1, -4, 1, 0, 1, 0})));
  EXPECT_TRUE(is_fixed_filter(filled({3, 1, 5, 5}, [](int64_t i) {
    return std::exp(-(std::pow(static_cast<double>(i % 5 - 2), 2) + std::pow(static_cast<double>(i / 5 % 5 - 2), 2)) /
                    3);
  })));
  EXPECT_TRUE(is_filter_bank(table(32, 6, [](int64_t i, int64_t j) {
    return std::max(0.0, 1 - std::abs(static_cast<double>(i - 3 - 4 * j)) / 4);
  })));
}

// ---- Readers

Model imported(const std::string& graph) {
  onnx::ModelProto proto;
  to_proto(from_text("<ir_version: 10, opset_import: [\"\" : 21]> " + graph), &proto);
  return import_model(std::move(proto));
}

std::vector<std::string> trained(const Model& model, const std::vector<std::string>& train = {},
                                 const std::vector<std::string>& freeze = {}) {
  std::vector<std::string> names;
  for (const Value* value : select_trainable(model, train, freeze)) names.push_back(value->name());
  return names;
}

TEST(Constants, WhatShiftsAndScalesAnInputIsNoWeight) {
  const Model model = imported(R"(
    g (float[N, 3] x, uint8[N, 3] image) => (float[N, 2] y)
    <float[3] mean = {0.4, 0.7, 0.6}, float[1, 3] std = {0.2, 0.3, 0.25}, float[3] scale = {5, 4, 3},
     float[3] shift = {1, 2, 5}, float[3, 2] w = {1, 2, 3, 4, 5, 7}, float[2] b = {1, 3}, float[2] gain = {2, 5}> {
      centred = Sub(x, mean)
      normal = Div(centred, std)
      floats = Cast<to = 1>(image)
      scaled = Mul(floats, scale)
      shifted = Add(shift, scaled)
      sum = Add(normal, shifted)
      h = MatMul(sum, w)
      i = Add(h, b)
      y = Mul(i, gain)
    })");
  EXPECT_THAT(trained(model), ElementsAre("w", "b", "gain"));
  EXPECT_THAT(trained(model, {"mean", "w"}), ElementsAre("mean", "w"));
  const auto findings = describe_constants(model, select_trainable(model, {}, {}));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].subject, "'mean', 'std', 'scale' and 1 more");
  EXPECT_THAT(findings[0].advice, HasSubstr("guess"));
}

TEST(Constants, AnInputIsDividedByADeviationOfAVariance) {  // as ML-Agents normalizes observations
  const Model model = imported(R"(
    g (float[N, 3] x) => (float[N, 2] y)
    <float[3] mean = {0.4, 0.7, 0.6}, float[3] variance = {2, 3, 5}, int32[1] steps = {4}, float[3, 2] w = {1, 2, 3, 4, 5, 7},
     float[2] squares = {2, 5}> {
      centred = Sub(x, mean)
      count = Cast<to = 1>(steps)
      part = Div(variance, count)
      deviation = Sqrt(part)
      normal = Div(centred, deviation)
      h = MatMul(normal, w)
      gain = Sqrt(squares)
      y = Mul(h, gain)
    })");
  EXPECT_THAT(trained(model), ElementsAre("w", "squares"));
}

TEST(Constants, WithoutAnotherWeightWhatScalesAnInputIsOne) {
  EXPECT_THAT(trained(imported(R"(g (float[N, 3] x) => (float[N, 3] y)
    <float[3] w = {1, 2, 5}, float[3] b = {1, 2, 5}> { s = Mul(x, w) y = Add(s, b) })")),
              ElementsAre("w", "b"));
}

TEST(Constants, SettingsMasksAndFrequenciesAreNoWeights) {
  const Model model = imported(R"(
    g (float[N, 4, 6] x, int64[N, 4] positions) => (float[N, 4, 4] y)
    <float[6, 6] w = {3,1,2,5,7,1, 4,6,2,9,1,1, 3,8,1,2,6,5, 1,2,9,3,4,4, 2,2,7,1,8,3, 6,5,1,2,2,9},
     float[4, 4] causal = {0,-10000,-10000,-10000, 0,0,-10000,-10000, 0,0,0,-10000, 0,0,0,0},
     float[4, 4] keep = {1,0,0,0, 1,1,0,0, 1,1,1,0, 1,1,1,1}, float[4, 4] biases = {3,1,2,9, 1,7,2,4, 8,1,5,5, 2,6,1,3},
     float[1, 1, 6] bounds = {6,1,5,2,4,4}, float[6] inv_freq = {1, 0.5, 0.3, 0.1, 0.02, 0.001}> {
      p = Pow(x, bounds)
      float_positions = Cast<to = 1>(positions)
      axes = Constant<value_ints = [2]>()
      column = Unsqueeze(float_positions, axes)
      angles = Mul(column, inv_freq)
      c = Cos(angles)
      s = Sin(angles)
      h = MatMul(p, w)
      hc = Mul(h, c)
      hs = Mul(h, s)
      turned = Add(hc, hs)
      t = Transpose<perm = [0, 2, 1]>(turned)
      scores = MatMul(turned, t)
      kept = Mul(scores, keep)
      biased = Add(kept, biases)
      masked = Add(biased, causal)
      y = Softmax(masked)
    })");
  EXPECT_THAT(trained(model), ElementsAre("w", "biases"));
  const auto constants = constants_of(model);
  EXPECT_THAT(constants.at("bounds"), HasSubstr("setting"));
  EXPECT_THAT(constants.at("inv_freq"), HasSubstr("frequencies"));
  const auto findings = describe_constants(model, select_trainable(model, {}, {}));
  EXPECT_EQ(findings.back().subject, "'biases'");
  EXPECT_THAT(findings.back().advice, HasSubstr("unsure"));
}

TEST(Constants, ARampThatScalesVectorsOfWordsIsAWeight) {  // RWKV starts from one
  const Model model = imported(R"(g (int64[N, 3] words) => (float[N, 3, 4] y)
    <float[5, 4] embeddings = {3,1,2,5, 7,1,4,6, 2,9,1,1, 3,8,1,2, 6,5,1,2}, float[4] mix = {0, 0.25, 0.5, 0.75}> {
      x = Gather(embeddings, words) y = Mul(x, mix) })");
  EXPECT_THAT(trained(model), ElementsAre("embeddings", "mix"));
}

TEST(Constants, OneNumberThatDividesIsAConstantHoweverOftenItIsRepeated) {  // as JAX writes the count of a mean
  const Model model = imported(R"(g (float[2, 3] x) => (float[2, 2] y)
    <float[3, 2] w = {1, 2, 3, 4, 5, 7}, float[2, 2] count = {8, 8, 8, 8}, float[2] scale = {2, 3}> {
      s = MatMul(x, w) m = Div(s, count) y = Div(m, scale) })");
  EXPECT_THAT(trained(model), ElementsAre("w", "scale"));
}

TEST(Constants, TheBiasOfOneOutputIsAWeightAlsoAsARow) {  // as scikit-learn's exporter stores it
  const Model model = imported(R"(g (float[N, 3] x) => (float[N, 1] y)
    <float[3, 1] w = {1, 2, 4}, float[1, 1] b = {3}> { p = MatMul(x, w) y = Add(p, b) })");
  EXPECT_THAT(trained(model), ElementsAre("w", "b"));
}

// Two exports of PyTorch's older exporter: of named numbers, and of literals.
Model of_pytorch(const std::string& a, const std::string& b, const std::string& c) {
  onnx::ModelProto proto;
  to_proto(from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (float[N, 3] x) => (float[N, 2] y) "
                     "<float \"" +
                     a + "\" = {2}, float[1] \"" + b + "\" = {3}, float[1] \"" + c +
                     "\" = {0.5}, float[3, 2] w = {1, 2, 3, 4, 5, 7}> { n = Div(x, \"" + c +
                     "\") h = MatMul(n, w) s = Mul(h, \"" + a + "\") y = Pow(s, \"" + b + "\") }"),
           &proto);
  proto.set_producer_name("pytorch");
  return import_model(std::move(proto));
}

TEST(Constants, SingleNumbersWithNamesOfAModuleAreWeights) {
  const Model named = of_pytorch("blocks.0.act.scale", "exponent", "std");
  EXPECT_THAT(trained(named), ElementsAre("blocks.0.act.scale", "exponent", "w"));  // what divides an input is none
  const auto findings = describe_constants(named, select_trainable(named, {}, {}));
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[1].subject, "'blocks.0.act.scale', 'exponent'");
  EXPECT_THAT(findings[1].advice, HasSubstr("a guess by the name"));
  EXPECT_THAT(trained(of_pytorch("onnx::Mul_12", "/Constant_3_output_0", "val_3")), ElementsAre("w"));
  EXPECT_THAT(trained(of_pytorch("12", "_val_3", "const")), ElementsAre("w"));
  EXPECT_THAT(trained(of_pytorch("clone", "mul", "scalar_tensor_default")), ElementsAre("w"));  // without a signature
  EXPECT_THAT(trained(imported(R"(g (float[N, 3] x) => (float[N, 2] y)
    <float scale = {2}, float[3, 2] w = {1, 2, 3, 4, 5, 7}> { h = MatMul(x, w) y = Mul(h, scale) })")),
              ElementsAre("w"));  // other exporters give literals such names
}

TEST(Constants, NumbersAndBiasesOfBodiesAreJudgedAsOthers) {
  const Model model = imported(R"(g (float[S, 3] x) => (float[1] y) {
      start = Constant<value = float[1] {0}>()
      y = Scan<num_scan_inputs = 1, body = body (float[1] h, float[3] row) => (float[1] next)
        <float[3, 1] w = {1, 2, 4}, float[1] b = {3}, float[1] gain = {2}> {
          p = MatMul(row, w) q = Add(p, b) r = Mul(q, gain) next = Add(r, h)
        }>(start, x)
    })");
  EXPECT_THAT(trained(model), UnorderedElementsAre("w", "b"));
  EXPECT_EQ(constants_of(model).at("gain"), "a single number");
}

TEST(Constants, ColumnsBesideEachOtherAreScaledAsOneInputIs) {
  const Model model = imported(R"(g (float[N, 1] a, float[N, 2] b) => (float[N, 2] y)
    <float[3] mean = {4, 7, 6}, float[3] scale = {2, 3, 5}, float[3, 2] w = {1, 2, 3, 4, 5, 7}> {
      x = Concat<axis = 1>(a, b) c = Sub(x, mean) d = Mul(c, scale) y = MatMul(d, w) })");
  EXPECT_THAT(trained(model), ElementsAre("w"));
}

TEST(Constants, InputsThatAreRepeatedWithinEachOtherAreFollowedOnce) {  // each path to them would take hours
  std::string body = "c0 = Concat<axis = 1>(x, x) ";
  for (int i = 0; i < 4; ++i) {
    std::string inputs;
    for (int k = 0; k < 400; ++k) inputs += concat(k ? ", c" : "c", i);
    body += concat("c", i + 1, " = Concat<axis = 1>(", inputs, ") ");
  }
  const Model model =
      imported("g (float[2, N] x) => (float[2, 1] y) <float[2, 1] shift = {4, 7}, int64[1] axis = {1}> { " + body +
               "s = Add(c4, shift) y = ReduceMean(s, axis) }");
  EXPECT_EQ(constants_of(model).count("shift"), 0u);  // the only weight
}

TEST(Constants, AnExponentOrABoundThatIsComputedMayBeLearned) {  // as of generalized mean pooling
  const Model model = imported(R"(g (float[N, 3] x) => (float[N, 3] y)
    <float[3] p = {4, 7, 6}, float[3, 3] w = {1, 2, 3, 4, 5, 7, 3, 2, 2}, float one = {1}> {
      h = MatMul(x, w) r = Relu(h) e = Add(p, one) y = Pow(r, e) })");
  EXPECT_THAT(trained(model), ElementsAre("p", "w"));
}

TEST(Constants, WhatAPassHasMadeIsCertain) {
  Model model = imported("g (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 4, 5}> { y = MatMul(x, w) }");
  model.set_metadata(std::string(kConstantRecord) + "w", "the range of a quantized activation, which steps observe");
  const auto findings = describe_constants(model, {});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].advice, "certain");
}

TEST(Constants, WhatIsSaidOfThemDoesWhatItSays) {
  const Model model = imported(R"(g (float[N, 3] x) => (float[N, 2] y)
    <float[3] "it's" = {4, 7, 6}, float[3, 2] w = {1, 2, 3, 4, 5, 7}> { c = Sub(x, "it's") y = MatMul(c, w) })");
  const auto findings = describe_constants(model, select_trainable(model, {}, {}));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].advice, R"(a guess; --train '*,it'\''s' trains it, too)");
  EXPECT_THAT(trained(model, {"*", "it's"}), ElementsAre("it's", "w"));
}

TEST(Constants, OnlyWhatTheFileOrTheOperatorSaysIsCertain) {
  const Model model = imported(R"(g (float[N, 4] x) => (float[N, 4] y)
    <float[4, 4] w = {3,1,2,5, 1,1,4,6, 2,9,1,1, 3,8,1,2}, float[4] keep = {1, 0, 0, 1}, float[4] top = {6, 6, 6, 5}> {
      h = MatMul(x, w) m = Mul(h, keep) y = Pow(m, top) })");
  for (const auto& finding : describe_constants(model, select_trainable(model, {}, {})))
    EXPECT_EQ(finding.advice == "certain", finding.subject == "'top'") << finding.advice;
}

TEST(Constants, PatternsReachConstantsByNameOrWhereTheyMatchNoWeight) {
  const Model model = imported(R"(g (float[N, 3] x) => (float[N, 2] y)
    <float[3] norm_mean = {4, 7, 6}, float[3] norm_std = {2, 3, 5}, float scale = {2}, float[3, 2] w = {1, 2, 3, 4, 5, 7}> {
      c = Sub(x, norm_mean) d = Div(c, norm_std) e = Mul(d, scale) y = MatMul(e, w) })");
  EXPECT_THAT(trained(model, {"*"}), ElementsAre("w"));
  EXPECT_THAT(trained(model, {"norm_*"}), ElementsAre("norm_mean", "norm_std"));
  EXPECT_THAT(trained(model, {"*", "scale"}), ElementsAre("scale", "w"));
  EXPECT_THAT(trained(model, {"norm_*"}, {"*_std"}), ElementsAre("norm_mean"));
}

// ---- What the file says

void say(onnx::GraphProto* graph, const std::string& name, const std::string& key, const std::string& value) {
  onnx::ValueInfoProto* info = nullptr;
  for (auto& known : *graph->mutable_value_info()) info = known.name() == name ? &known : info;
  if (!info) (info = graph->add_value_info())->set_name(name);
  auto* entry = info->add_metadata_props();
  entry->set_key(key);
  entry->set_value(value);
}

constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr const char* kFolded = "pkg.onnxscript.optimizer.folded_from";
constexpr const char* kSignature = "pkg.torch.export.ExportedProgram.graph_signature";

onnx::ModelProto exported(const std::string& signature) {
  onnx::ModelProto proto;
  to_proto(from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 2] x) => (float[N, 2] y)
    <float[2] gain = {1, 2}, float[2] shift = {1, 2}, float[2, 2] val_0 = {1, 2, 3, 4}, float[2, 2] val_1 = {5, 6, 7, 8},
     float[2, 2] val_2 = {5, 7, 1, 2}, float temperature = {2}> {
      a = Mul(x, gain) b = MatMul(a, val_0) c = Add(b, shift) d = MatMul(c, val_1) e = Mul(d, temperature)
      y = MatMul(e, val_2)
    })"),
           &proto);
  onnx::GraphProto* graph = proto.mutable_graph();
  for (const char* name : {"gain", "temperature"}) say(graph, name, kKind, "PARAMETER");
  say(graph, "shift", kKind, "BUFFER");
  say(graph, "val_0", kFolded, "['layers.0.q.weight']");
  say(graph, "val_1", kFolded, "['basis', 'mul_1']");
  say(graph, "val_2", kFolded, "['k.weight', 'v.weight', 'cat']");
  auto* entry = graph->add_metadata_props();
  entry->set_key(kSignature);
  entry->set_value(signature);
  for (auto& node : *graph->mutable_node()) {
    if (node.op_type() != "MatMul" || node.output(0) != "b") continue;
    auto* call = node.add_metadata_props();
    call->set_key("pkg.torch.onnx.fx_node");
    call->set_value("%linear : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = (%x,))");
  }
  return proto;
}

constexpr const char* kNewSignature =
    "\n# inputs\np_q: PARAMETER target='layers.0.q.weight'\np_k: PARAMETER target='k.weight'\n"
    "p_v: PARAMETER target='v.weight'\nb_basis: BUFFER target='basis' persistent=True\nx: USER_INPUT\n\n# outputs\ny: "
    "USER_OUTPUT\n";
constexpr const char* kOldSignature =
    "ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_q'), "
    "target='layers.0.q.weight', persistent=None), InputSpec(kind=<InputKind.PARAMETER: 2>, "
    "arg=TensorArgument(name='p_k'), target=\"k.weight\", persistent=None), InputSpec(kind=<InputKind.PARAMETER: 2>, "
    "arg=TensorArgument(name='p_v'), target='v.weight', persistent=None), InputSpec(kind=<InputKind.BUFFER: 3>, "
    "arg=TensorArgument(name='b'), target='basis', persistent=True), InputSpec(kind=<InputKind.USER_INPUT: 1>, "
    "arg=TensorArgument(name='x'), target=None, persistent=None)], output_specs=[])";

TEST(Constants, PyTorchSaysWhichInitializersAreParameters) {
  for (const char* signature : {kNewSignature, kOldSignature}) {
    const Model model = import_model(exported(signature));
    // A parameter stays one for all its readers; a value that the exporter folded from buffers alone is a constant.
    EXPECT_THAT(trained(model), UnorderedElementsAre("gain", "layers.0.q.weight", "val_2", "temperature"));
    EXPECT_THAT(constants_of(model).at("val_1"), HasSubstr("says the file"));
    // A Linear layer's weight has its name and layout again.
    const Value* weight = model.graph->find("layers.0.q.weight");
    const Tensor contents = contents_of(*weight);
    EXPECT_THAT(std::vector<float>(contents.data<float>(), contents.data<float>() + 4), ElementsAre(1, 3, 2, 4));
    EXPECT_TRUE(model.graph->find("val_0")->producer()->is("Transpose"));
    // Others are found by the names in the module, too.
    EXPECT_THAT(trained(model, {"k.*"}), ElementsAre("val_2"));
    EXPECT_THAT(trained(model, {}, {"v.weight", "layers.*"}), UnorderedElementsAre("gain", "temperature"));
  }
}

TEST(Constants, AFoldedWeightThatTheFileHasTooIsOneWeight) {
  onnx::ModelProto proto = exported(kNewSignature);
  onnx::TensorProto* tied = proto.mutable_graph()->add_initializer();
  to_proto(Tensor::of<float>({2, 2}, {1, 3, 2, 4}), "layers.0.q.weight", tied);
  EXPECT_EQ(import_model(proto).graph->find("val_0")->producer()->op(), "Transpose");
  tied = proto.mutable_graph()->mutable_initializer(proto.graph().initializer_size() - 1);
  to_proto(Tensor::of<float>({2, 2}, {1, 3, 2, 5}), "layers.0.q.weight", tied);
  EXPECT_TRUE(import_model(proto).graph->find("val_0")->is_initializer());  // other values: left as it is
}

TEST(Constants, TrainingAndInferenceModelsKeepTheDecision) {
  const std::string text = R"(g (float[N, 3] x) => (float[N, 4] y)
    <float[3] mean = {4, 7, 6}, float[3, 4] w = {1, 2, 3, 4, 5, 7, 1, 2, 9, 3, 4, 1},
     float[4, 4] v = {0, -1000, 0, 0, 0, -1000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> {
      c = Sub(x, mean) h = MatMul(c, w) y = MatMul(h, v) })";
  Model model = imported(text);
  EXPECT_THAT(trained(model), ElementsAre("w"));
  BuildOptions options;
  options.loss = "cross_entropy(y)";
  options.train = {"mean", "v"};  // against the guess
  build_training_model(&model, options);
  onnx::ModelProto proto;
  to_proto(model, &proto);
  EXPECT_THAT(trained(import_model(proto)), UnorderedElementsAre("mean", "w", "v"));
  to_proto(imported(text), &proto);
  Model again = import_model(proto);
  EXPECT_THAT(trained(again), ElementsAre("w"));
  options.train.clear();
  build_training_model(&again, options);
  to_proto(strip_training(again), &proto);
  EXPECT_THAT(constants_of(import_model(proto)), testing::SizeIs(2));
}

TEST(Constants, AModelOfConstantsAloneSaysHowToTrainOne) {
  Model model = imported(R"(g (float[N, 4] x) => (float[N, 4] y) <float[4] f = {1, 2, 4, 8}> { y = Mul(x, f) })");
  BuildOptions options;
  options.loss = "mse(y)";
  try {
    build_training_model(&model, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--train NAME"));
  }
  EXPECT_THAT(trained(model, {"f"}), ElementsAre("f"));
}

}  // namespace
}  // namespace onnx_train::constants_test
