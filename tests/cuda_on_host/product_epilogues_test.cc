// Products that add a bias or sum an operand: what the pass finds, and results compared with the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "kernels/cuda/support/device.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/registry.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"
#include "runtime/session/session.h"
#include "tests/cuda_on_host/runtime.h"
#include "tests/support/device_network.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"

namespace onnx_train::product_epilogues_test {
namespace {

constexpr int64_t kBatch = 3, kTokens = 7, kIn = 12, kOut = 20;

struct Sizes {
  int64_t in = kIn, out = kOut;
};
constexpr Sizes kWholeVectors = {16, 24};  // cuDNN's products with activations need multiples of 8

struct Layer {
  Var x, w, bias, dy;  // [batch, tokens, in], [out, in], [out], [batch, tokens, out]

  Var rows(Var v) const { return reshape(v, {kBatch * kTokens, v.type().shape().back()}); }
  Var bias_gradient() const { return reduce_sum(dy, {0, 1}, false); }
};

TensorMap inputs_of(const Model& model) {
  std::map<std::string, Shape> shapes;
  for (const Value* input : model.graph->inputs()) shapes[input->name()] = input->type().shape();
  TensorMap tensors;
  unsigned seed = 0;
  for (const auto& [name, shape] : shapes) tensors[name] = random_tensor(DType::kFloat, shape, ++seed);
  return tensors;
}

// Returns a model with the outputs that `outputs` makes; operands of products are rounded to `type`.
Model model_of(DType type, const std::function<std::vector<Var>(const Layer&)>& outputs, const Sizes& sizes = {}) {
  Model model = empty_model();
  Builder b(model.graph.get());
  const auto input = [&](const char* name, const Shape& shape) {
    const Var value = b.var(model.graph->add_input(name, {DType::kFloat, Dims(shape.begin(), shape.end())}));
    return type == DType::kFloat || name == std::string("bias") ? value : cast(cast(value, type), DType::kFloat);
  };
  const Var x = input("x", {kBatch, kTokens, sizes.in}), w = input("w", {sizes.out, sizes.in});
  const Var bias = input("bias", {sizes.out}), dy = input("dy", {kBatch, kTokens, sizes.out});
  for (const Var& output : outputs({x, w, bias, dy})) model.graph->add_output(output.value());
  return model;
}

// Expects the CPU's results on CUDA. Adds the plan's operators to `counts`.
void expect_as_on_cpu(const Model& model, std::map<std::string, int>* counts, double tolerance = 1e-6) {
  Session cpu(clone(model)), cuda(clone(model), on(&cuda_device()));
  const TensorMap given = inputs_of(model);
  for (const PlanStep& step : cuda.plan("predict", shapes_of(given)).steps()) ++(*counts)[step.node->op()];
  const TensorMap expected = cpu.run("predict", given), actual = cuda.run("predict", given);
  for (const auto& [name, tensor] : expected) EXPECT_LT(relative_error(actual.at(name), tensor), tolerance) << name;
}

// The error if the CPU rounds to `type` twice and CUDA once: half a unit in the last place of a number that may be
// larger than the result, or a whole unit if that decides how the result is rounded.
double rounding_of(DType type) { return type == DType::kFloat ? 1e-6 : type == DType::kBFloat16 ? 0x1p-7 : 0x1p-10; }

// The gradient of a layer's input.
Var input_gradient(const Layer& l) { return matmul(l.rows(l.dy), l.w); }

std::vector<Var> gradients_of_linear(const Layer& l) {
  return {matmul(transpose(l.rows(l.dy), {1, 0}), l.rows(l.x)), l.bias_gradient()};
}

TEST(CudaProductEpilogues, ALinearLayerIsOneNodeForwardsAndOneForItsWeightAndBias) {
  std::map<std::string, int> counts;
  expect_as_on_cpu(model_of(DType::kFloat,
                            [](const Layer& l) {
                              std::vector<Var> outputs = gradients_of_linear(l);
                              outputs.push_back(l.bias + matmul(l.x, transpose(l.w, {1, 0})));
                              return outputs;
                            }),
                   &counts);
  EXPECT_EQ(counts["Add"] + counts["ReduceSum"] + counts["Fused"], 0);
}

// In mixed precision the bias and result of a linear layer have 16 bits, too.
TEST(CudaProductEpilogues, AResultOf16BitsTakesABiasOf16Bits) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool is_gemm : {false, true}) {
      SCOPED_TRACE(testing::Message() << name(type) << is_gemm);
      const auto rounded = [&](Var v) { return cast(cast(v, type), DType::kFloat); };
      std::map<std::string, int> counts;
      expect_as_on_cpu(
          model_of(
              type,
              [&](const Layer& l) -> std::vector<Var> {
                const Var w = transpose(l.w, {1, 0}), bias = rounded(l.bias);
                return {rounded(is_gemm ? l.x.builder().op("Gemm", {l.rows(l.x), w, bias}) : matmul(l.x, w) + bias)};
              }),
          &counts);
      EXPECT_EQ(counts["Add"] + counts["Fused"], 0);
      EXPECT_EQ(counts["Cast"] + counts["Casts"], 2);  // one of the inputs and one of the result
    }
  }
}

