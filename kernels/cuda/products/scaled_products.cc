// ScaledMatMul: products of 8-bit operands by cuBLASLt, which multiplies them along contiguous rows of both. Sums are
// float32 throughout: the library's fast accumulation, which adds up fewer bits, stays off.
#include <algorithm>

#include "kernels/cuda/choices/fastest.h"
#include "kernels/cuda/products/algorithms.h"
#include "kernels/cuda/support/kernels.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

constexpr int kScaleOfA = 2, kScaleOfB = 3, kFirstTerm = 4;  // inputs
constexpr int64_t kSizes = 16;                               // m, n and k are multiples of it

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

// The inputs that are added to the product, or -1.
struct Terms {
  int bias = -1, matrix = -1;
};

// Returns nothing if the library does not add them.
std::optional<Terms> terms_of(const NodeSpec& spec) {
  Terms terms;
  for (int i = kFirstTerm; i < spec.num_inputs(); ++i) {
    if (!spec.has_input(i)) return std::nullopt;
    const bool is_matrix = spec.in_shape(i) == spec.out_shape();
    int& term = is_matrix ? terms.matrix : terms.bias;
    const DType type = is_matrix ? spec.out_type() : DType::kBFloat16;
    if (term >= 0 || spec.in_type(i) != type || (!is_matrix && !is_row_of_result(spec, i))) return std::nullopt;
    term = i;
  }
  return terms;
}

bool supports(const NodeSpec& spec) {
  if (!has_8_bit_product(spec.in_type(0), spec.in_type(1), spec.out_type()) || spec.num_outputs() != 1) return false;
  if (spec.node().has_attr("activation") || spec.node().has_attr("activation_gradient") || !terms_of(spec))
    return false;
  const Product p = product_of(spec);
  const std::initializer_list<int64_t> sizes = {p.m, p.n, p.k};
  return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size > 0 && size % kSizes == 0; });
}

Prepared prepare_scaled_matmul(const NodeSpec& spec) {
  const auto [bias, matrix] = *terms_of(spec);
  Product p = product_of(spec);
  p.accumulate = matrix >= 0;
  std::vector<Form> forms;
  add_algorithms(
      spec, p, bias >= 0 ? Epilogue::kBias : Epilogue::kNone, "", &forms,
      [bias = bias, matrix = matrix](const LibraryProduct& product) -> Prepared {
        const auto run = [=](const Launch& launch) {
          const auto input = [&](int i) { return i < 0 ? nullptr : launch.inputs[i]; };
          product.run(launch, launch.inputs[0], launch.inputs[1], launch.outputs[0], input(bias), launch.workspace,
                      input(matrix), nullptr, {input(kScaleOfA), input(kScaleOfB)});
        };
        return {run, product.workspace(), matrix < 0 ? std::vector<InPlace>() : std::vector<InPlace>{{0, matrix}}};
      });
  if (forms.empty()) fail_as(ErrorCode::kDevice, spec.node().label(), ": cuBLASLt has no algorithm for this product");
  return fastest(spec, LibraryProduct::version(), forms);
}

}  // namespace

std::vector<Kernel> scaled_product_kernels() { return {{"ScaledMatMul", supports, prepare_scaled_matmul, kDomain}}; }

}  // namespace onnx_train::cuda
