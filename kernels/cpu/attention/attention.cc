// BlockAttention (kernels/functions/attention.cc): for each block of queries, the scores against all keys, then the
// softmax and the products with the values, tile by tile while the tiles are in the cache.
#include "kernels/cpu/attention/attention.h"

#include <cmath>
#include <limits>
#include <memory>

#include "kernels/cpu/attention/attention_mask.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/math/vector_math.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {

Prepared prepare_attention_gradient(const NodeSpec& spec);  // attention_gradient.cc

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Addresses {
  const float *q, *k, *v;
  const void* mask;
  float *y, *row_max, *sum;
};

GemmShape scores_shape(const AttentionSpec& a, int64_t queries, int64_t keys, int64_t stride) {
  return {.m = queries,
          .n = keys,
          .k = a.q.width,
          .a_row = a.q.row_stride,
          .b_row = 1,
          .b_column = a.k.row_stride,
          .y_row = stride,
          .packed = true,
          .one_thread = true};
}

GemmShape pv_shape(const AttentionSpec& a, const Heads& y, int64_t queries, int64_t keys, int64_t stride,
                   bool accumulate) {
  return {.m = queries,
          .n = a.v.width,
          .k = keys,
          .a_row = stride,
          .b_row = a.v.row_stride,
          .y_row = y.row_stride,
          .accumulate = accumulate,
          .one_thread = true};
}

// The work of one thread, with its products and their state.
class Share {
 public:
  Share(const AttentionSpec& a, const Heads& y, const MaskTiles& tiles)
      : a_(a),
        y_(y),
        tiles_(tiles),
        stride_(a.keys.size + 16),
        scores_(a.queries, a.keys, [&](int64_t m, int64_t n) { return scores_shape(a, m, n, stride_); }),
        first_(a.queries, a.keys, [&](int64_t m, int64_t n) { return pv_shape(a, y, m, n, stride_, false); }),
        next_(a.queries, a.keys, [&](int64_t m, int64_t n) { return pv_shape(a, y, m, n, stride_, true); }),
        packed_k_(static_cast<size_t>(a.keys.count())),
        live_(packed_k_.size()) {}

  // Bytes of scratch memory per thread.
  size_t workspace() const { return scratch_bytes() + packed_k_.size() * (scores_.packed_bytes() + tile_bytes()); }