// ---- Products followed by a residual sum or GELU

TEST(CudaFuseProducts, AResidualSumBelongsToTheProduct) {
  for (const DType type : {DType::kFloat, DType::kBFloat16, DType::kFloat16}) {
    for (const bool has_bias : {false, true}) {
      for (const bool behind_a_view : {false, true}) {
        SCOPED_TRACE(testing::Message() << name(type) << has_bias << behind_a_view);
        const auto rounded = [&](Var v) { return type == DType::kFloat ? v : cast(cast(v, type), DType::kFloat); };
        std::map<std::string, int> counts;
        expect_as_on_cpu(model_of(type,
                                  [&](const Layer& l) -> std::vector<Var> {
                                    const Var w = transpose(l.w, {1, 0});
                                    Var y = matmul(behind_a_view ? l.rows(l.x) : l.x, w);
                                    if (has_bias) y = y + rounded(l.bias);
                                    y = reshape(rounded(y), l.dy.type().shape());
                                    return {rounded(l.dy + y)};
                                  }),
                         &counts, rounding_of(type));
        EXPECT_EQ(counts["Add"] + counts["Fused"], 0);
      }
    }
  }
}

TEST(CudaFuseProducts, VectorsAndBatchesTakeThem) {
  std::map<std::string, int> counts;
  expect_as_on_cpu(
      model_of(DType::kFloat,
               [](const Layer& l) -> std::vector<Var> {
                 const Var w = transpose(l.w, {1, 0}), vector = reduce_sum(l.x, {0, 1}, false);
                 const Var batch = reshape(l.dy, {kBatch, kTokens, kOut});
                 return {l.bias + matmul(vector, w), reduce_sum(l.bias * l.bias, {0}, false) + matmul(vector, vector),
                         l.x.builder().op("Relu", {matmul(vector, w)}),
                         matmul(transpose(batch, {0, 2, 1}), batch) + matmul(transpose(l.dy, {0, 2, 1}), l.dy)};
               }),
      &counts);
}

