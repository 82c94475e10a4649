#include "onnx_passes/precision/mixed_precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/support/cpu_features.h"
#include "kernels/device.h"
#include "kernels/functions/functions.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/math/float16.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/half.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/loss/loss.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/training/backward.h"
#include "onnx_passes/training/optimizer.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/golden.h"
#include "tests/support/mse_options.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::mixed_precision_test {
namespace {

TEST(MixedPrecision, PrecisionsHaveNames) {
  for (const char* known : {"float32", "gemm-bf16", "bf16", "fp16", "fp8"})
    EXPECT_STREQ(name(parse_precision(known)), known);
  EXPECT_THROW(parse_precision("int8"), Error);
}

Model clip_model() {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,4,4] scores, float[2,1,4] allowed, float[4,4] w) => (float[2,4,4] p) <float lowest = {-3.4028234e38}, float one = {1}> {
      s = MatMul (scores, w)
      forbidden = Sub (one, allowed)
      mask = Mul (forbidden, lowest)
      masked = Add (s, mask)
      p = Softmax (masked)
    })");
  infer_types(model.graph.get());
  return model;
}

// A mask's lowest float32 would round to minus infinity, and a row without anything allowed become NaN.
TEST(MixedPrecision, MasksStayFinite) {
  Model model = clip_model();
  const BuildOptions o = mse_options(Precision::kBfloat16);
  training_mode(o).run(model);
  mixed_precision(o).run(model);
  EntryPoint& step = *model.find_entry_point("step");
  step.algorithm->set_outputs({});
  step.algorithm->add_output(step.algorithm->find("train/p"));
  Session session(flatten(model, "step"));
  const Tensor p = session
                       .run("predict", {{"scores", random_tensor(DType::kFloat, {2, 4, 4})},
                                        {"allowed", Tensor(DType::kFloat, {2, 1, 4})},
                                        {"w", random_tensor(DType::kFloat, {4, 4})}})
                       .at("train/p");
  for (int64_t i = 0; i < p.size(); ++i) EXPECT_EQ(p.at(i), 0.25);
}

// The gradient of RoundTo is dy; the gradient of RoundGradientTo is dy, rounded.
TEST(MixedPrecision, GradientsGoStraightThroughRounding) {
  for (const char* op : {"RoundTo", "RoundGradientTo"}) {
    Model model = empty_model();
    Graph& graph = *model.graph;
    Value* x = graph.add_input("x", {DType::kFloat, Dims{5}});
    Value* dy = graph.add_input("dy", {DType::kFloat, Dims{5}});
    Builder b(&graph);
    const Var y = call(b, op, {b.var(x)}, {{"to", static_cast<int>(DType::kBFloat16)}});
    graph.add_output(add_gradients(&graph, {y.value()}, {dy}, {x})[0]);
    Session session(std::move(model));
    const Tensor given = random_tensor(DType::kFloat, {5}, 3);
    const Tensor dx = session.run("predict", {{"x", given}, {"dy", given}}).at("grad/x");
    for (int64_t i = 0; i < 5; ++i) {
      const auto exact = static_cast<float>(given.at(i));
      const bool rounds = std::string(op) == "RoundGradientTo";
      EXPECT_EQ(dx.at(i), static_cast<double>(rounds ? static_cast<float>(BFloat16(exact)) : exact)) << op;
    }
  }
}

// y = x w + bias on operands of bfloat16, rounded; w as PyTorch stores it, or as it is multiplied.
Model linear_in_bfloat16(bool transposed) {
  Model model = empty_model();
  Builder b(model.graph.get());
  const auto input = [&](const char* name, Dims dims) {
    const Var given = b.var(model.graph->add_input(name, {DType::kFloat, std::move(dims)}));
    return cast(cast(given, DType::kBFloat16), DType::kFloat);
  };
  const Var x = input("x", {3, 7, 40}), w = input("w", transposed ? Dims{24, 40} : Dims{40, 24});
  const Var sum = matmul(x, transposed ? transpose(w, {1, 0}) : w) + input("bias", {24});
  model.graph->add_output(cast(cast(sum, DType::kBFloat16), DType::kFloat).value());
  return model;
}

