// Batch normalization by blocks of channels: the operations on one block, and how blocks are divided among threads.
// Pure functions; any thread may call them on its own block.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/normalization/batch_normalization.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"

namespace onnx_train::cpu {

// Float32 buffers, three per share, for rows of bfloat16 images that are too long for Columns.
template <typename X>
struct Stage {
  static constexpr bool kIsUsed = !std::is_same_v<X, Computed<X>>;
  float* memory;
  int64_t rest;
  static size_t bytes(const ChannelLayout& layout, int64_t shares) {
    if (!kIsUsed || layout.is_short()) return 0;
    return static_cast<size_t>(3 * layout.rest * shares) * sizeof(float);
  }
  float* row(const ChannelBlock& block, int which) const { return memory + (3 * block.share + which) * rest; }
  float* widened(const ChannelBlock& block, int which, const X* from) const {
    vectorized([&] { convert_row(from, rest, row(block, which)); });
    return row(block, which);
  }
};

inline void add(Sums* to, const Sums& sums) {
  to->first += sums.first;
  to->second += sums.second;
}

// Σ (x - shift) and Σ (x - shift)² of each channel of the block.
template <typename X, typename T>
void moments(const X* x, const T* shift, const ChannelBlock& block, const ChannelLayout& layout, const Stage<X>& stage,
             Sums* sums) {
  const int64_t at = block.at(layout), stride = layout.stride(), rest = layout.rest;
  if (layout.is_short()) {
    const Columns<T> shifts(shift, block, layout);
    reduce_columns<T>(block, layout, sums, [&](int64_t row, int64_t rows, T* first, T* second) {
      vectorized([&] {
        add_shifted_moments(x + at + row * stride, shifts.values, rows, block.width(layout), stride, first, second);
      });
    });
  } else if constexpr (Stage<X>::kIsUsed) {
    for (int64_t r = 0; r < block.rows(); ++r) {
      const float* row = stage.widened(block, 0, x + at + r * stride);
      add(sums, vectorized([&] { return shifted_moments(row, shift[block.first], 1, rest, rest); }));
    }
  } else {
    *sums = vectorized([&] { return shifted_moments(x + at, shift[block.first], block.rows(), rest, stride); });
  }
}

// Σ dy and Σ dy (x - mean) of each channel of the block.
template <typename X, typename T>
void gradient_moments(const X* x, const X* dy, const T* mean, const ChannelBlock& block, const ChannelLayout& layout,
                      const Stage<X>& stage, Sums* sums) {
  const int64_t at = block.at(layout), stride = layout.stride(), rest = layout.rest;
  if (layout.is_short()) {
    const Columns<T> means(mean, block, layout);
    reduce_columns<T>(block, layout, sums, [&](int64_t row, int64_t rows, T* first, T* second) {
      const int64_t from = at + row * stride;
      vectorized([&] {
        add_gradient_sums(x + from, dy + from, means.values, rows, block.width(layout), stride, first, second);
      });
    });
  } else if constexpr (Stage<X>::kIsUsed) {
    for (int64_t r = 0; r < block.rows(); ++r) {
      const float* row = stage.widened(block, 0, x + at + r * stride);
      const float* dy_row = stage.widened(block, 1, dy + at + r * stride);
      add(sums, vectorized([&] { return gradient_sums(row, dy_row, mean[block.first], 1, rest, rest); }));
    }
  } else {
    *sums = vectorized([&] { return gradient_sums(x + at, dy + at, mean[block.first], block.rows(), rest, stride); });
  }
}

// y = (x - mean) factor + bias
template <typename X, typename T, typename Y>
void scale_block(const X* x, const T* mean, const T* factor, const T* bias, const ChannelBlock& block,
                 const ChannelLayout& layout, Y* y) {
  const int64_t at = block.at(layout), c = block.first;
  if (!layout.is_short()) {
    return vectorized(
        [&] { scale_rows(x + at, mean[c], factor[c], bias[c], block.rows(), layout.rest, layout.stride(), y + at); });
  }
  const Columns<T> means(mean, block, layout), factors(factor, block, layout), biases(bias, block, layout);
  vectorized([&] {
    scale_columns(x + at, means.values, factors.values, biases.values, block.rows(), block.width(layout),
                  layout.stride(), y + at);
  });
}

// y = relu((x - mean) factor + bias + residual), rounded to R after each step; the residual may be null.
template <typename R, typename X, typename T, typename Y>
void scale_and_rectify_block(const X* x, const X* residual, const T* mean, const T* factor, const T* bias,
                             const ChannelBlock& block, const ChannelLayout& layout, Y* y) {
  const int64_t at = block.at(layout), c = block.first;
  if (residual) residual += at;
  if (!layout.is_short()) {
    const auto run = [&](auto adds) {
      scale_rows_and_rectify<R, adds.value>(x + at, residual, mean[c], factor[c], bias[c], block.rows(), layout.rest,
                                            layout.stride(), y + at);
    };
    return vectorized([&] { residual ? run(std::true_type{}) : run(std::false_type{}); });
  }
  const Columns<T> means(mean, block, layout), factors(factor, block, layout), biases(bias, block, layout);
  const auto run = [&](auto adds) {
    scale_columns_and_rectify<R, adds.value>(x + at, residual, means.values, factors.values, biases.values,
                                             block.rows(), block.width(layout), layout.stride(), y + at);
  };
  vectorized([&] { residual ? run(std::true_type{}) : run(std::false_type{}); });
}

// dz = dy where y is positive, else 0; Σ dz and Σ dz (x - mean) of each channel of the block.
template <typename X, typename T, typename D>
void rectified_gradient_moments(const X* x, const X* dy, const X* y, const T* mean, const ChannelBlock& block,
                                const ChannelLayout& layout, const Stage<X>& stage, D* dz, Sums* sums) {
  const int64_t at = block.at(layout), stride = layout.stride(), rest = layout.rest;
  if (layout.is_short()) {
    const Columns<T> means(mean, block, layout);
    reduce_columns<T>(block, layout, sums, [&](int64_t row, int64_t rows, T* first, T* second) {
      const int64_t from = at + row * stride;
      vectorized([&] {
        add_rectified_gradient_sums(x + from, dy + from, y + from, means.values, rows, block.width(layout), stride,
                                    dz + from, first, second);
      });
    });
  } else if constexpr (Stage<X>::kIsUsed) {
    for (int64_t r = 0; r < block.rows(); ++r) {
      const int64_t from = at + r * stride;
      const float *row = stage.widened(block, 0, x + from), *y_row = stage.widened(block, 2, y + from);
      float* dy_row = stage.widened(block, 1, dy + from);
      add(sums, vectorized([&] {
            return rectified_gradient_sums(row, dy_row, y_row, mean[block.first], 1, rest, rest, dy_row);
          }));
      vectorized([&] { convert_row(dy_row, rest, dz + from); });
    }
  } else {
    *sums = vectorized([&] {
      return rectified_gradient_sums(x + at, dy + at, y + at, mean[block.first], block.rows(), rest, stride, dz + at);
    });
  }
}

// Per-channel coefficients of dx.
template <typename T>
struct Slopes {
  T *dy_mean, *along, *factor;
};

// dx = (dy - dy_mean - (x - mean) along) factor
template <typename X, typename D, typename T, typename Y>
void differentiate_block(const X* x, const D* dy, const T* mean, const Slopes<T>& slopes, const ChannelBlock& block,
                         const ChannelLayout& layout, Y* dx) {
  const int64_t at = block.at(layout), c = block.first;
  if (!layout.is_short()) {
    return vectorized([&] {
      differentiate_rows(x + at, dy + at, mean[c], slopes.dy_mean[c], slopes.along[c], slopes.factor[c], block.rows(),
                         layout.rest, layout.stride(), dx + at);
    });
  }
  const Columns<T> means(mean, block, layout), dy_means(slopes.dy_mean, block, layout),
      alongs(slopes.along, block, layout), factors(slopes.factor, block, layout);
  vectorized([&] {
    differentiate_columns(x + at, dy + at, means.values, dy_means.values, alongs.values, factors.values, block.rows(),
                          block.width(layout), layout.stride(), dx + at);
  });
}

// Runs a reduction over each channel and then a pass over its elements. With many blocks of channels, a thread does
// both while the block is in its cache; with few, the batch is cut into pieces whose sums are added in order. The cut
// depends only on shapes, so sums do not depend on the number of threads.
class PerChannel {
 public:
  PerChannel(const ChannelLayout& layout, int threads)
      : layout_(layout),
        blocks_((layout.channels + layout.block() - 1) / layout.block()),
        pieces_(layout.batch, std::max<int64_t>(1, layout.batch * blocks_ / kManyBlocks)) {
    const int64_t elements = layout.per_channel() * layout.block() / pieces_.count;
    const int64_t grain = std::max<int64_t>(1, kElementGrain / 2 / std::max<int64_t>(elements, 1));
    shares_ = std::clamp<int64_t>(blocks_ * pieces_.count / grain, 1, threads);
  }