// The residual connection around a transformer block joins the gradient of the normalization before it.
TEST(CudaFuseProducts, AResidualSumBelongsToTheGradientOfANormalization) {
  for (const DType type : {DType::kFloat, DType::kBFloat16, DType::kFloat16}) {
    for (const char* op : {"LayerNormalizationGrad", "RMSNormalizationGrad"}) {
      for (const int64_t out : {kOut, int64_t{5000}}) {  // rows read once, and rows read several times
        for (const bool reads_sum_first : {false, true}) {
          SCOPED_TRACE(testing::Message() << name(type) << " " << op << " " << out << reads_sum_first);
          const auto rounded = [&](Var v) { return type == DType::kFloat ? v : cast(cast(v, type), DType::kFloat); };
          const int num_outputs = op[0] == 'L' ? 3 : 2;
          std::map<std::string, int> counts;
          const auto outputs = [&](const Layer& l) -> std::vector<Var> {
            Builder& b = l.dy.builder();
            const Var around = rounded(b.op("Softmax", {l.dy}, {{"axis", -1}}));
            const Var x = rounded(b.op("Softmax", {l.dy}, {{"axis", 0}}));
            std::vector<Var> results = call(b, op, num_outputs, {x, l.bias, l.dy});
            if (reads_sum_first) results.push_back(concat({results[1], results[1]}, 0));
            results[0] = rounded(around + results[0]);
            return results;
          };
          // Sums of a row in float32 have another order, and each of n additions rounds.
          const double of_sums = std::sqrt(static_cast<double>(out)) * 0x1p-24;
          expect_as_on_cpu(model_of(type, outputs, {kIn, out}), &counts, std::max(rounding_of(type), of_sums));
          EXPECT_EQ(counts["Add"] + counts["Fused"], 0);
        }
      }
    }
  }
}

// C is a column with as many numbers as the result has columns.
TEST(CudaFuseProducts, AColumnIsNoBias) {
  const auto with_column = [](const Layer& l) {
    return l.w.builder().op("Gemm", {l.w, transpose(l.w, {1, 0}), reshape(l.bias, {kOut, 1})});
  };
  const std::function<std::vector<Var>(const Layer&)> models[] = {
      [&](const Layer& l) -> std::vector<Var> {
        return {l.w.builder().op("Softmax", {matmul(l.w, transpose(l.w, {1, 0}))}) + with_column(l)};
      },
      [&](const Layer& l) -> std::vector<Var> { return {l.w.builder().op("Relu", {with_column(l)})}; },
  };
  for (const auto& outputs : models) {
    std::map<std::string, int> counts;
    expect_as_on_cpu(model_of(DType::kFloat, outputs), &counts);
    EXPECT_EQ(counts["Add"] + counts["Relu"], 1);
  }
}

TEST(CudaFuseProducts, GeluBelongsToTheProduct) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const char* form : {"none", "tanh"}) {
      for (const bool has_bias : {false, true}) {
        for (const bool reads_x : {false, true}) {
          // The library compiles each product for half a second.
          if (!has_bias && (reads_x || type == DType::kFloat16)) continue;
          SCOPED_TRACE(testing::Message() << name(type) << form << has_bias << reads_x);
          const auto rounded = [&](Var v) { return cast(cast(v, type), DType::kFloat); };
          std::map<std::string, int> counts;
          expect_as_on_cpu(model_of(
                               type,
                               [&](const Layer& l) -> std::vector<Var> {
                                 Var x = matmul(l.x, transpose(l.w, {1, 0}));
                                 if (has_bias) x = x + rounded(l.bias);
                                 x = reshape(rounded(x), l.rows(l.dy).type().shape());
                                 const Var y = rounded(x.builder().op("Gelu", {x}, {{"approximate", form}}));
                                 return reads_x ? std::vector{rounded(tanh(x)), y} : std::vector{y};
                               },
                               kWholeVectors),
                           &counts, rounding_of(type));
          EXPECT_EQ(counts["Gelu"], 0);
          EXPECT_EQ(counts["Fused"] + counts["Tanh"], reads_x ? 1 : 0);
        }
      }
    }
  }
}

