// Batch normalization on [batch, channels, rest]. Where `rest` is long, a channel's row is a vector of its own; where
// it is short, neighbouring channels together are one, and their parameters are repeated along it.
#include <cmath>

#include "kernels/cpu/normalization.h"
#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kShort = 32;   // elements of a row that is not worth a loop of its own
constexpr int64_t kWidth = 256;  // elements of the rows of a block of channels, at most

struct Layout {
  int64_t batch, channels, rest = 1;
  explicit Layout(const Shape& shape) : batch(shape[0]), channels(shape[1]) {
    for (size_t i = 2; i < shape.size(); ++i) rest *= shape[i];
  }
  int64_t stride() const { return channels * rest; }
  int64_t per_channel() const { return batch * rest; }
  bool is_short() const { return rest < kShort; }
  // Channels that are worked on together.
  int64_t block() const { return is_short() ? kWidth / std::max<int64_t>(rest, 1) : 1; }
};

// Channels [first, last) of the samples [begin, end).
struct Block {
  int64_t first, last, begin, end;
  int64_t at(const Layout& layout) const { return first * layout.rest + begin * layout.stride(); }
  int64_t width(const Layout& layout) const { return (last - first) * layout.rest; }
  int64_t rows() const { return end - begin; }
};

// ---- Long rows: one channel

// Σ (x - shift) and Σ (x - shift)²: with a shift near the mean, the variance does not cancel.
template <typename T>
ONNX_TRAIN_MULTIVERSION Sums shifted_moments(const T* __restrict x, T shift, int64_t rows, int64_t rest,
                                             int64_t stride) {
  Sums sums;
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * stride;
    T first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
    for (int64_t i = 0; i < rest; ++i) {
      const T d = row[i] - shift;
      first += d;
      second += d * d;
    }
    sums.first += static_cast<double>(first);
    sums.second += static_cast<double>(second);
  }
  return sums;
}

// dx = (dy - dy_mean - (x - mean) along) factor. dx may be x or dy.
template <typename T>
ONNX_TRAIN_MULTIVERSION void differentiate_rows(const T* x, const T* dy, T mean, T dy_mean, T along, T factor,
                                                int64_t rows, int64_t rest, int64_t stride, T* dx) {
  for (int64_t r = 0; r < rows; ++r) {
    const T *from = x + r * stride, *dy_from = dy + r * stride;
    T* to = dx + r * stride;
#pragma omp simd
    for (int64_t i = 0; i < rest; ++i) to[i] = (dy_from[i] - dy_mean - (from[i] - mean) * along) * factor;
  }
}

// ---- Short rows: a block of channels, each parameter repeated `rest` times

template <typename T>
struct Columns {
  alignas(64) T values[kWidth];
  Columns() = default;
  Columns(const T* per_channel, const Block& block, const Layout& layout) {
    for (int64_t c = block.first, i = 0; c < block.last; ++c) {
      for (int64_t end = i + layout.rest; i < end; ++i) values[i] = per_channel[c];
    }
  }
};

// The sums per column of at most kRows rows: a longer sum of float32 would lose digits.
constexpr int64_t kRows = 64;

template <typename T>
ONNX_TRAIN_MULTIVERSION void add_shifted_moments(const T* __restrict x, const T* __restrict shift, int64_t rows,
                                                 int64_t width, int64_t stride, T* __restrict first,
                                                 T* __restrict second) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const T d = x[r * stride + i] - shift[i];
      first[i] += d;
      second[i] += d * d;
    }
  }
}

template <typename T>
ONNX_TRAIN_MULTIVERSION void add_gradient_sums(const T* __restrict x, const T* __restrict dy, const T* __restrict mean,
                                               int64_t rows, int64_t width, int64_t stride, T* __restrict first,
                                               T* __restrict second) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      first[i] += dy[r * stride + i];
      second[i] += dy[r * stride + i] * (x[r * stride + i] - mean[i]);
    }
  }
}

template <typename T>
ONNX_TRAIN_MULTIVERSION void scale_columns(const T* x, const T* mean, const T* factor, const T* bias, int64_t rows,
                                           int64_t width, int64_t stride, T* y) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      y[r * stride + i] = (x[r * stride + i] - mean[i]) * factor[i] + bias[i];
    }
  }
}

template <typename T>
ONNX_TRAIN_MULTIVERSION void differentiate_columns(const T* x, const T* dy, const T* mean, const T* dy_mean,
                                                   const T* along, const T* factor, int64_t rows, int64_t width,
                                                   int64_t stride, T* dx) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = r * stride + i;
      dx[at] = (dy[at] - dy_mean[i] - (x[at] - mean[i]) * along[i]) * factor[i];
    }
  }
}

