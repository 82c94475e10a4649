// ScaledMatMul: products of 8-bit operands by cuBLASLt, which multiplies them along contiguous rows of both. Sums are
// float32 throughout: the library's fast accumulation, which adds up fewer bits, stays off.
#include <algorithm>

#include "kernels/cuda/choices/fastest.h"
#include "kernels/cuda/products/algorithms.h"
#include "kernels/cuda/support/kernels.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train::cuda {
namespace {

constexpr int kScaleOfA = 2, kScaleOfB = 3;  // inputs
constexpr int64_t kSizes = 16;               // m, n and k are multiples of it

Product product_of(const NodeSpec& spec) {
  const Shape b = spec.in_shape(1);
  Product p;
  p.k = b[1];
  p.n = b[0];
  p.m = spec.in_size(0) / std::max<int64_t>(p.k, 1);
  p.a = row_major_matrices({}, p.m, p.k);
  p.b = row_major_matrices({}, p.k, p.n, /*transposed=*/true);
  p.y = row_major_matrices({}, p.m, p.n);
  return p;
}

bool supports(const NodeSpec& spec) {
  if (!has_8_bit_product(spec.in_type(0), spec.in_type(1), spec.out_type())) return false;
  const int bias = input_at(spec.node(), "bias"), residual = input_at(spec.node(), "residual");
  if (bias >= 0 && (spec.in_type(bias) != DType::kBFloat16 || !is_row_of_result(spec, bias))) return false;
  if (residual >= 0 && (spec.in_type(residual) != spec.out_type() || spec.in_shape(residual) != spec.out_shape()))
    return false;
  const Product p = product_of(spec);
  const std::initializer_list<int64_t> sizes = {p.m, p.n, p.k};
  return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size > 0 && size % kSizes == 0; });
}

Prepared prepare_scaled_matmul(const NodeSpec& spec) {
  const int bias = input_at(spec.node(), "bias"), residual = input_at(spec.node(), "residual");
  Product p = product_of(spec);
  p.accumulate = residual >= 0;
  std::vector<Form> forms;
  add_algorithms(
      spec, p, bias >= 0 ? ProductVector::kBias : ProductVector::kNone, "", &forms,
      [=](const LibraryProduct& product) -> Prepared {
        const auto run = [=](const Launch& launch) {
          const auto input = [&](int i) { return i < 0 ? nullptr : launch.inputs[i]; };
          product.run(launch, launch.inputs[0], launch.inputs[1], launch.outputs[0], input(bias), launch.workspace,
                      input(residual), nullptr, {input(kScaleOfA), input(kScaleOfB)});
        };
        return {run, product.workspace(), residual < 0 ? std::vector<InPlace>() : std::vector<InPlace>{{0, residual}}};
      });
  if (forms.empty()) fail_as(ErrorCode::kDevice, spec.node().label(), ": cuBLASLt has no algorithm for this product");
  return fastest(spec, LibraryProduct::version(), forms);
}

}  // namespace

std::vector<Kernel> scaled_product_kernels() {
  return {Kernel{"ScaledMatMul", supports, prepare_scaled_matmul, kDomain}.with_epilogues(
      {"", "bias", "residual", "bias, residual"})};
}

}  // namespace onnx_train::cuda