TEST(CudaFuseProducts, ReluBelongsToTheProduct) {
  for (const DType type : {DType::kFloat, DType::kBFloat16, DType::kFloat16}) {
    for (const bool has_bias : {false, true}) {
      SCOPED_TRACE(testing::Message() << name(type) << has_bias);
      const auto rounded = [&](Var v) { return type == DType::kFloat ? v : cast(cast(v, type), DType::kFloat); };
      std::map<std::string, int> counts;
      expect_as_on_cpu(
          model_of(type,
                   [&](const Layer& l) -> std::vector<Var> {
                     Var x = matmul(l.x, transpose(l.w, {1, 0}));
                     if (has_bias) x = x + rounded(l.bias);
                     return {rounded(x.builder().op("Relu", {reshape(rounded(x), l.rows(l.dy).type().shape())}))};
                   }),
          &counts, rounding_of(type));
      EXPECT_EQ(counts["Relu"] + counts["Fused"], 0);
    }
  }
}

TEST(CudaFuseProducts, TheGradientOfAnActivationBelongsToTheProduct) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const char* op : {"ReluGrad", "GeluGrad", "GeluTanhGrad"}) {
      SCOPED_TRACE(testing::Message() << name(type) << op);
      const auto rounded = [&](Var v) { return cast(cast(v, type), DType::kFloat); };
      std::map<std::string, int> counts;
      expect_as_on_cpu(model_of(
                           type,
                           [&](const Layer& l) -> std::vector<Var> {
                             const Var dy = reshape(rounded(matmul(l.rows(l.dy), l.w)), l.x.type().shape());
                             return {rounded(call(dy.builder(), op, {dy, l.x}))};
                           },
                           kWholeVectors),
                       &counts, rounding_of(type));
      EXPECT_EQ(counts[op] + counts["Fused"], 0);
    }
  }
}

// A product that already adds a sum to its result has no room for the gradient.
TEST(CudaFuseProducts, TheGradientOfAnActivationAfterASumStays) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const char* op : {"ReluGrad", "GeluGrad", "GeluTanhGrad"}) {
      SCOPED_TRACE(testing::Message() << name(type) << op);
      const auto rounded = [&](Var v) { return cast(cast(v, type), DType::kFloat); };
      std::map<std::string, int> counts;
      expect_as_on_cpu(model_of(
                           type,
                           [&](const Layer& l) -> std::vector<Var> {
                             // The other term has the other sign, and so the gradient of Relu other zeros.
                             const Var sum = rounded(input_gradient(l) + rounded(tanh(-l.rows(l.x))));
                             return {rounded(call(sum.builder(), op, {sum, l.rows(l.x)}))};
                           },
                           kWholeVectors),
                       &counts, rounding_of(type));
      EXPECT_EQ(counts["Gemm"], 1);
      EXPECT_EQ(counts["Add"], 0);
    }
  }
}

// What lists a variant that its operator does not have is never asked.
TEST(CudaKernels, ListEpiloguesOfTheirOperators) {
  for (const Device* device : std::initializer_list<const Device*>{&Device::cpu(), &cuda_device()}) {
    for (const Kernel* kernel : device->kernels()) {
      const Operator* const row = find_operator(kernel->domain, kernel->op);
      EXPECT_FALSE(kernel->epilogues.empty()) << kernel->op;
      for (const char* text : kernel->epilogues) {
        for (const EpilogueStep step : epilogue_of(Attrs{{kEpilogue, text}}))
          EXPECT_TRUE(row && has_step(row->steps, step)) << kernel->op << " " << text;
      }
    }
  }
}

// Whether CUDA has a kernel for a product of `type` operands [8, 16] and [16, 24] with this epilogue and these inputs.
bool has_product(DType type, DType result, const char* epilogue, const std::map<int, Shape>& more, int outputs = 1) {
  Model model = empty_model();
  const auto input = [&](DType dtype, const Shape& shape) {
    return model.graph->add_input(model.graph->unique_name("x"), {dtype, Dims(shape.begin(), shape.end())});
  };
  Node* node =
      model.graph->add_node("Gemm", {input(type, {8, 16}), input(type, {16, 24})},
                            outputs == 1 ? std::vector<std::string>{"y"} : std::vector<std::string>{"y", "z"}, kDomain);
  for (const auto& [place, shape] : more) node->set_input(place, input(result, shape));
  if (*epilogue) node->set_attr(kEpilogue, epilogue);
  for (Value* output : node->outputs()) output->set_type({result, Dims{8, 24}});
  if (has_step(*node, EpilogueStep::kSumsOfA)) node->output(1)->set_type({result, Dims{8}});
  return find_kernel(cuda_device(), *node);
}

