// BlockAttentionGrad (kernels/functions/attention.cc), one head at a time. The probabilities of each tile are
// recomputed from q, k and the row maxima and sums that the forward pass stored.
#include <cmath>
#include <memory>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/attention_mask.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/math/vector_math.h"

namespace onnx_train::cpu {
namespace {

struct Operands {
  AttentionSpec attention;
  Heads dy, y, dq, dk, dv;
};

struct Addresses {
  const float *dy, *q, *k, *v, *y, *row_max, *sum;
  const void* mask;
  float *dq, *dk, *dv;
};

// One block of queries: addresses of its first row in each operand, and values computed per row.
struct QueryBlock {
  int64_t head, block, rows;
  const float *q, *dy, *row_max;
  float* dq;
  float *inverse, *mean;  // 1 / sum; Σ dy y
};

void fill_zero(const Heads& heads, size_t head, float* matrices) {
  for (int64_t i = 0; i < heads.rows; ++i) {
    std::fill_n(matrices + heads.starts[head] + i * heads.row_stride, heads.width, 0.0f);
  }
}

// The shape of the product of rows of queries and the packed keys: a tile [queries, keys].
GemmShape queries_by_keys(const Heads& queries, const Heads& keys, int64_t m, int64_t n, int64_t stride) {
  return {.m = m,
          .n = n,
          .k = queries.width,
          .a_row = queries.row_stride,
          .b_row = 1,
          .b_column = keys.row_stride,
          .y_row = stride,
          .packed = true,
          .one_thread = true};
}

// sums += tile k
GemmShape tile_by_keys(const Heads& keys, const Heads& sums, int64_t m, int64_t k, int64_t stride) {
  return {.m = m,
          .n = keys.width,
          .k = k,
          .a_row = stride,
          .b_row = keys.row_stride,
          .y_row = sums.row_stride,
          .accumulate = true,
          .one_thread = true};
}

// sums += tileᵀ q
GemmShape tile_by_queries(const Heads& queries, const Heads& sums, int64_t k, int64_t m, int64_t stride) {
  return {.m = m,
          .n = queries.width,
          .k = k,
          .a_row = 1,
          .a_column = stride,
          .b_row = queries.row_stride,
          .y_row = sums.row_stride,
          .accumulate = true,
          .one_thread = true};
}

void differentiate_row(int64_t n, float row_max, float inverse, float mean, float scale, float* __restrict p,
                       float* __restrict ds) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const float probability = math::exp(p[j] - row_max) * inverse;
    p[j] = probability;
    ds[j] = probability * (ds[j] - mean) * scale;
  }
}

// The work of one thread, with its products and their state.
class Share {
 public:
  Share(const Operands& o, const MaskTiles& tiles)
      : o_(o),
        a_(o.attention),
        tiles_(tiles),
        stride_(a_.keys.size + 16),
        scores_(a_.queries, a_.keys, [&](auto m, auto n) { return queries_by_keys(a_.q, a_.k, m, n, stride_); }),
        dp_(a_.queries, a_.keys, [&](auto m, auto n) { return queries_by_keys(o.dy, a_.v, m, n, stride_); }),
        dq_(a_.queries, a_.keys, [&](auto m, auto n) { return tile_by_keys(a_.k, o.dq, m, n, stride_); }),
        dk_(a_.queries, a_.keys, [&](auto m, auto n) { return tile_by_queries(a_.q, o.dk, m, n, stride_); }),
        dv_(a_.queries, a_.keys, [&](auto m, auto n) { return tile_by_queries(o.dy, o.dv, m, n, stride_); }),
        packed_(static_cast<size_t>(a_.keys.count())) {}

  // Bytes of scratch memory per thread.
  size_t workspace() const {
    return scratch_bytes() + packed_.size() * packed_bytes() + 2 * tile_bytes() + 2 * row_bytes();
  }

  void run(const Addresses& at, const float* mask_tiles, char* workspace, int64_t head) {
    const auto h = static_cast<size_t>(head);
    pack(at, h, workspace + scratch_bytes());
    fill_zero(o_.dq, h, at.dq);
    fill_zero(o_.dk, h, at.dk);
    fill_zero(o_.dv, h, at.dv);
    for (int64_t block = 0; block < a_.queries.count(); ++block) run_block(at, mask_tiles, workspace, head, block);
  }

