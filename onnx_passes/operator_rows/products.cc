#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/einsum.h"
#include "onnx_passes/operators/multiply_adds.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

using enum ElementTypes;

constexpr const char* kMatMul =
    "a[K] b[K] -> y[] | a[S..., M, K] b[K] -> y[S..., M] | a[K] b[S..., K, N] -> y[S..., N] | "
    "a[~S..., M, K] b[~S..., K, N] -> y[S..., M, N]";
constexpr const char* kGemm =
    "a[M, K] b[K, N] c? -> y[M, N] where @transA:0 = 0, @transB:0 = 0 | "
    "a[K, M] b[K, N] c? -> y[M, N] where @transA:0 = 1, @transB:0 = 0 | "
    "a[M, K] b[N, K] c? -> y[M, N] where @transA:0 = 0, @transB:0 = 1 | "
    "a[K, M] b[N, K] c? -> y[M, N] where @transA:0 = 1, @transB:0 = 1";
// Ours may have an epilogue (kernels/lowering/products/product_epilogues.cc, fusion/fuse_products.cc).
constexpr const char* kOurMatMul =
    "a[K] b[K] -> y[] | a[S..., M, K] b[K] -> y[S..., M] | a[K] b[S..., K, N] -> y[S..., N] | "
    "a[~S..., M, K] b[~S..., K, N] bias?[_..., N] residual/at?[S..., M, N] -> y[S..., M, N] sums/kept?";
constexpr const char* kOurGemm =
    "a[M, K] b[K, N] c? residual/at?[M, N] -> y[M, N] sums/kept? where @transA:0 = 0, @transB:0 = 0 | "
    "a[K, M] b[K, N] c? residual/at?[M, N] -> y[M, N] sums/kept? where @transA:0 = 1, @transB:0 = 0 | "
    "a[M, K] b[N, K] c? residual/at?[M, N] -> y[M, N] sums/kept? where @transA:0 = 0, @transB:0 = 1 | "
    "a[K, M] b[N, K] c? residual/at?[M, N] -> y[M, N] sums/kept? where @transA:0 = 1, @transB:0 = 1";
constexpr const char* kTransposed =
    "a[A...] b[B...] bias? residual/at?[Y...] @perm_a[#A] @perm_b[#B] @perm_y[#Y] -> y[Y...] sums/kept? "
    "where 2 <= #A, 2 <= #B";
constexpr const char* kScaled =
    "a:any[S..., K] b:any[N, K] scale_a:float[] scale_b:float[] bias?:any residual?:any[S..., N] -> y:any[S..., N]";

// A Gemm has no step `bias`: its C is one.
Epilogue after_gemm() {
  using enum EpilogueStep;
  return {kResidual,         kKeep,    kRelu,   kGelu, kGeluTanh, kReluGradient, kGeluGradient,
          kGeluTanhGradient, kSumsOfA, kSumsOfB};
}

Epilogue after_matmul() {
  Epilogue steps = after_gemm();
  steps.insert(steps.begin(), EpilogueStep::kBias);
  return steps;
}

// The equation says the rest.
void check_equation(const Node& node) {
  const auto has_rank = [](const Value* v) { return v && v->has_rank(); };
  if (std::all_of(node.inputs().begin(), node.inputs().end(), has_rank)) parse_einsum(node);
}

}  // namespace

std::vector<Operator> product_operators() {
  return {
      {"Det", "x[S..., M, M] -> y[S...]"},
      {"DetGrad", "dy[S...] x[S..., M, M] -> dx[S..., M, M]", kDomain, kOneFloat},
      {"Inverse", "x[S..., M, M] -> y[S..., M, M]", kDomain, kOneFloat},
      Operator{"MatMul", kMatMul, "", kOfSchema, nullptr, OperatorKind::kProduct}
          .narrow({0, 1}, {0})
          .in_precision(PrecisionRole::kProduct)
          .weights_at({0, 1})
          .counting(multiply_adds_of_matmul),
      Operator{"Gemm", kGemm, "", kOfSchema, nullptr, OperatorKind::kProduct}
          .narrow({0, 1}, {0})
          .in_precision(PrecisionRole::kProduct)
          .weights_at({0, 1, 2})
          .counting(multiply_adds_of_gemm),
      Operator{"Einsum", "x more* -> y", "", kOfSchema, check_equation}
          .weights_at({0, 1, 2, 3})
          .counting(multiply_adds_of_einsum),
      Operator{"MatMul", kOurMatMul, kDomain, kOfSchema, nullptr, OperatorKind::kProduct}
          .with_epilogue(after_matmul())
          .narrow({0, 1, 2}, {0})
          .counting(multiply_adds_of_matmul),
      Operator{"Gemm", kOurGemm, kDomain, kOfSchema, nullptr, OperatorKind::kProduct}
          .with_epilogue(after_gemm())
          .narrow({0, 1, 2}, {0})
          .counting(multiply_adds_of_gemm),
      Operator{"TransposedMatMul", kTransposed, kDomain, kOfSchema, nullptr, OperatorKind::kProduct}
          .with_epilogue(after_matmul())
          .narrow({0, 1, 2}, {0})
          .counting(multiply_adds_of_transposed_matmul),
      // Operands of 8-bit floats, with k innermost (kernels/functions/float8.cc).
      Operator{"ScaledMatMul", kScaled, kDomain}
          .with_epilogue({EpilogueStep::kBias, EpilogueStep::kResidual})
          .counting(multiply_adds_of_matmul),
  };
}

}  // namespace onnx_train