TEST(CudaKernels, TakeTheVariantsOfTheirRows) {
  constexpr DType kFloat = DType::kFloat, kNarrow = DType::kBFloat16;
  const Shape row = {24}, column = {8, 1}, matrix = {8, 24};
  EXPECT_TRUE(has_product(kFloat, kFloat, "", {}));
  EXPECT_TRUE(has_product(kNarrow, kNarrow, "", {{2, row}}));
  EXPECT_TRUE(has_product(kNarrow, kNarrow, "", {{2, matrix}}));
  EXPECT_FALSE(has_product(kNarrow, kNarrow, "", {{2, column}}));  // would round twice
  EXPECT_TRUE(has_product(kNarrow, kFloat, "", {{2, column}}));
  for (const DType type : {kFloat, kNarrow}) {
    EXPECT_TRUE(has_product(type, type, "relu", {{2, row}}));
    EXPECT_FALSE(has_product(type, type, "relu", {{2, matrix}}));
    EXPECT_TRUE(has_product(type, type, "residual", {{3, matrix}}));
    EXPECT_TRUE(has_product(type, type, "residual", {{2, row}, {3, matrix}}));
    EXPECT_FALSE(has_product(type, type, "residual", {{2, matrix}, {3, matrix}}));
    EXPECT_FALSE(has_product(type, type, "residual, relu", {{3, matrix}}));
    EXPECT_FALSE(has_product(type, type, "keep, relu", {}, 2));
  }
  EXPECT_TRUE(has_product(kNarrow, kFloat, "sums_of_a", {}, 2));
  EXPECT_FALSE(has_product(kNarrow, kNarrow, "sums_of_a", {}, 2));
  EXPECT_FALSE(has_product(kFloat, kFloat, "sums_of_a", {{2, row}}, 2));
  EXPECT_FALSE(has_product(kFloat, kFloat, "gelu", {}));
  EXPECT_FALSE(has_product(kNarrow, kNarrow, "relu_gradient", {{2, row}, {3, matrix}}));
  EXPECT_FALSE(has_product(kNarrow, kNarrow, "relu_gradient", {{2, matrix}, {3, matrix}}));
}

TEST(CudaKernels, GroupsAndTransposedConvolutionsReadChannelsFirst) {
  Model model = empty_model();
  const auto needs = [&](const char* op, const char* domain = "") {
    return needs_channels_first(cuda_device(), *model.graph->add_node(op, {}, {}, domain));
  };
  EXPECT_TRUE(needs("ConvTranspose"));
  EXPECT_TRUE(needs("InstanceNormalization"));
  EXPECT_TRUE(needs("GroupNormalization"));
  EXPECT_TRUE(needs("GroupNormalization", kDomain));
  EXPECT_TRUE(needs("GroupNormalizationGrad", kDomain));
  EXPECT_FALSE(needs("Conv"));
  EXPECT_FALSE(needs("ConvGradInput", kDomain));
  EXPECT_FALSE(needs("BatchNormalization"));
  EXPECT_FALSE(needs("MaxPool"));
  EXPECT_FALSE(needs("Unknown"));
}

