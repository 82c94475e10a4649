#include <cmath>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/support/simd.h"

namespace onnx_train::cpu {
namespace {

// Large enough for the products to run at full speed, small enough for the scores of a block to stay in the L2 cache.
constexpr int64_t kQueries = 64, kKeys = 128;

}  // namespace

AttentionSpec attention_of(const NodeSpec& spec) {
  AttentionSpec attention{attention_operands(spec), {}, {}};
  attention.queries = {attention.q.rows, std::min(kQueries, attention.q.rows)};
  attention.keys = {attention.k.rows, std::min(kKeys, attention.k.rows)};
  return attention;
}

float largest_norm(const Rows& rows, const Rows& beside) {
  const auto norm = [](const Rows& of) {
    float largest = 0, undefined = 0;
    vectorized([&] {
      for (int64_t i = 0; i < of.count; ++i) {
        const float* row = of.begin + i * of.stride;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < of.width; ++j) sum += row[j] * row[j];
        largest = sum > largest ? sum : largest;
        undefined += 0 * sum;
      }
    });
    return std::sqrt(largest) + undefined;
  };
  return norm(rows) + 0 * norm(beside);
}

size_t TileProducts::scratch_bytes() const {
  size_t most = 0;
  for (const Gemm<float>& product : products_) most = std::max(most, product.scratch_bytes());
  return cache_lines(most);
}

size_t TileProducts::packed_bytes() const {
  size_t most = 0;
  for (const Gemm<float>& product : products_) most = std::max(most, product.packed_bytes());
  return cache_lines(most);
}

}  // namespace onnx_train::cpu