  // Computes blocks [begin, end) of the query blocks of all heads.
  void run(const Addresses& at, const float* mask_tiles, char* workspace, int64_t begin, int64_t end) {
    int64_t packed = -1;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / a_.queries.count();
      if (head != packed) pack(at, head, workspace);
      packed = head;
      run_block(at, mask_tiles, workspace, head, balanced(i % a_.queries.count()));
    }
  }

 private:
  size_t scratch_bytes() const {
    return std::max({scores_.scratch_bytes(), first_.scratch_bytes(), next_.scratch_bytes()});
  }
  size_t tile_bytes() const { return cache_lines(static_cast<size_t>(a_.queries.size * stride_) * sizeof(float)); }
  float* tile(char* workspace, int64_t block) const {
    const size_t packed = packed_k_.size() * scores_.packed_bytes();
    return reinterpret_cast<float*>(workspace + scratch_bytes() + packed + static_cast<size_t>(block) * tile_bytes());
  }

  // Alternates between the first and the last blocks, so that with a causal mask every range of blocks holds about the
  // same work.
  int64_t balanced(int64_t i) const { return i % 2 == 0 ? i / 2 : a_.queries.count() - 1 - i / 2; }

  void pack(const Addresses& at, int64_t head, char* workspace) {
    const float* k = at.k + a_.k.starts[static_cast<size_t>(head)];
    const float* v = at.v + a_.v.starts[static_cast<size_t>(head)];
    char* to = workspace + scratch_bytes();
    for (int64_t j = 0; j < a_.keys.count(); ++j) {
      packed_k_[static_cast<size_t>(j)] = scores_.of(0, j).pack(k + a_.keys.begin(j) * a_.k.row_stride, to);
      to += scores_.packed_bytes();
    }
    key_norm_ = largest_norm({k, a_.k.rows, a_.k.width, a_.k.row_stride}, {v, a_.v.rows, a_.v.width, a_.v.row_stride});
  }

  void run_block(const Addresses& at, const float* mask_tiles, char* workspace, int64_t head, int64_t block) {
    const auto h = static_cast<size_t>(head);
    const int64_t rows = a_.queries.length(block), first_row = a_.queries.begin(block);
    const float* q = at.q + a_.q.starts[h] + first_row * a_.q.row_stride;
    const float bound = 1.001f * std::fabs(a_.scale) * key_norm_ * largest_norm({q, rows, a_.q.width, a_.q.row_stride});
    float* row_max = at.row_max + head * a_.queries.total + first_row;
    float* sum = at.sum + head * a_.queries.total + first_row;
    std::fill_n(row_max, rows, -kInfinity);
    std::fill_n(sum, rows, 0.0f);
    int64_t live = 0;
    for (int64_t j = 0; j < a_.keys.count(); ++j) {
      if (tiles_.is_empty(mask_tiles, head, block, j, bound)) continue;
      live_[static_cast<size_t>(live++)] = j;
      float* scores = tile(workspace, j);
      scores_.of(block, j).run(q, packed_k_[static_cast<size_t>(j)], scores, workspace);
      tiles_.apply(at.mask, mask_tiles, head, block, j, a_.scale, scores, stride_);
      raise(rows, a_.keys.length(j), scores, row_max);
    }
    const float* v = at.v + a_.v.starts[h];
    float* y = at.y + y_.starts[h] + first_row * y_.row_stride;
    for (int64_t i = 0; i < live; ++i) {
      const int64_t j = live_[static_cast<size_t>(i)];
      float* scores = tile(workspace, j);
      exponentiate(rows, a_.keys.length(j), row_max, scores, sum);
      (i == 0 ? first_ : next_).of(block, j).run(scores, v + a_.keys.begin(j) * a_.v.row_stride, y, workspace);
    }
    if (a_.nan_safe) {
      for (int64_t i = 0; i < rows; ++i) {
        if (row_max[i] <= a_.hidden) sum[i] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    divide(rows, sum, y);
  }

  // row_max = max(row_max, scores of the row)
  void raise(int64_t rows, int64_t n, const float* scores, float* row_max) const {
    vectorized([=, this] {
      for (int64_t i = 0; i < rows; ++i) {
        const float* row = scores + i * stride_;
        float most = row_max[i];
#pragma omp simd reduction(max : most)
        for (int64_t j = 0; j < n; ++j) most = row[j] > most ? row[j] : most;
        row_max[i] = most;
      }
    });
  }

  // scores = exp(scores - row_max), sum += Σ scores
  void exponentiate(int64_t rows, int64_t n, const float* row_max, float* scores, float* sum) const {
    vectorized([=, this] {
      for (int64_t i = 0; i < rows; ++i) {
        float* row = scores + i * stride_;
        const float most = row_max[i];
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t j = 0; j < n; ++j) {
          const float e = math::exp(row[j] - most);
          row[j] = e;
          total += e;
        }
        sum[i] += total;
      }
    });
  }

  // y = y / sum for each row. With nan_safe, a row whose probabilities are NaN becomes 0.
  void divide(int64_t rows, const float* sum, float* y) const {
    vectorized([=, this] {
      for (int64_t i = 0; i < rows; ++i) {
        float* row = y + i * y_.row_stride;
        if (a_.nan_safe && sum[i] != sum[i]) {
          std::fill_n(row, y_.width, 0.0f);
          continue;
        }
        const float factor = 1.0f / sum[i];
#pragma omp simd
        for (int64_t j = 0; j < y_.width; ++j) row[j] *= factor;
      }
    });
  }

  AttentionSpec a_;
  Heads y_;
  MaskTiles tiles_;
  int64_t stride_;  // row stride of a tile: not a power of two, so that rows do not share cache sets
  TileProducts scores_, first_, next_;
  std::vector<const float*> packed_k_;
  std::vector<int64_t> live_;
  float key_norm_ = 0;
};

Prepared prepare_attention(const NodeSpec& spec) {
  const AttentionSpec a = attention_of(spec);
  const MaskTiles tiles(mask_of(spec, a), a.queries, a.keys);
  const int64_t blocks = a.heads() * a.queries.count();
  const int64_t shares = std::clamp<int64_t>(blocks, 1, std::max(spec.threads(), 1));
  const auto states = std::make_shared<std::vector<Share>>();
  const Share share(a, heads_of(spec, AttentionTensor::kY), tiles);
  for (int64_t i = 0; i < shares; ++i) states->push_back(share);
  const size_t tile_bytes = cache_lines(tiles.workspace() * sizeof(float)), each = share.workspace();
  Prepared prepared;
  prepared.workspace = tile_bytes + static_cast<size_t>(shares) * each;
  const int q = place_of(spec, AttentionTensor::kQ).index, k = place_of(spec, AttentionTensor::kK).index,
            v = place_of(spec, AttentionTensor::kV).index, mask = mask_input(spec);
  prepared.run = [=, masked = spec.has_input(mask)](const Launch& launch) {
    const Addresses at{
        launch.in<float>(q),  launch.in<float>(k),  launch.in<float>(v), masked ? launch.inputs[mask] : nullptr,
        launch.out<float>(0), launch.out<float>(1), launch.out<float>(2)};
    float* mask_tiles = launch.scratch<float>();
    tiles.scan(at.mask, mask_tiles);
    parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        char* own = launch.scratch<char>() + tile_bytes + static_cast<size_t>(i) * each;
        (*states)[static_cast<size_t>(i)].run(at, mask_tiles, own, blocks * i / shares, blocks * (i + 1) / shares);
      }
    });
  };
  return prepared;
}

}  // namespace

std::vector<Kernel> attention_kernels() {
  return {
      {"BlockAttention", [](const NodeSpec& spec) { return supports_attention(spec, DType::kFloat); },
       prepare_attention, kDomain},
      {"BlockAttentionGrad", [](const NodeSpec& spec) { return supports_attention(spec, DType::kFloat); },
       prepare_attention_gradient, kDomain},
  };
}

}  // namespace onnx_train::cpu