TEST(CudaFuseProducts, OtherSumsAndOtherGelusStay) {
  const auto rounded = [](Var v) { return cast(cast(v, DType::kBFloat16), DType::kFloat); };
  const std::function<std::vector<Var>(const Layer&)> models[] = {
      // The product has another reader; a sum broadcasts the product; the product is rounded for GELU only.
      [&](const Layer& l) -> std::vector<Var> {
        const Var y = rounded(matmul(l.x, transpose(l.w, {1, 0})));
        return {y, rounded(y + l.dy)};
      },
      [&](const Layer& l) -> std::vector<Var> {
        const Var y = rounded(matmul(l.rows(l.x), transpose(l.w, {1, 0})));
        return {rounded(reshape(y, {1, kBatch, kTokens, kWholeVectors.out}) +
                        reshape(l.dy, {kBatch, 1, kTokens, kWholeVectors.out}))};
      },
      [&](const Layer& l) -> std::vector<Var> {
        const Var y = matmul(l.x, transpose(l.w, {1, 0}));
        return {y, y.builder().op("Gelu", {rounded(y)})};
      },
      // One kernel computes GELU and the following operation.
      [&](const Layer& l) -> std::vector<Var> {
        const Var y = rounded(matmul(l.x, transpose(l.w, {1, 0})));
        return {rounded(y.builder().op("Gelu", {y}) * l.dy)};
      },
  };
  for (const auto& outputs : models) {
    std::map<std::string, int> counts;
    expect_as_on_cpu(model_of(DType::kBFloat16, outputs, kWholeVectors), &counts, rounding_of(DType::kBFloat16));
    EXPECT_EQ(counts["Add"] + counts["Gelu"] + counts["Fused"], 1);
  }
}

TEST(CudaTf32, ProductsRoundTheirOperandsWhenTheyMay) {
  const Model model = model_of(DType::kFloat, gradients_of_linear);
  Session exact(clone(model), on(&cuda_device()));
  SessionOptions options = on(&cuda_device());
  options.plan.arithmetic.tf32 = true;
  Session rounded(clone(model), options);
  const TensorMap expected = exact.run("predict", inputs_of(model)), actual = rounded.run("predict", inputs_of(model));
  const std::string product = exact.model().graph->outputs()[0]->name();
  const double error = relative_error(actual.at(product), expected.at(product));
  EXPECT_GT(error, 1e-5);
  EXPECT_LT(error, 0x1p-10);
}

TEST(CudaProductEpilogues, BothOperandsAndAllTypesHaveSums) {
  for (const DType type : {DType::kFloat, DType::kBFloat16, DType::kFloat16}) {
    for (const bool library_sums : {true, false}) {
      for (const bool as_in_keras : {false, true}) {
        SCOPED_TRACE(testing::Message() << name(type) << " " << library_sums << as_in_keras);
        gpu_host::let_products_sum_operands(library_sums);
        std::map<std::string, int> counts;
        expect_as_on_cpu(model_of(type,
                                  [&](const Layer& l) {
                                    std::vector<Var> outputs = gradients_of_linear(l);
                                    if (as_in_keras) outputs[0] = matmul(transpose(l.rows(l.x), {1, 0}), l.rows(l.dy));
                                    return outputs;
                                  }),
                         &counts);
        gpu_host::let_products_sum_operands(true);
        EXPECT_EQ(counts["ReduceSum"] + counts["Fused"], 0);
      }
    }
  }
}

// ---- Sums of products

TEST(CudaSumProducts, EachProductAddsToWhatIsThereBeforeIt) {
  std::map<std::string, int> counts;
  expect_as_on_cpu(model_of(DType::kFloat,
                            [](const Layer& l) -> std::vector<Var> {
                              const Var first = reshape(input_gradient(l), l.x.type().shape());
                              const Var second = reshape(matmul(l.rows(l.dy * l.dy), l.w), l.x.type().shape());
                              return {l.x + (first + second)};
                            }),
                   &counts);
  EXPECT_EQ(counts["Add"] + counts["Fused"], 0);
  EXPECT_EQ(counts["Gemm"] + counts["MatMul"], 2);
}