 private:
  struct Packed {
    const float *scores, *dp;
  };

  size_t scratch_bytes() const {
    return std::max(
        {scores_.scratch_bytes(), dp_.scratch_bytes(), dq_.scratch_bytes(), dk_.scratch_bytes(), dv_.scratch_bytes()});
  }
  size_t packed_bytes() const { return scores_.packed_bytes() + dp_.packed_bytes(); }
  size_t tile_bytes() const { return cache_lines(static_cast<size_t>(a_.queries.size * stride_) * sizeof(float)); }
  size_t row_bytes() const { return cache_lines(static_cast<size_t>(a_.queries.size) * sizeof(float)); }

  void pack(const Addresses& at, size_t head, char* to) {
    const float* k = at.k + a_.k.starts[head];
    const float* v = at.v + a_.v.starts[head];
    for (int64_t j = 0; j < a_.keys.count(); ++j) {
      Packed& packed = packed_[static_cast<size_t>(j)];
      const float* keys = k + a_.keys.begin(j) * a_.k.row_stride;
      packed.scores = scores_.of(0, j).pack(keys, to);
      to += scores_.packed_bytes();
      packed.dp = dp_.of(0, j).pack(v + a_.keys.begin(j) * a_.v.row_stride, to);
      to += dp_.packed_bytes();
    }
    key_norm_ = largest_norm({k, a_.k.rows, a_.k.width, a_.k.row_stride}, {v, a_.v.rows, a_.v.width, a_.v.row_stride});
  }

  void run_block(const Addresses& at, const float* mask_tiles, char* workspace, int64_t head, int64_t block) {
    const auto h = static_cast<size_t>(head);
    const int64_t first = a_.queries.begin(block), rows = a_.queries.length(block);
    const float* y = at.y + o_.y.starts[h] + first * o_.y.row_stride;
    char* const own = workspace + scratch_bytes() + packed_.size() * packed_bytes();
    float* p = reinterpret_cast<float*>(own);
    float* ds = reinterpret_cast<float*>(own + tile_bytes());
    const QueryBlock b{head,
                       block,
                       rows,
                       at.q + a_.q.starts[h] + first * a_.q.row_stride,
                       at.dy + o_.dy.starts[h] + first * o_.dy.row_stride,
                       at.row_max + head * a_.queries.total + first,
                       at.dq + o_.dq.starts[h] + first * o_.dq.row_stride,
                       reinterpret_cast<float*>(own + 2 * tile_bytes()),
                       reinterpret_cast<float*>(own + 2 * tile_bytes() + row_bytes())};
    start_rows(b, y, at.sum + head * a_.queries.total + first);
    const float norm =
        largest_norm({b.q, rows, a_.q.width, a_.q.row_stride}, {b.dy, rows, o_.dy.width, o_.dy.row_stride});
    const float bound = 1.001f * std::fabs(a_.scale) * key_norm_ * norm;
    for (int64_t j = 0; j < a_.keys.count(); ++j) {
      if (tiles_.is_empty(mask_tiles, head, block, j, bound)) continue;
      run_tile(at, mask_tiles, workspace, b, j, p, ds);
    }
  }

  void run_tile(const Addresses& at, const float* mask_tiles, char* scratch, const QueryBlock& b, int64_t j, float* p,
                float* ds) {
    const auto h = static_cast<size_t>(b.head);
    const Packed& packed = packed_[static_cast<size_t>(j)];
    scores_.of(b.block, j).run(b.q, packed.scores, p, scratch);
    tiles_.apply(at.mask, mask_tiles, b.head, b.block, j, a_.scale, p, stride_);
    dp_.of(b.block, j).run(b.dy, packed.dp, ds, scratch);
    differentiate(b, a_.keys.length(j), p, ds);
    tiles_.select(at.mask, b.head, b.block, j, ds, stride_);
    const int64_t key = a_.keys.begin(j);
    dv_.of(b.block, j).run(p, b.dy, at.dv + o_.dv.starts[h] + key * o_.dv.row_stride, scratch);
    dk_.of(b.block, j).run(ds, b.q, at.dk + o_.dk.starts[h] + key * o_.dk.row_stride, scratch);
    dq_.of(b.block, j).run(ds, at.k + a_.k.starts[h] + key * a_.k.row_stride, b.dq, scratch);
  }