// Calls add(first row, rows, first sums, second sums) for the block's rows, and adds its columns up by channel.
template <typename T, typename Add>
void reduce_columns(const Block& block, const Layout& layout, Sums* sums, const Add& add) {
  for (int64_t row = 0; row < block.rows(); row += kRows) {
    Columns<T> first, second;
    std::fill_n(first.values, kWidth, T{0});
    std::fill_n(second.values, kWidth, T{0});
    add(row, std::min(kRows, block.rows() - row), first.values, second.values);
    for (int64_t i = 0; i < block.width(layout); ++i) {
      sums[i / layout.rest].first += static_cast<double>(first.values[i]);
      sums[i / layout.rest].second += static_cast<double>(second.values[i]);
    }
  }
}

// ---- Both

// Σ (x - shift) and Σ (x - shift)² of each channel of the block.
template <typename T>
void moments(const T* x, const T* shift, const Block& block, const Layout& layout, Sums* sums) {
  const T* from = x + block.at(layout);
  if (!layout.is_short()) {
    *sums = shifted_moments(from, shift[block.first], block.rows(), layout.rest, layout.stride());
    return;
  }
  const Columns<T> shifts(shift, block, layout);
  reduce_columns<T>(block, layout, sums, [&](int64_t row, int64_t rows, T* first, T* second) {
    add_shifted_moments(from + row * layout.stride(), shifts.values, rows, block.width(layout), layout.stride(), first,
                        second);
  });
}

// Σ dy and Σ dy (x - mean) of each channel of the block.
template <typename T>
void gradient_moments(const T* x, const T* dy, const T* mean, const Block& block, const Layout& layout, Sums* sums) {
  const int64_t at = block.at(layout);
  if (!layout.is_short()) {
    *sums = gradient_sums(x + at, dy + at, mean[block.first], block.rows(), layout.rest, layout.stride());
    return;
  }
  const Columns<T> means(mean, block, layout);
  reduce_columns<T>(block, layout, sums, [&](int64_t row, int64_t rows, T* first, T* second) {
    const int64_t from = at + row * layout.stride();
    add_gradient_sums(x + from, dy + from, means.values, rows, block.width(layout), layout.stride(), first, second);
  });
}

// y = (x - mean) factor + bias
template <typename T>
void scale_block(const T* x, const T* mean, const T* factor, const T* bias, const Block& block, const Layout& layout,
                 T* y) {
  const int64_t at = block.at(layout), c = block.first;
  if (!layout.is_short()) {
    return scale_rows(x + at, mean[c], factor[c], bias[c], block.rows(), layout.rest, layout.stride(), y + at);
  }
  const Columns<T> means(mean, block, layout), factors(factor, block, layout), biases(bias, block, layout);
  scale_columns(x + at, means.values, factors.values, biases.values, block.rows(), block.width(layout), layout.stride(),
                y + at);
}

// What dx needs of each channel.
template <typename T>
struct Slopes {
  T *dy_mean, *along, *factor;
};

// dx = (dy - dy_mean - (x - mean) along) factor
template <typename T>
void differentiate_block(const T* x, const T* dy, const T* mean, const Slopes<T>& slopes, const Block& block,
                         const Layout& layout, T* dx) {
  const int64_t at = block.at(layout), c = block.first;
  if (!layout.is_short()) {
    return differentiate_rows(x + at, dy + at, mean[c], slopes.dy_mean[c], slopes.along[c], slopes.factor[c],
                              block.rows(), layout.rest, layout.stride(), dx + at);
  }
  const Columns<T> means(mean, block, layout), dy_means(slopes.dy_mean, block, layout),
      alongs(slopes.along, block, layout), factors(slopes.factor, block, layout);
  differentiate_columns(x + at, dy + at, means.values, dy_means.values, alongs.values, factors.values, block.rows(),
                        block.width(layout), layout.stride(), dx + at);
}

// Runs a reduction over each channel and then a pass over it. With many blocks of channels, a thread does both while
// the block is in its cache; with few, the batch is cut into pieces, whose sums are added in order. The cut depends on
// shapes alone, so the sums do not depend on the number of threads.
class PerChannel {
 public:
  explicit PerChannel(const Layout& layout)
      : layout_(layout),
        blocks_((layout.channels + layout.block() - 1) / layout.block()),
        pieces_(layout.batch, std::max<int64_t>(1, layout.batch * blocks_ / kManyBlocks)) {}