  // Number of shares that the blocks are divided into. The blocks of one share run one after the other.
  int64_t shares() const { return shares_; }

  size_t workspace() const { return static_cast<size_t>(layout_.channels * pieces_.count) * sizeof(Sums); }

  // Callbacks: void reduce(block, sums of its channels); void finish(channel, sums); void apply(block).
  template <typename Reduce, typename Finish, typename Apply>
  void run(Sums* scratch, const Reduce& reduce, const Finish& finish, const Apply& apply) const {
    std::fill_n(scratch, layout_.channels * pieces_.count, Sums());
    if (pieces_.count == 1) {
      return for_each_block([&](const ChannelBlock& block, int64_t) {
        reduce(block, scratch + block.first);
        for (int64_t c = block.first; c < block.last; ++c) finish(c, scratch[c]);
        apply(block);
      });
    }
    for_each_block([&](const ChannelBlock& block, int64_t piece) {
      reduce(block, scratch + piece * layout_.channels + block.first);
    });
    for (int64_t c = 0; c < layout_.channels; ++c) {
      Sums total;
      for (int64_t p = 0; p < pieces_.count; ++p) {
        total.first += scratch[p * layout_.channels + c].first;
        total.second += scratch[p * layout_.channels + c].second;
      }
      finish(c, total);
    }
    for_each_block([&](const ChannelBlock& block, int64_t) { apply(block); });
  }

 private:
  static constexpr int64_t kManyBlocks = 16;

  template <typename F>
  void for_each_block(const F& f) const {
    const int64_t all = blocks_ * pieces_.count;
    parallel_for(shares_, 1, [&](int64_t share, int64_t end) {
      for (; share < end; ++share) {
        for (int64_t i = all * share / shares_; i < all * (share + 1) / shares_; ++i) {
          const int64_t piece = i % pieces_.count, first = i / pieces_.count * layout_.block();
          const int64_t last = std::min(first + layout_.block(), layout_.channels);
          f(ChannelBlock{first, last, pieces_.begin(piece), pieces_.end(piece), share}, piece);
        }
      }
    });
  }

  ChannelLayout layout_;
  int64_t blocks_;
  Pieces pieces_;
  int64_t shares_;
};

}  // namespace onnx_train::cpu