// A processor without products of bfloat16 has a generated kernel add the bias.
TEST(MixedPrecision, AProductOfBfloat16AddsItsBias) {
  for (const bool transposed : {false, true}) {
    const TensorMap given = {{"x", random_tensor(DType::kFloat, {3, 7, 40}, 1)},
                             {"w", random_tensor(DType::kFloat, transposed ? Shape{24, 40} : Shape{40, 24}, 2)},
                             {"bias", random_tensor(DType::kFloat, {24}, 3)}};
    SessionOptions without;
    without.plan.lowering.on = false;
    Session plain(linear_in_bfloat16(transposed), without), session(linear_in_bfloat16(transposed));
    const Tensor expected = plain.run("predict", given).begin()->second,
                 found = session.run("predict", given).begin()->second;
    EXPECT_LT(relative_error(found, expected), 0x1p-8);  // sums in another order, of which some round otherwise
    int products_with_bias = 0, sums = 0;
    for (const PlanStep& step : session.plan("predict", shapes_of(given)).steps()) {
      products_with_bias += step.node->op().ends_with("MatMul") && step.node->num_inputs() == 3 &&
                            step.node->output()->dtype() == DType::kBFloat16;
      sums += step.node->is("Add") || step.node->is("Fused", kDomain);
    }
    const bool has_products = cpu::isa() >= cpu::Isa::kAvx512Bf16;
    EXPECT_EQ(products_with_bias, has_products ? 1 : 0);
    EXPECT_EQ(sums, has_products ? 0 : 1);
  }
}

// ---- Lowering and kernels

TEST(Bfloat16Products, TakeTheirOperandsNarrow) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16)
    GTEST_SKIP() << "this CPU has no bfloat16 products: lowering keeps float32 ones";
  expect_golden("bfloat16_products", {{"fold_constants", fold_constants},
                                      {"fold_transposes", fold_transposes},
                                      {"assign_types", [](Model& m) { return assign_types(m, Device::cpu()); }}});
}

TEST(Bfloat16Products, KernelsRunWhereTheCpuHasThem) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this CPU has no bfloat16 products: the function's body runs";
  const Tensor a = random_tensor(DType::kFloat, {65, 130}, 1).cast(DType::kBFloat16);
  const Tensor b = random_tensor(DType::kFloat, {130, 33}, 2).cast(DType::kBFloat16);
  const Tensor expected = run_node("MatMul", {a.cast(DType::kDouble), b.cast(DType::kDouble)})[0];
  const Tensor y = run_node("MatMul", {a, b}, {}, 1, kDomain)[0];
  EXPECT_EQ(y.dtype(), DType::kFloat);
  EXPECT_LT(relative_error(y, expected), 1e-6);  // of float32 sums; bfloat16 ones would be wrong by 1e-2
}

TEST(Bfloat16Products, AddFloat32Biases) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this CPU has no bfloat16 products: the function's body runs";
  const Tensor a = random_tensor(DType::kFloat, {6, 5}, 1).cast(DType::kBFloat16);
  const Tensor b = random_tensor(DType::kFloat, {5, 7}, 2).cast(DType::kBFloat16);
  for (const Shape& shape : {Shape{7}, Shape{6, 1}, Shape{}, Shape{6, 7}}) {
    const Tensor c = random_tensor(DType::kFloat, shape, 3);
    const Attrs attrs = {{"alpha", 0.5f}, {"beta", 2.0f}};
    const Tensor expected =
        run_node("Gemm", {a.cast(DType::kDouble), b.cast(DType::kDouble), c.cast(DType::kDouble)}, attrs)[0];
    EXPECT_LT(relative_error(run_node("Gemm", {a, b, c}, attrs, 1, kDomain)[0], expected), 1e-6);
  }
  const Tensor x = random_tensor(DType::kFloat, {2, 3, 8, 9}, 1).cast(DType::kBFloat16);
  const Tensor w = random_tensor(DType::kFloat, {4, 3, 3, 3}, 2).cast(DType::kBFloat16);
  const Tensor bias = random_tensor(DType::kFloat, {4}, 3);
  const Tensor expected = run_node("Conv", {x.cast(DType::kFloat), w.cast(DType::kFloat), bias})[0];
  const std::vector<int64_t> ones = {1, 1}, none = {0, 0, 0, 0};
  const Attrs windows = {{"group", 1}, {"strides", ones}, {"dilations", ones}, {"pads", none}};
  EXPECT_LT(relative_error(run_node("Conv", {x, w, bias}, windows, 1, kDomain)[0], expected), 1e-6);
  const Tensor images = random_tensor(DType::kFloat, {8, 4, 4, 32}, 1).cast(DType::kBFloat16);
  const Tensor many = random_tensor(DType::kFloat, {32, 32, 3, 3}, 2).cast(DType::kBFloat16);
  const Attrs padded = {
      {"group", 1}, {"strides", ones}, {"dilations", ones}, {"pads", Shape{1, 1, 1, 1}}, {"channels_last", 1}};
  const std::vector<Tensor> wide = {images.cast(DType::kFloat), many.cast(DType::kFloat),
                                    random_tensor(DType::kFloat, {32}, 3)};
  EXPECT_LT(relative_error(run_node("Conv", {images, many, wide[2]}, padded, 1, kDomain)[0],
                           run_node("Conv", wide, padded, 1, kDomain)[0]),
            1e-6);
}