TEST(CudaSumProducts, OneProductOf16BitsAddsATermOf16Bits) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool behind_a_view : {false, true}) {
      SCOPED_TRACE(testing::Message() << name(type) << behind_a_view);
      std::map<std::string, int> counts;
      expect_as_on_cpu(model_of(type,
                                [&](const Layer& l) -> std::vector<Var> {
                                  const Var x = behind_a_view ? l.x : l.rows(l.x), dx = input_gradient(l);
                                  const Var sum = (behind_a_view ? reshape(dx, x.type().shape()) : dx) + x;
                                  return {cast(cast(sum, type), DType::kFloat)};
                                }),
                       &counts);
      EXPECT_EQ(counts["Add"] + counts["Fused"], 0);
      EXPECT_EQ(counts["Cast"] + counts["Casts"], 2);  // one of the inputs and one of the result
    }
  }
}

TEST(CudaSumProducts, TermsOf16BitsComeLastAmongSeveralProducts) {
  std::map<std::string, int> counts;
  expect_as_on_cpu(model_of(DType::kBFloat16,
                            [](const Layer& l) -> std::vector<Var> {
                              const Var second = matmul(l.rows(l.dy), l.w * 2.0);
                              const Var sum = l.rows(l.x) + input_gradient(l) + second;
                              return {cast(cast(sum, DType::kBFloat16), DType::kFloat)};
                            }),
                   &counts);
  EXPECT_EQ(counts["Add"], 0);
  EXPECT_LE(counts["Fused"], 3);
}

// The first sum is read twice, so it is a term of the second one.
TEST(CudaSumProducts, ASumMayBeATermOfAnother) {
  std::map<std::string, int> counts;
  expect_as_on_cpu(model_of(DType::kFloat,
                            [](const Layer& l) -> std::vector<Var> {
                              const Var x = l.rows(l.x), first = x + input_gradient(l);
                              return {first + matmul(l.rows(l.dy) * 2.0, l.w), first};
                            }),
                   &counts);
  EXPECT_EQ(counts["Add"], 0);
}

TEST(CudaSumProducts, ALongSumTakesNoStack) {
  const Model model = model_of(DType::kFloat, [](const Layer& l) -> std::vector<Var> {
    const Var x = l.rows(l.x);
    Var sum = input_gradient(l) + x;
    for (int i = 0; i < 50000; ++i) sum = sum + x;
    return {sum};
  });
  Model lowered = clone(model);
  EXPECT_TRUE(sum_products(lowered, cuda_device()));
  EXPECT_EQ(count_nodes(lowered, "Add"), 50000);  // the product adds one
}

TEST(CudaSumProducts, OtherSumsStay) {
  const std::function<std::vector<Var>(const Layer&)> models[] = {
      // The other term depends on the product; the product has another reader or is both terms; shapes differ.
      [](const Layer& l) -> std::vector<Var> {
        const Var dx = input_gradient(l);
        return {dx + l.rows(l.x), dx};
      },
      [](const Layer& l) -> std::vector<Var> {
        const Var dx = input_gradient(l);
        return {dx + l.x.builder().op("Softmax", {dx})};
      },
      [](const Layer& l) -> std::vector<Var> { return {input_gradient(l) + reduce_sum(l.rows(l.x), {1}, true)}; },
      [](const Layer& l) -> std::vector<Var> {
        const Var dx = input_gradient(l);
        return {dx + dx};
      },
  };
  for (const auto& outputs : models) {
    std::map<std::string, int> counts;
    expect_as_on_cpu(model_of(DType::kFloat, outputs), &counts);
    EXPECT_EQ(counts["Add"] + counts["Fused"], 1);
  }
}

