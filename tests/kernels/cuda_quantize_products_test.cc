// Operands and products of 8 bits: the kernel that stores operands, which products the pass finds, and results compared
// with those of float32 products of the rounded operands. On the host, and in gpu_tests on a GPU.
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "kernels/cuda/support/device.h"
#include "kernels/cuda/support/stream.h"
#include "kernels/functions/functions.h"
#include "kernels/place.h"
#include "kernels/registry.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/half.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "runtime/session/session.h"
#include "tests/support/device_network.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::cuda_quantize_products_test {
namespace {

using Bytes = std::vector<uint8_t>;

// ---- Quantize

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : data_(cuda_device().allocate(bytes)) {}
  ~DeviceBytes() { cuda_device().free(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
};

// Returns the bytes of the outputs of one Quantize node on the device.
std::vector<Bytes> quantize(const std::vector<Tensor>& inputs, const Attrs& attrs, int outputs) {
  Model model = empty_model();
  Builder b(model.graph.get());
  std::vector<Var> values;
  for (const Tensor& input : inputs) {
    const Dims dims(input.shape().begin(), input.shape().end());
    values.push_back(b.var(model.graph->add_input(concat("x", values.size()), {input.dtype(), dims})));
  }
  const Node& node = *call_lowered(b, "Quantize", outputs, values, attrs)[0].value()->producer();
  const Kernel* const kernel = find_kernel(cuda_device(), node);
  if (!kernel) throw std::runtime_error("no kernel");
  const Prepared prepared = prepare(*kernel, NodeSpec(node, std::vector<Tensor>(inputs.size()), 1));
  cuda::CudaStream stream(0);
  std::vector<std::unique_ptr<DeviceBytes>> memory;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const Tensor& input : inputs) {
    memory.push_back(std::make_unique<DeviceBytes>(input.bytes()));
    stream.copy_from_host(memory.back()->data(), input.data(), input.bytes());
    in.push_back(memory.back()->data());
  }
  std::vector<Bytes> results;
  for (const Value* output : node.outputs()) {
    results.emplace_back(static_cast<size_t>(num_elements(output->type().shape())) * size_of(output->dtype()));
    memory.push_back(std::make_unique<DeviceBytes>(results.back().size()));
    out.push_back(memory.back()->data());
  }
  const DeviceBytes workspace(prepared.workspace);
  const Launch launch = {in.data(), out.data(), workspace.data(), &stream, nullptr, 1};
  prepared.run(launch);
  for (size_t i = 0; i < results.size(); ++i) stream.copy_to_host(results[i].data(), out[i], results[i].size());
  stream.synchronize();
  return results;
}

std::vector<float> floats(const Bytes& bytes) {
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

__nv_fp8_interpretation_t format_of(DType to) { return to == DType::kFloat8E4M3FN ? __NV_E4M3 : __NV_E5M2; }

// The code by NVIDIA's own conversion.
uint8_t code_of(double x, double scale, DType to) {
  return __nv_cvt_float_to_fp8(static_cast<float>(x / scale), __NV_SATFINITE, format_of(to));
}

double number_of(uint8_t code, double scale, DType to) {
  return static_cast<double>(__half2float(__half(__nv_cvt_fp8_to_halfraw(code, format_of(to))))) * scale;
}

// Of both signs, from below the least number of the type to above the largest one; some shapes with what is no number.
Tensor numbers(DType dtype, const Shape& shape, double scale, bool special) {
  Tensor x = random_tensor(DType::kFloat, shape, 3);
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, x.at(i) * scale * std::ldexp(1.0, static_cast<int>(i % 37) - 18));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float odd[] = {NAN, kInfinity, -kInfinity, 1e30f, -0.0f, 464, 448, 57344};
  for (int64_t k = 0; special && k < 8 && k < x.size(); ++k) x.set(x.size() * k / 8, odd[k]);
  return x.cast(dtype);
}

constexpr const char* kBoth = "rows, columns";

void expect_quantized(const Tensor& x, double scale, DType to, const std::string& stored) {
  SCOPED_TRACE(concat(name(x.dtype()), to_string(x.shape()), " ", name(to), " ", stored));
  const int tensors = stored == kBoth ? 2 : 1;
  const auto got =
      quantize({x, Tensor::scalar(static_cast<float>(scale))},
               {{"to", static_cast<int>(to)}, {"writes", stored + ", magnitude, sums"}, {"sums_of", "x"}}, tensors + 2);
  const int64_t columns = x.shape().empty() ? 1 : x.shape().back(), rows = columns == 0 ? 0 : x.size() / columns;
  const Bytes *const by_rows = stored == "columns" ? nullptr : got.data(), *const by_columns =
                                                                               stored == "rows"
                                                                                   ? nullptr
                                                                                   : &got[stored == kBoth ? 1 : 0];
  std::vector<double> sums(static_cast<size_t>(columns)), sums_of_magnitudes(sums);
  double largest = x.size() == 0 ? -std::numeric_limits<double>::infinity() : 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const double value = x.at(row * columns + column);
      sums[static_cast<size_t>(column)] += value;
      sums_of_magnitudes[static_cast<size_t>(column)] += std::abs(value);
      largest = std::isnan(value) || std::isnan(largest) ? NAN : std::max(largest, std::abs(value));
      const uint8_t code = code_of(value, scale, to);
      for (const auto& [bytes, at] :
           {std::pair(by_rows, row * columns + column), std::pair(by_columns, column * rows + row)}) {
        if (!bytes) continue;
        const uint8_t actual = (*bytes)[static_cast<size_t>(at)];
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(number_of(actual, 1, to))) << row << " " << column;
        } else {
          ASSERT_EQ(actual, code) << value << " at " << row << ", " << column;
        }
      }
    }
  }
  const float magnitude = floats(got[static_cast<size_t>(tensors)])[0];
  EXPECT_TRUE(std::isnan(largest) ? std::isnan(magnitude) : static_cast<double>(magnitude) == largest) << magnitude;
  const std::vector<float> summed = floats(got[static_cast<size_t>(tensors) + 1]);
  ASSERT_EQ(summed.size(), sums.size());
  for (size_t c = 0; c < sums.size(); ++c) {
    if (!std::isfinite(sums[c])) continue;
    EXPECT_NEAR(summed[c], sums[c], 1e-6 * sums_of_magnitudes[c]) << c;
  }
}