// A product whose result is rounded to bfloat16 and widened again.
Model rounded_product(const std::string& op, const Tensor& a, const Tensor& b, const Attrs& attrs, const Shape& sizes) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder builder(&graph);
  std::vector<Var> inputs = {builder.var(graph.add_input("a", {a.dtype(), Dims(a.shape().begin(), a.shape().end())})),
                             builder.var(graph.add_input("b", {b.dtype(), Dims(b.shape().begin(), b.shape().end())}))};
  if (!sizes.empty()) inputs.push_back(builder.constant(Tensor::ints(sizes)));
  const Var y = call_lowered(builder, op, inputs, attrs);
  graph.add_output(cast(cast(y, DType::kBFloat16), DType::kFloat).value());
  return model;
}

// Kernels that store what they make in bfloat16 round it as Cast does.
void expect_rounded_once(const std::string& op, const Shape& a_shape, const Shape& b_shape, const Attrs& attrs,
                         const Shape& sizes = {}) {
  const Tensor a = random_tensor(DType::kFloat, a_shape, 1).cast(DType::kBFloat16);
  const Tensor b = random_tensor(DType::kFloat, b_shape, 2).cast(DType::kBFloat16);
  Model narrow = rounded_product(op, a, b, attrs, sizes);
  ASSERT_TRUE(narrow_storage(narrow, Device::cpu())) << op;
  SessionOptions without;
  without.plan.lowering.without = {"narrow_storage"};
  const std::string y = narrow.graph->outputs()[0]->name();
  Session in_one_piece(std::move(narrow)), apart(rounded_product(op, a, b, attrs, sizes), without);
  const Tensor got = in_one_piece.run("predict", {{"a", a}, {"b", b}}).at(y);
  const Tensor wanted = apart.run("predict", {{"a", a}, {"b", b}}).at(y);
  ASSERT_EQ(got.shape(), wanted.shape());
  for (int64_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got.at(i), wanted.at(i)) << op << " " << to_string(a_shape) << " element " << i;
  }
}

TEST(NarrowStorage, ConvolutionsRoundWhatTheyMake) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this CPU has no bfloat16 products: float32 is stored";
  const auto expect = [](const Shape& x, const Shape& w, const Shape& y, int64_t group, int64_t stride, int64_t pad) {
    const Attrs attrs = {
        {"group", group}, {"strides", Shape(2, stride)}, {"dilations", Shape{1, 1}}, {"pads", Shape(4, pad)}};
    const auto last = [](Shape shape) {
      std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
      return shape;
    };
    Attrs attrs_last = attrs;
    attrs_last.emplace_back("channels_last", 1);
    expect_rounded_once("Conv", x, w, attrs);
    expect_rounded_once("ConvGradInput", y, w, attrs, x);
    expect_rounded_once("Conv", last(x), w, attrs_last);
    expect_rounded_once("ConvGradInput", last(y), w, attrs_last, last(x));
  };
  expect({2, 3, 9, 8}, {16, 3, 3, 3}, {2, 16, 9, 8}, 1, 1, 1);
  expect({1, 64, 32, 32}, {64, 64, 3, 3}, {1, 64, 32, 32}, 1, 1, 1);
  expect({8, 512, 4, 4}, {512, 512, 3, 3}, {8, 512, 4, 4}, 1, 1, 1);
  expect({2, 64, 16, 16}, {128, 64, 3, 3}, {2, 128, 8, 8}, 1, 2, 1);
  expect({2, 64, 16, 16}, {128, 64, 1, 1}, {2, 128, 8, 8}, 1, 2, 0);
  expect({2, 8, 7, 7}, {6, 4, 3, 3}, {2, 6, 5, 5}, 2, 1, 0);
  expect({2, 16, 7, 7}, {16, 1, 3, 3}, {2, 16, 7, 7}, 16, 1, 1);
  expect({1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, 1, 1, 0);
}