  size_t workspace() const { return static_cast<size_t>(layout_.channels * pieces_.count) * sizeof(Sums); }

  // void reduce(block, its channels' sums); void finish(channel, sums); void apply(block).
  template <typename Reduce, typename Finish, typename Apply>
  void run(Sums* scratch, const Reduce& reduce, const Finish& finish, const Apply& apply) const {
    std::fill_n(scratch, layout_.channels * pieces_.count, Sums());
    if (pieces_.count == 1) {
      return for_each_block([&](const Block& block, int64_t) {
        reduce(block, scratch + block.first);
        for (int64_t c = block.first; c < block.last; ++c) finish(c, scratch[c]);
        apply(block);
      });
    }
    for_each_block(
        [&](const Block& block, int64_t piece) { reduce(block, scratch + piece * layout_.channels + block.first); });
    for (int64_t c = 0; c < layout_.channels; ++c) {
      Sums total;
      for (int64_t p = 0; p < pieces_.count; ++p) {
        total.first += scratch[p * layout_.channels + c].first;
        total.second += scratch[p * layout_.channels + c].second;
      }
      finish(c, total);
    }
    for_each_block([&](const Block& block, int64_t) { apply(block); });
  }

 private:
  static constexpr int64_t kManyBlocks = 16;

  template <typename F>
  void for_each_block(const F& f) const {
    const int64_t elements = layout_.per_channel() * layout_.block() / pieces_.count;
    const int64_t grain = std::max<int64_t>(1, kElementGrain / 2 / std::max<int64_t>(elements, 1));
    parallel_for(blocks_ * pieces_.count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t piece = i % pieces_.count, first = i / pieces_.count * layout_.block();
        f(Block{first, std::min(first + layout_.block(), layout_.channels), pieces_.begin(piece), pieces_.end(piece)},
          piece);
      }
    });
  }

  Layout layout_;
  int64_t blocks_;
  Pieces pieces_;
};

// All inputs have one type; x and dy one shape, the others an element for each channel.
bool supports_channels(const NodeSpec& s) {
  const Shape shape = s.in_shape(0);
  if (!is_float_or_double(s.in_type(0)) || shape.size() < 2) return false;
  for (int i = 1; i < s.num_inputs(); ++i) {
    if (!s.has_input(i) || s.in_type(i) != s.in_type(0)) return false;
    const bool dy = i == 4 && s.node().domain() == kDomain;
    if (dy ? s.in_shape(i) != shape : s.in_shape(i) != Shape{shape[1]}) return false;
  }
  return true;
}

// ---- Inference: mean, variance and so the factors are known from the start

Prepared prepare_inference(const NodeSpec& s) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Layout layout(s.in_shape(0));
    const PerChannel channels(layout);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const size_t sums_bytes = channels.workspace();
    const auto run = [=](const Args& a) {
      const T *x = a.in<T>(0), *scale = a.in<T>(1), *bias = a.in<T>(2), *mean = a.in<T>(3), *variance = a.in<T>(4);
      T* factor = reinterpret_cast<T*>(a.scratch<char>() + sums_bytes);
      channels.run(
          a.scratch<Sums>(), [](const Block&, Sums*) {},
          [&](int64_t c, Sums) {
            factor[c] =
                static_cast<T>(static_cast<double>(scale[c]) / std::sqrt(static_cast<double>(variance[c]) + epsilon));
          },
          [&](const Block& block) { scale_block(x, mean, factor, bias, block, layout, a.out<T>()); });
    };
    return {run, sums_bytes + static_cast<size_t>(layout.channels) * sizeof(T), {{0, 0}}};
  });
}

bool supports_inference(const NodeSpec& s) {
  return supports_channels(s) && s.num_outputs() == 1 && s.node().attr("training_mode", 0) == 0;
}

// ---- Training: the body of BatchNormalizationTrain

// A value near each channel's mean: that of some of its first elements.
template <typename T>
void guess_means(const T* x, const Layout& layout, T* guess) {
  const int64_t some = std::min<int64_t>(layout.rest, kWidth);
  for (int64_t c = 0; c < layout.channels; ++c) {
    guess[c] = layout.per_channel() > 0 ? sum(x + c * layout.rest, some) / static_cast<T>(some) : T{0};
  }
}