TEST(CudaQuantize, StoresTheNearestNumbersAsTheyAreAndTransposed) {
  for (const DType to : {DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    for (const DType dtype : {DType::kFloat, DType::kBFloat16}) {
      for (const char* stored : {"rows", "columns", kBoth}) {
        // Tiles are 128 x 64; sizes that are multiples of 16 are read 16 bytes at a time.
        for (const Shape& shape :
             {Shape{65, 33}, {1}, {}, {0, 16}, {16, 0}, {3, 16, 80}, {272, 144}, {130, 16}, {16, 70}})
          expect_quantized(numbers(dtype, shape, 0.25, false), 0.25, to, stored);
      }
    }
  }
}

TEST(CudaQuantize, SaturatesAndKeepsNaN) {
  for (const DType to : {DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    for (const DType dtype : {DType::kFloat, DType::kBFloat16}) {
      for (const Shape& shape : {Shape{32, 16}, {5, 7}, {8}})
        expect_quantized(numbers(dtype, shape, 1, true), 1, to, kBoth);
    }
  }
}

// The sums of stored numbers, as FakeQuantize rounds them.
TEST(CudaQuantize, SumsWhatIsStored) {
  for (const DType to : {DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    for (const Shape& shape : {Shape{288, 80}, {33, 9}}) {
      const double scale = 1.0 / 64;
      const Tensor x = random_tensor(DType::kFloat, shape, 4);
      const auto got =
          quantize({x, Tensor::scalar(static_cast<float>(scale))},
                   {{"to", static_cast<int>(to)}, {"writes", "rows, magnitude, sums"}, {"sums_of", "stored"}}, 3);
      const std::vector<float> sums = floats(got[2]);
      for (int64_t column = 0; column < shape[1]; ++column) {
        double sum = 0;
        for (int64_t row = 0; row < shape[0]; ++row)
          sum += number_of(got[0][static_cast<size_t>(row * shape[1] + column)], scale, to);
        EXPECT_NEAR(sums[static_cast<size_t>(column)], sum, 1e-4) << column;
      }
    }
  }
}

TEST(CudaQuantize, AppliesAnActivationOrItsGradientAndRoundsBeforehand) {
  const Shape shape = {3, 48, 32};
  const auto narrow = [&](unsigned seed) {
    Tensor x = random_tensor(DType::kFloat, shape, seed);
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, 4 * x.at(i));
    return x.cast(DType::kBFloat16);
  };
  const Tensor x = narrow(1), other = narrow(2), scale = Tensor::scalar(0.125f);
  for (const char* function : {"Relu", "Gelu", "GeluTanh"}) {
    for (const bool is_gradient : {false, true}) {
      SCOPED_TRACE(concat(function, is_gradient));
      const DType to = is_gradient ? DType::kFloat8E5M2 : DType::kFloat8E4M3FN;
      const std::string op = std::string(function) == "GeluTanh" && !is_gradient ? "Gelu" : function;
      const Attrs form = op == "Gelu" && std::string(function) == "GeluTanh" ? Attrs{{"approximate", "tanh"}} : Attrs{};
      const Tensor wide = x.cast(DType::kFloat);
      const Tensor y = is_gradient ? run_node(op + "Grad", {wide, other.cast(DType::kFloat)}, {}, 1, kDomain)[0].clone()
                                   : run_node(op, {wide}, form)[0].clone();
      const Attrs attrs = {{"to", static_cast<int>(to)}, {"writes", "rows, columns, magnitude"}};
      Attrs with = attrs;
      with.emplace_back(is_gradient ? "activation_gradient" : "activation", function);
      const std::vector<Tensor> inputs =
          is_gradient ? std::vector<Tensor>{x, scale, other} : std::vector<Tensor>{x, scale};
      const auto got = quantize(inputs, with, 3), expected = quantize({y.cast(DType::kBFloat16), scale}, attrs, 3);
      // CUDA's exponentials are not the CPU's: a few numbers round the other way.
      for (int k : {0, 1}) {
        int different = 0;
        const auto at = static_cast<size_t>(k);
        for (size_t i = 0; i < got[at].size(); ++i) different += got[at][i] != expected[at][i];
        EXPECT_LE(different, 8) << k;
      }
      EXPECT_NEAR(floats(got[2])[0], floats(expected[2])[0], 0.05);
    }
  }
}

// ---- Products

constexpr int64_t kBatch = 2, kTokens = 24, kIn = 32, kOut = 48;

// Values that mixed precision rounds to 8 bits; in the model, everything is float32.
struct Rounded {
  Builder& b;

  Var narrow(Var x, DType to = DType::kBFloat16) const { return cast(cast(x, to), DType::kFloat); }
  Var operator()(Var x, DType to = DType::kFloat8E4M3FN, double scale = 0x1p-7) const {
    const Var y = call(b, "FakeQuantize", {narrow(x), b.scalar(DType::kFloat, scale)}, {{"to", static_cast<int>(to)}});
    return narrow(y);
  }
};

struct Layer {
  Rounded round;
  Var x, w, bias, dy;  // [batch, tokens, in], [in, out], [out], [batch, tokens, out]

  Var rows(Var v) const { return reshape(v, {kBatch * kTokens, v.type().shape().back()}); }
  Var dy8() const { return round(dy, DType::kFloat8E5M2, 0x1p-15); }
};

Model model_of(const std::function<std::vector<Var>(const Layer&)>& outputs) {
  Model model = empty_model();
  Builder b(model.graph.get());
  const auto input = [&](const char* name, const Shape& shape) {
    return b.var(model.graph->add_input(name, {DType::kFloat, Dims(shape.begin(), shape.end())}));
  };
  const Layer layer = {{b},
                       input("x", {kBatch, kTokens, kIn}),
                       input("w", {kIn, kOut}),
                       input("bias", {kOut}),
                       input("dy", {kBatch, kTokens, kOut})};
  for (const Var& output : outputs(layer)) model.graph->add_output(output.value());
  return model;
}

TensorMap inputs_of(const Model& model) {
  TensorMap tensors;
  unsigned seed = 0;
  for (const Value* input : model.graph->inputs())
    tensors[input->name()] = random_tensor(DType::kFloat, input->type().shape(), ++seed);
  return tensors;
}

// Tensor cores of compute capability 9.0 add products of 8 bits with fewer bits than float32 has, before the library
// adds their sums in float32.
double order_of_sums() { return cuda_device().description().starts_with("CUDA on the host") ? 1e-6 : 1e-3; }

// Expects the results of the CPU, and returns the numbers of nodes.
std::map<std::string, int> expect_as_on_cpu(const Model& model, double tolerance = order_of_sums()) {
  Session cpu(clone(model)), cuda(clone(model), on(&cuda_device()));
  const TensorMap given = inputs_of(model);
  std::map<std::string, int> counts;
  for (const PlanStep& step : cuda.plan("predict", shapes_of(given)).steps()) ++counts[step.node->op()];
  const TensorMap expected = cpu.run("predict", given), actual = cuda.run("predict", given);
  for (const auto& [name, tensor] : expected) EXPECT_LT(relative_error(actual.at(name), tensor), tolerance) << name;
  return counts;
}

constexpr double kOneBFloat16 = 0x1p-7;  // a sum that rounds the other way, or is rounded once less

TEST(CudaQuantizeProducts, ALinearLayerAndItsGradientsShareTheirOperands) {
  const auto counts = expect_as_on_cpu(model_of([](const Layer& l) -> std::vector<Var> {
    const Var x8 = l.round(l.x), w8 = l.round(l.w), dy8 = l.dy8();
    return {matmul(x8, w8), matmul(dy8, transpose(w8, {1, 0})), matmul(transpose(l.rows(x8), {1, 0}), l.rows(dy8))};
  }));
  EXPECT_EQ(counts.at("ScaledMatMul"), 3);
  EXPECT_EQ(counts.at("Quantize"), 3);
  EXPECT_FALSE(counts.contains("MatMul") || counts.contains("Gemm"));
}

TEST(CudaQuantizeProducts, WeightsMayBeStoredTheOtherWayRound) {
  const auto counts = expect_as_on_cpu(model_of([](const Layer& l) -> std::vector<Var> {
    const Var x8 = l.round(l.x), w8 = l.round(transpose(l.w, {1, 0})), dy8 = l.dy8();
    const Var dw = matmul(transpose(l.rows(dy8), {1, 0}), l.rows(x8));
    return {matmul(x8, transpose(w8, {1, 0})), matmul(dy8, w8), dw,
            transpose(matmul(transpose(l.rows(x8), {1, 0}), l.rows(dy8)), {1, 0})};
  }));
  EXPECT_EQ(counts.at("ScaledMatMul"), 4);
  EXPECT_EQ(counts.at("Quantize"), 3);
}

TEST(CudaQuantizeProducts, AddABiasAndAResidual) {
  const auto counts =
      expect_as_on_cpu(model_of([](const Layer& l) -> std::vector<Var> {
                         const Var y = l.round.narrow(matmul(l.round(l.x), l.round(l.w)) + l.round.narrow(l.bias));
                         return {l.round.narrow(y + l.round.narrow(l.dy))};
                       }),
                       kOneBFloat16);
  EXPECT_EQ(counts.at("ScaledMatMul"), 1);
  EXPECT_FALSE(counts.contains("Add") || counts.contains("MatMul"));
}

TEST(CudaQuantizeProducts, QuantizeFindsMagnitudesAndTheGradientsOfBiases) {
  const auto counts = expect_as_on_cpu(model_of([](const Layer& l) -> std::vector<Var> {
    const Var dy = l.round.narrow(l.dy);
    const Var dw = matmul(transpose(l.rows(l.round(l.x)), {1, 0}), l.rows(l.round(dy, DType::kFloat8E5M2, 0x1p-15)));
    return {dw, reduce_sum(dy, {0, 1}, false), dy.builder().op("ReduceMax", {abs(dy)}, {{"keepdims", 0}})};
  }));
  EXPECT_EQ(counts.at("Quantize"), 2);
  EXPECT_FALSE(counts.contains("ReduceSum") || counts.contains("ReduceMax") || counts.contains("Fused"));
}

// A Gemm's gradient for C sums what the backward products read.
TEST(CudaQuantizeProducts, SumsOfTheRoundedGradientAreThoseOfStoredNumbers) {
  const auto counts = expect_as_on_cpu(model_of([](const Layer& l) -> std::vector<Var> {
    const Var dy8 = l.rows(l.dy8());
    return {matmul(transpose(l.rows(l.round(l.x)), {1, 0}), dy8), reduce_sum(dy8, {0}, false)};
  }));
  EXPECT_EQ(counts.at("ScaledMatMul"), 1);
  EXPECT_FALSE(counts.contains("ReduceSum") || counts.contains("Gemm") || counts.contains("TransposedMatMul"));
}

TEST(CudaQuantizeProducts, QuantizeAppliesGeluAndItsGradient) {
  const auto counts = expect_as_on_cpu(
      model_of([](const Layer& l) -> std::vector<Var> {
        Builder& b = l.x.builder();
        const Var x = l.round.narrow(l.x), gelu = b.op("Gelu", {x});
        const Var dx = l.round.narrow(matmul(l.dy8(), transpose(l.round(l.w), {1, 0})));
        const Var gradient = l.round.narrow(call(b, "GeluGrad", {dx, x}));
        const Var dw =
            matmul(transpose(l.rows(l.round(gradient, DType::kFloat8E5M2, 0x1p-15)), {1, 0}), l.rows(l.round(x)));
        return {matmul(l.round(gelu), l.round(l.w)), dw, reduce_sum(gradient, {0, 1}, false)};
      }),
      kOneBFloat16);
  EXPECT_FALSE(counts.contains("Gelu") || counts.contains("GeluGrad") || counts.contains("ReduceSum"));
}

TEST(CudaQuantizeProducts, ValuesThatOthersReadStay) {
  const auto counts = expect_as_on_cpu(
      model_of([](const Layer& l) -> std::vector<Var> {
        const Var gelu = l.round.narrow(l.x.builder().op("Gelu", {l.round.narrow(l.x)})), x8 = l.round(gelu);
        return {matmul(x8, l.round(l.w)), gelu, x8 * 2.0};
      }),
      kOneBFloat16);
  EXPECT_EQ(counts.at("ScaledMatMul"), 1);
}

TEST(CudaQuantizeProducts, OtherProductsStayAsTheyAre) {
  const std::function<std::vector<Var>(const Layer&)> models[] = {
      // Two gradients, a size of 24 tokens as the sum, and one operand of 16 bits.
      [](const Layer& l) -> std::vector<Var> {
        return {matmul(l.dy8(), transpose(l.round(l.w, DType::kFloat8E5M2), {1, 0}))};
      },
      [](const Layer& l) -> std::vector<Var> {
        const Var one = reshape(l.round(l.x), {kBatch, kTokens, kIn});
        return {matmul(transpose(one, {0, 2, 1}), l.dy8())};
      },
      [](const Layer& l) -> std::vector<Var> { return {matmul(l.round(l.x), l.round.narrow(l.w))}; },
  };
  for (const auto& outputs : models) {
    const auto counts = expect_as_on_cpu(model_of(outputs));
    EXPECT_FALSE(counts.contains("ScaledMatMul") || counts.contains("Quantize"));
  }
}

TEST(CudaQuantizeProducts, ADeviceWithoutSuchUnitsHasNoPass) {
  EXPECT_TRUE(optional_passes(cuda_device()).contains("quantize_products"));
  EXPECT_FALSE(optional_passes(Device::cpu()).contains("quantize_products"));
}

// A step with and without the pass, of the network of the device's tests.
TEST(CudaQuantizeProducts, AStepComputesWhatItComputesWithProductsOf16Bits) {
  BuildOptions build;
  build.precision = Precision::kFloat8;
  Model model = make_transformer({.blocks = 1, .width = 32, .tokens = kDeviceTestTokens});
  build_training_model(&model, build);
  SessionOptions plain = on(&cuda_device());
  plain.plan.lowering.without = {"quantize_products"};
  Session narrow(clone(model), on(&cuda_device())), wide(clone(model), plain);
  const auto count = [](Session& session) {
    int products = 0;
    for (const PlanStep& step : session.plan("step", shapes_of(batch(0))).steps())
      products += step.node->is("ScaledMatMul", kDomain);
    return products;
  };
  EXPECT_GT(count(narrow), 9);
  EXPECT_EQ(count(wide), 0);
  for (int i = 0; i < 3; ++i) {
    for (const auto& [name, state] : states_of(wide)) narrow.state().set(name, state);
    const TensorMap results = narrow.run("step", batch(i)), expected = wide.run("step", batch(i));
    for (const char* output : {"loss", "grad_norm"})
      EXPECT_NEAR(results.at(output).at(0), expected.at(output).at(0), 5e-3 * expected.at(output).at(0)) << output;
    const auto states = states_of(narrow), wanted = states_of(wide);
    EXPECT_LT(relative_error(states.at("state/fp8/magnitudes"), wanted.at("state/fp8/magnitudes")), 0.02);
  }
}

}  // namespace
}  // namespace onnx_train::cuda_quantize_products_test