// A product that depends on the sum so far cannot add it; one before the other term keeps its position.
TEST(CudaSumProducts, ATermThatComesLaterIsAddedAtTheEnd) {
  std::map<std::string, int> counts;
  expect_as_on_cpu(model_of(DType::kFloat,
                            [](const Layer& l) -> std::vector<Var> {
                              const Var dx = input_gradient(l);
                              const Var later = l.x.builder().op("Softmax", {l.rows(l.x)});
                              const Var again = matmul(l.rows(l.dy), l.w * reduce_sum(later, {0, 1}, false));
                              return {dx + later + again};
                            }),
                   &counts);
  EXPECT_GE(counts["Add"] + counts["Fused"], 1);
}

TEST(CudaProductEpilogues, SumsThatTheProductNeedsOrThatAreOtherwiseStay) {
  const std::function<std::vector<Var>(const Layer&)> models[] = {
      // The other operand depends on the sums.
      [](const Layer& l) -> std::vector<Var> {
        const Var sums = l.bias_gradient();
        const Var x = l.rows(l.x) * (reduce_sum(sums, {0}, false) + 50.0);
        return {matmul(transpose(l.rows(l.dy), {1, 0}), x), sums};
      },
      // The sums are read before the product.
      [](const Layer& l) -> std::vector<Var> {
        const Var sums = l.bias_gradient();
        const Var scaled = l.rows(l.x) * 2.0;
        const Var used = sums * scaled.builder().scalar(DType::kFloat, 3);
        return {used, matmul(transpose(l.rows(l.dy), {1, 0}), scaled * (reduce_sum(used, {0}, false) + 50.0))};
      },
      // The sums have another axis or another number of columns, or the product sums over columns.
      [](const Layer& l) -> std::vector<Var> {
        return {matmul(transpose(l.rows(l.dy), {1, 0}), l.rows(l.x)), reduce_sum(l.dy, {0, 2}, false)};
      },
      [](const Layer& l) -> std::vector<Var> {
        return {matmul(transpose(l.rows(l.dy), {1, 0}), l.rows(l.x)),
                reduce_sum(reshape(l.dy, {kBatch * kTokens * 2, kOut / 2}), {0}, false)};
      },
      [](const Layer& l) -> std::vector<Var> {
        return {matmul(l.rows(l.dy), l.w), l.bias_gradient()};
      },
  };
  for (const auto& outputs : models) {
    std::map<std::string, int> counts;
    expect_as_on_cpu(model_of(DType::kFloat, outputs), &counts);
    EXPECT_GE(counts["ReduceSum"] + counts["Fused"], 1);
  }
}

// The library computes the transposed product, whose rows are contiguous.
TEST(CudaProductEpilogues, AProductThatIsStoredTransposedTakesABias) {
  std::map<std::string, int> counts;
  expect_as_on_cpu(model_of(DType::kFloat,
                            [](const Layer& l) -> std::vector<Var> {
                              const Var y = matmul(l.w, transpose(l.rows(l.x), {1, 0}));
                              return {transpose(y, {1, 0}) + l.bias};
                            }),
                   &counts);
  EXPECT_EQ(counts["Add"] + counts["Fused"], 0);
}

TEST(CudaProductEpilogues, ABiasOfAnotherShapeOrAProductThatIsReadOtherwiseStays) {
  const std::function<std::vector<Var>(const Layer&)> models[] = {
      [](const Layer& l) -> std::vector<Var> {
        const Var y = matmul(l.x, transpose(l.w, {1, 0}));
        return {y, y + l.bias};
      },
      [](const Layer& l) -> std::vector<Var> {
        const Var first = reshape(reduce_sum(l.bias, {0}, false), Shape{1});
        return {matmul(l.x, transpose(l.w, {1, 0})) + first};
      },
  };
  for (const auto& outputs : models) {
    std::map<std::string, int> counts;
    expect_as_on_cpu(model_of(DType::kFloat, outputs), &counts);
    EXPECT_EQ(counts["Add"], 1);
  }
}

}  // namespace
}  // namespace onnx_train::product_epilogues_test