Prepared prepare_train(const NodeSpec& s) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Layout layout(s.in_shape(0));
    const PerChannel channels(layout);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const size_t sums_bytes = channels.workspace(), count = static_cast<size_t>(layout.channels);
    const bool has_mean = s.has_output(1), has_variance = s.has_output(2);
    const auto run = [=](const Args& a) {
      const T *x = a.in<T>(0), *scale = a.in<T>(1), *bias = a.in<T>(2);
      // Per channel; the mean and the variance are here when they are no outputs.
      T* guess = reinterpret_cast<T*>(a.scratch<char>() + sums_bytes);
      T *factor = guess + count, *mean = has_mean ? a.out<T>(1) : guess + 2 * count;
      T* variance = has_variance ? a.out<T>(2) : guess + 3 * count;
      const double n = static_cast<double>(layout.per_channel());
      guess_means(x, layout, guess);
      channels.run(
          a.scratch<Sums>(), [&](const Block& block, Sums* sums) { moments(x, guess, block, layout, sums); },
          [&](int64_t c, Sums sums) {
            const double offset = sums.first / n;
            const double square = std::max(sums.second / n - offset * offset, 0.0);
            mean[c] = static_cast<T>(static_cast<double>(guess[c]) + offset);
            variance[c] = static_cast<T>(square);
            factor[c] = static_cast<T>(static_cast<double>(scale[c]) / std::sqrt(square + epsilon));
          },
          [&](const Block& block) { scale_block(x, mean, factor, bias, block, layout, a.out<T>()); });
    };
    return {run, sums_bytes + 4 * count * sizeof(T)};
  });
}

// ---- Gradients: the bodies of BatchNormalizationGrad and BatchNormalizationFrozenGrad

// With inv_std = 1 / sqrt(var + epsilon): dscale = inv_std Σ dy (x - mean), dbias = Σ dy, and in training
//   dx = (dy - dbias / n - (x - mean) inv_std² Σ dy (x - mean) / n) scale inv_std
// Frozen, dx = dy scale inv_std.
Prepared prepare_gradient(const NodeSpec& s, bool frozen) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Layout layout(s.in_shape(0));
    const PerChannel channels(layout);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const size_t sums_bytes = channels.workspace(), count = static_cast<size_t>(layout.channels);
    const bool has_dx = s.has_output(0), has_dscale = s.has_output(1), has_dbias = s.has_output(2);
    const auto run = [=](const Args& a) {
      const T *x = a.in<T>(0), *scale = a.in<T>(1), *mean = a.in<T>(2), *variance = a.in<T>(3), *dy = a.in<T>(4);
      T* slopes_memory = reinterpret_cast<T*>(a.scratch<char>() + sums_bytes);
      const Slopes<T> slopes = {slopes_memory, slopes_memory + count, slopes_memory + 2 * count};
      const double n = static_cast<double>(layout.per_channel());
      const bool needs_sums = !frozen || has_dscale || has_dbias;
      channels.run(
          a.scratch<Sums>(),
          [&](const Block& block, Sums* sums) {
            if (needs_sums) gradient_moments(x, dy, mean, block, layout, sums);
          },
          [&](int64_t c, Sums sums) {
            const double inv_std = 1 / std::sqrt(static_cast<double>(variance[c]) + epsilon);
            if (has_dscale) a.out<T>(1)[c] = static_cast<T>(sums.second * inv_std);
            if (has_dbias) a.out<T>(2)[c] = static_cast<T>(sums.first);
            slopes.dy_mean[c] = frozen ? T{0} : static_cast<T>(sums.first / n);
            slopes.along[c] = frozen ? T{0} : static_cast<T>(sums.second / n * inv_std * inv_std);
            slopes.factor[c] = static_cast<T>(static_cast<double>(scale[c]) * inv_std);
          },
          [&](const Block& block) {
            if (!has_dx) return;
            if (frozen) {  // the other slopes are zeros
              scale_block(dy, slopes.dy_mean, slopes.factor, slopes.along, block, layout, a.out<T>(0));
            } else {
              differentiate_block(x, dy, mean, slopes, block, layout, a.out<T>(0));
            }
          });
    };
    return {run, sums_bytes + 3 * count * sizeof(T), {{0, 4}, {0, 0}}};
  });
}

}  // namespace

std::vector<Kernel> batch_normalization_kernels() {
  const auto gradient = [](bool frozen) { return [frozen](const NodeSpec& s) { return prepare_gradient(s, frozen); }; };
  return {
      {"BatchNormalization", supports_inference, prepare_inference},
      {"BatchNormalizationTrain", supports_channels, prepare_train, kDomain},
      {"BatchNormalizationGrad", supports_channels, gradient(false), kDomain},
      {"BatchNormalizationFrozenGrad", supports_channels, gradient(true), kDomain},
  };
}

}  // namespace onnx_train::cpu