// Compilers for devices convert by functions of our own.
TEST(Float16Casts, ConvertInDeviceCodeAsOnTheHost) {
  const auto same = [](float a, float b) { return a == b ? std::signbit(a) == std::signbit(b) : a != a && b != b; };
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto on_host = static_cast<float>(std::bit_cast<_Float16>(half));
    ASSERT_TRUE(same(math::widen_float16(half), on_host)) << bits;
  }
  for (uint64_t i = 0; i < 0x100000000; i += 4093) {  // odd, so that all last bits occur
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(i));
    const auto on_host = std::bit_cast<uint16_t>(static_cast<_Float16>(value));
    const uint16_t ours = math::narrow_to_float16(value);
    ASSERT_TRUE(ours == on_host || (value != value && math::widen_float16(ours) != math::widen_float16(ours))) << value;
  }
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {  // in the middle of two neighbours, and the floats beside it
    const float low = math::widen_float16(static_cast<uint16_t>(bits)),
                high = bits + 1 == 0x7c00 ? 65536 : math::widen_float16(static_cast<uint16_t>(bits + 1)),
                middle = low + (high - low) / 2;
    for (const float value : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e6f)}) {
      ASSERT_EQ(math::narrow_to_float16(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << value;
    }
  }
}

// The session's device is the default one: CUDA's in a second run of this test.
TEST(LossScalingOfFloat16, SkipsWhatOverflows) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[4,3] x) => (float[4,2] y) <float[3,2] w = {0.1, -0.2, 0.3, 0.4, 0.5, -0.6}> { y = MatMul (x, w) })");
  infer_types(model.graph.get());
  BuildOptions build = mse_options(Precision::kFloat16);
  build.optimizer = "adamw";
  build_training_model(&model, build);
  Session session(std::move(model));
  const auto batch = [](float first) {
    Tensor x = random_tensor(DType::kFloat, {4, 3}, 1);
    x.set(0, first);
    return TensorMap{{"x", x}, {"target", random_tensor(DType::kFloat, {4, 2}, 2)}};
  };
  const auto states = [&] {
    TensorMap all;
    for (const std::string& name : session.state().names()) all[name] = session.state().get(name).clone();
    return all;
  };
  session.run("step", batch(0.5f));
  const TensorMap before = states();
  EXPECT_EQ(before.at("state/loss_scale").at(0), 65536);
  session.run("step", batch(70000));  // infinite in float16
  for (const auto& [name, tensor] : states()) {
    if (name == "state/loss_scale") {
      EXPECT_EQ(tensor.at(0), 32768);
    } else if (name == "state/loss_scale/good") {
      EXPECT_EQ(tensor.at(0), 0);
    } else {
      const size_t bytes = static_cast<size_t>(tensor.size()) * size_of(tensor.dtype());
      EXPECT_EQ(std::memcmp(tensor.data(), before.at(name).data(), bytes), 0) << name;
    }
  }
  session.run("step", batch(0.5f));
  EXPECT_NE(states().at("w").at(0), before.at("w").at(0));
}

TEST(Bfloat16Casts, RoundToNearestEvenAndKeepNaN) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  // 1 + 2^-8 lies in the middle between 1 and 1 + 2^-7, 1 + 3 2^-8 between that and 1 + 2^-6: both go to even.
  const std::vector<float> given = {1.00390625f, 1.01171875f, 3.4028234e38f, -infinity, nan, -0.0f};
  const std::vector<float> wanted = {1.0f, 1.015625f, infinity, -infinity, nan, -0.0f};
  for (const int64_t repeats : {1, 9, 40000}) {  // vectorized and not, with threads and without
    std::vector<float> many;
    for (int64_t i = 0; i < repeats; ++i) many.insert(many.end(), given.begin(), given.end());
    const auto size = static_cast<int64_t>(many.size());
    const Tensor narrow =
        run_node("Cast", {Tensor::of<float>({size}, many)}, {{"to", static_cast<int>(DType::kBFloat16)}})[0];
    const Tensor wide = run_node("Cast", {narrow}, {{"to", static_cast<int>(DType::kFloat)}})[0];
    for (int64_t i = 0; i < size; ++i) {
      const float expected = wanted[static_cast<size_t>(i) % wanted.size()];
      const auto got = static_cast<float>(wide.at(i));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << i;
      } else {
        ASSERT_FLOAT_EQ(got, expected) << i;
        ASSERT_EQ(std::signbit(got), std::signbit(expected)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace onnx_train::mixed_precision_test
