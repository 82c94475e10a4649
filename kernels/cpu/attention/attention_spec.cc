#include <cmath>
#include <numeric>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/attention_mask.h"
#include "kernels/cpu/support/simd.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// Large enough for the products to run at full speed, small enough for the scores of a block to stay in the L2 cache.
constexpr int64_t kQueries = 64, kKeys = 128;

// `permutation[i]` is the axis in memory of axis i of the matrices.
Heads heads_of(const NodeSpec& spec, const Shape& memory, const Shape& permutation) {
  Shape sorted = permutation, axes(memory.size());
  std::iota(axes.begin(), axes.end(), 0);
  std::sort(sorted.begin(), sorted.end());
  if (sorted != axes || axes.size() < 2) fail(spec.node().label(), ": its permutations do not fit its operands");
  Shape strides(memory.size(), 1);
  for (size_t i = memory.size(); i-- > 1;) strides[i - 1] = strides[i] * memory[i];
  const auto at = [&](const Shape& of, size_t i) { return of[static_cast<size_t>(permutation[i])]; };
  const size_t batch = memory.size() - 2;
  Heads heads{{}, {0}, at(memory, batch), at(memory, batch + 1), at(strides, batch), false};
  heads.in_rows = at(strides, batch + 1) == 1 || heads.width == 1;
  for (size_t axis = 0; axis < batch; ++axis) {
    std::vector<int64_t> starts;
    for (const int64_t start : heads.starts) {
      for (int64_t i = 0; i < at(memory, axis); ++i) starts.push_back(start + i * at(strides, axis));
    }
    heads.batch.push_back(at(memory, axis));
    heads.starts = std::move(starts);
  }
  return heads;
}

// Whether batches agree and the inner dimensions of both products fit.
bool fit(const AttentionSpec& a) {
  return a.q.batch == a.k.batch && a.q.batch == a.v.batch && a.q.width == a.k.width && a.k.rows == a.v.rows;
}

bool is_like(const Heads& heads, const Heads& batch, int64_t rows, int64_t width) {
  return heads.in_rows && heads.batch == batch.batch && heads.rows == rows && heads.width == width;
}

bool are_float32(const NodeSpec& spec, int inputs) {
  for (int i = 0; i < inputs; ++i) {
    if (!spec.has_input(i) || spec.in_type(i) != DType::kFloat || spec.in_size(i) == 0) return false;
  }
  for (int i = 0; i < 3; ++i) {
    if (!spec.has_output(i) || spec.out_type(i) != DType::kFloat || spec.out_size(i) == 0) return false;
  }
  return true;
}

}  // namespace

Heads heads_of_input(const NodeSpec& spec, int i, const char* attribute) {
  return heads_of(spec, spec.in_shape(i), spec.node().attr(attribute, Shape{}));
}

Heads heads_of_output(const NodeSpec& spec, int i, const char* attribute) {
  const Shape to_memory = spec.node().attr(attribute, Shape{});
  Shape from_memory(to_memory.size());
  for (size_t axis = 0; axis < to_memory.size(); ++axis) {
    const auto to = static_cast<size_t>(to_memory[axis]);
    if (to < from_memory.size()) from_memory[to] = static_cast<int64_t>(axis);
  }
  return heads_of(spec, spec.out_shape(i), from_memory);
}

AttentionSpec attention_of(const NodeSpec& spec, int first) {
  AttentionSpec attention;
  attention.q = heads_of_input(spec, first, "perm_q");
  attention.k = heads_of_input(spec, first + 1, "perm_k");
  attention.v = heads_of_input(spec, first + 2, "perm_v");
  attention.scale = spec.node().attr("scale", 1.0f);
  attention.nan_safe = spec.node().attr("guarded", 0) != 0;
  attention.queries = {attention.q.rows, std::min(kQueries, attention.q.rows)};
  attention.keys = {attention.k.rows, std::min(kKeys, attention.k.rows)};
  return attention;
}

bool supports_attention(const NodeSpec& spec) {
  if (!are_float32(spec, 3)) return false;
  const AttentionSpec a = attention_of(spec, 0);
  return fit(a) && a.q.in_rows && a.k.in_rows && a.v.in_rows &&
         is_like(heads_of_output(spec, 0, "perm_y"), a.q, a.q.rows, a.v.width) && supports_mask(spec, 3, a);
}

bool supports_attention_gradient(const NodeSpec& spec) {
  if (!are_float32(spec, 7)) return false;
  const AttentionSpec a = attention_of(spec, 1);
  return fit(a) && a.q.in_rows && a.k.in_rows && a.v.in_rows &&
         is_like(heads_of_input(spec, 0, "perm_dy"), a.q, a.q.rows, a.v.width) &&
         is_like(heads_of_input(spec, 4, "perm_y"), a.q, a.q.rows, a.v.width) &&
         is_like(heads_of_output(spec, 0, "perm_dq"), a.q, a.q.rows, a.q.width) &&
         is_like(heads_of_output(spec, 1, "perm_dk"), a.q, a.k.rows, a.k.width) &&
         is_like(heads_of_output(spec, 2, "perm_dv"), a.q, a.v.rows, a.v.width) && supports_mask(spec, 7, a);
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