  void start_rows(const QueryBlock& b, const float* y, const float* sum) const {
    vectorized([=, this] {
      for (int64_t i = 0; i < b.rows; ++i) {
        const float *dy_row = b.dy + i * o_.dy.row_stride, *y_row = y + i * o_.y.row_stride;
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t j = 0; j < a_.v.width; ++j) total += dy_row[j] * y_row[j];
        b.mean[i] = total;
        b.inverse[i] = 1.0f / sum[i];
      }
    });
  }

  // On entry p holds scores and ds holds dP; on return p holds probabilities and ds holds scale P (dP - mean).
  void differentiate(const QueryBlock& b, int64_t n, float* p, float* ds) const {
    vectorized([=, this] {
      for (int64_t i = 0; i < b.rows; ++i) {
        float *p_row = p + i * stride_, *ds_row = ds + i * stride_;
        if (a_.nan_safe && b.inverse[i] != b.inverse[i]) {
          std::fill_n(p_row, n, 0.0f);
          std::fill_n(ds_row, n, 0.0f);
        } else {
          differentiate_row(n, b.row_max[i], b.inverse[i], b.mean[i], a_.scale, p_row, ds_row);
        }
      }
    });
  }

  Operands o_;
  AttentionSpec a_;
  MaskTiles tiles_;
  int64_t stride_;  // row stride of a tile: not a power of two, so that rows do not share cache sets
  TileProducts scores_, dp_, dq_, dk_, dv_;
  std::vector<Packed> packed_;
  float key_norm_ = 0;
};

}  // namespace

Prepared prepare_attention_gradient(const NodeSpec& spec) {
  using enum AttentionTensor;
  const Operands operands{attention_of(spec),  heads_of(spec, kDy), heads_of(spec, kY),
                          heads_of(spec, kDq), heads_of(spec, kDk), heads_of(spec, kDv)};
  const AttentionSpec& a = operands.attention;
  const MaskTiles tiles(mask_of(spec, a), a.queries, a.keys);
  const int64_t heads = a.heads(), shares = std::clamp<int64_t>(heads, 1, std::max(spec.threads(), 1));
  const auto states = std::make_shared<std::vector<Share>>();
  const Share share(operands, tiles);
  for (int64_t i = 0; i < shares; ++i) states->push_back(share);
  const size_t tile_bytes = cache_lines(tiles.workspace() * sizeof(float)), each = share.workspace();
  Prepared prepared;
  prepared.workspace = tile_bytes + static_cast<size_t>(shares) * each;
  const auto index = [&](AttentionTensor tensor) { return place_of(spec, tensor).index; };
  prepared.run = [=, q = index(kQ), k = index(kK), v = index(kV), dq = index(kDq), dk = index(kDk), dv = index(kDv),
                  mask = mask_input(spec), masked = spec.has_input(mask_input(spec))](const Launch& launch) {
    const Addresses at{
        launch.in<float>(0),   launch.in<float>(q),   launch.in<float>(k),  launch.in<float>(v),
        launch.in<float>(4),   launch.in<float>(5),   launch.in<float>(6),  masked ? launch.inputs[mask] : nullptr,
        launch.out<float>(dq), launch.out<float>(dk), launch.out<float>(dv)};
    float* mask_tiles = launch.scratch<float>();
    tiles.scan(at.mask, mask_tiles);
    parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        char* own = launch.scratch<char>() + tile_bytes + static_cast<size_t>(i) * each;
        Share& state = (*states)[static_cast<size_t>(i)];
        for (int64_t head = heads * i / shares; head < heads * (i + 1) / shares; ++head) {
          state.run(at, mask_tiles, own, head);
        }
      }
    });
  };
  return prepared;
}

}  // namespace onnx_train::cpu
