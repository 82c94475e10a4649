// Batch normalization, in inference and in training, alone or with what follows it: a sum and a Relu.
#include "kernels/cpu/batch_normalization.h"

#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// ---- Both

// Σ (x - shift) and Σ (x - shift)² of each channel of the block.
template <typename T>
void moments(const T* x, const T* shift, const Block& block, const ChannelLayout& layout, Sums* sums) {
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
void gradient_moments(const T* x, const T* dy, const T* mean, const Block& block, const ChannelLayout& layout,
                      Sums* sums) {
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
void scale_block(const T* x, const T* mean, const T* factor, const T* bias, const Block& block,
                 const ChannelLayout& layout, T* y) {
  const int64_t at = block.at(layout), c = block.first;
  if (!layout.is_short()) {
    return scale_rows(x + at, mean[c], factor[c], bias[c], block.rows(), layout.rest, layout.stride(), y + at);
  }
  const Columns<T> means(mean, block, layout), factors(factor, block, layout), biases(bias, block, layout);
  scale_columns(x + at, means.values, factors.values, biases.values, block.rows(), block.width(layout), layout.stride(),
                y + at);
}

// y = relu((x - mean) factor + bias + residual); the residual may be null.
template <typename T>
void scale_and_rectify_block(const T* x, const T* residual, const T* mean, const T* factor, const T* bias,
                             const Block& block, const ChannelLayout& layout, T* y) {
  const int64_t at = block.at(layout), c = block.first;
  if (residual) residual += at;
  if (!layout.is_short()) {
    const auto run = residual ? scale_rows_and_rectify<T, true> : scale_rows_and_rectify<T, false>;
    return run(x + at, residual, mean[c], factor[c], bias[c], block.rows(), layout.rest, layout.stride(), y + at);
  }
  const Columns<T> means(mean, block, layout), factors(factor, block, layout), biases(bias, block, layout);
  const auto run = residual ? scale_columns_and_rectify<T, true> : scale_columns_and_rectify<T, false>;
  run(x + at, residual, means.values, factors.values, biases.values, block.rows(), block.width(layout), layout.stride(),
      y + at);
}

// dz = dy where y is positive, else 0; Σ dz and Σ dz (x - mean) of each channel of the block.
template <typename T>
void rectified_gradient_moments(const T* x, const T* dy, const T* y, const T* mean, const Block& block,
                                const ChannelLayout& layout, T* dz, Sums* sums) {
  const int64_t at = block.at(layout);
  if (!layout.is_short()) {
    *sums = rectified_gradient_sums(x + at, dy + at, y + at, mean[block.first], block.rows(), layout.rest,
                                    layout.stride(), dz + at);
    return;
  }
  const Columns<T> means(mean, block, layout);
  reduce_columns<T>(block, layout, sums, [&](int64_t row, int64_t rows, T* first, T* second) {
    const int64_t from = at + row * layout.stride();
    add_rectified_gradient_sums(x + from, dy + from, y + from, means.values, rows, block.width(layout), layout.stride(),
                                dz + from, first, second);
  });
}

// What dx needs of each channel.
template <typename T>
struct Slopes {
  T *dy_mean, *along, *factor;
};

// dx = (dy - dy_mean - (x - mean) along) factor
template <typename T>
void differentiate_block(const T* x, const T* dy, const T* mean, const Slopes<T>& slopes, const Block& block,
                         const ChannelLayout& layout, T* dx) {
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
  explicit PerChannel(const ChannelLayout& layout)
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

  ChannelLayout layout_;
  int64_t blocks_;
  Pieces pieces_;
};

// All inputs have one type; x and those from `images` on have one shape, the others an element for each channel.
bool supports_channels(const NodeSpec& s, int images) {
  const Shape shape = s.in_shape(0);
  if (!is_float_or_double(s.in_type(0)) || shape.size() < 2) return false;
  for (int i = 1; i < s.num_inputs(); ++i) {
    if (!s.has_input(i) || s.in_type(i) != s.in_type(0)) return false;
    if (s.in_shape(i) != (i < images ? Shape{shape[1]} : shape)) return false;
  }
  return true;
}

// ---- Inference: mean, variance and so the factors are known from the start

Prepared prepare_inference(const NodeSpec& s) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const ChannelLayout layout(s.in_shape(0));
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
  return supports_channels(s, 5) && s.num_outputs() == 1 && s.node().attr("training_mode", 0) == 0;
}

// ---- Training: the bodies of BatchNormalizationTrain, BatchNormalizationReluTrain, BatchNormalizationAddReluTrain

// A value near each channel's mean: that of some of its elements, from all over the batch.
template <typename T>
void guess_means(const T* x, const ChannelLayout& layout, T* guess) {
  const int64_t some = std::min<int64_t>(layout.rest, kWidth);
  const int64_t samples = std::min(layout.batch, kShort / std::max<int64_t>(some, 1) + 1);
  std::fill_n(guess, layout.channels, T{0});
  if (some == 0) return;
  for (int64_t k = 0; k < samples; ++k) {
    const T* sample = x + k * layout.batch / samples * layout.stride();
    for (int64_t c = 0; c < layout.channels; ++c)
      guess[c] += some == 1 ? sample[c] : sum(sample + c * layout.rest, some);
  }
  for (int64_t c = 0; c < layout.channels && samples > 0; ++c) guess[c] /= static_cast<T>(some * samples);
}

Prepared prepare_train(const NodeSpec& s, bool rectified) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const ChannelLayout layout(s.in_shape(0));
    const PerChannel channels(layout);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const size_t sums_bytes = channels.workspace(), count = static_cast<size_t>(layout.channels);
    const bool has_mean = s.has_output(1), has_variance = s.has_output(2), adds = s.has_input(3);
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
          [&](const Block& block) {
            if (!rectified) return scale_block(x, mean, factor, bias, block, layout, a.out<T>());
            const T* residual = adds ? a.in<T>(3) : nullptr;
            scale_and_rectify_block(x, residual, mean, factor, bias, block, layout, a.out<T>());
          });
    };
    Prepared prepared = {run, sums_bytes + 4 * count * sizeof(T)};
    if (adds) prepared.in_place = {{0, 3}};
    return prepared;
  });
}

// ---- Gradients: the bodies of BatchNormalizationGrad, BatchNormalizationFrozenGrad and BatchNormalizationReluGrad

// With inv_std = 1 / sqrt(var + epsilon): dscale = inv_std Σ dy (x - mean), dbias = Σ dy, and in training
//   dx = (dy - dbias / n - (x - mean) inv_std² Σ dy (x - mean) / n) scale inv_std
// Frozen, dx = dy scale inv_std. Rectified, dy counts where y is positive, and lies in dx until that is computed unless
// it is an output of its own.
enum class Mode { kTrain, kFrozen, kRectified };

Prepared prepare_gradient(const NodeSpec& s, Mode mode) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const ChannelLayout layout(s.in_shape(0));
    const PerChannel channels(layout);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const size_t sums_bytes = channels.workspace(), count = static_cast<size_t>(layout.channels);
    const bool frozen = mode == Mode::kFrozen, rectified = mode == Mode::kRectified;
    const bool has_dx = s.has_output(0), has_dscale = s.has_output(1), has_dbias = s.has_output(2);
    const int dz_output = s.has_output(3) ? 3 : 0;
    const auto run = [=](const Args& a) {
      const T *x = a.in<T>(0), *scale = a.in<T>(1), *mean = a.in<T>(2), *variance = a.in<T>(3), *dy = a.in<T>(4);
      T* slopes_memory = reinterpret_cast<T*>(a.scratch<char>() + sums_bytes);
      const Slopes<T> slopes = {slopes_memory, slopes_memory + count, slopes_memory + 2 * count};
      const double n = static_cast<double>(layout.per_channel());
      const bool needs_sums = !frozen || has_dscale || has_dbias;
      channels.run(
          a.scratch<Sums>(),
          [&](const Block& block, Sums* sums) {
            if (rectified) {
              rectified_gradient_moments(x, dy, a.in<T>(5), mean, block, layout, a.out<T>(dz_output), sums);
            } else if (needs_sums) {
              gradient_moments(x, dy, mean, block, layout, sums);
            }
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
              const T* dz = rectified ? a.out<T>(dz_output) : dy;
              differentiate_block(x, dz, mean, slopes, block, layout, a.out<T>(0));
            }
          });
    };
    Prepared prepared = {run, sums_bytes + 3 * count * sizeof(T), {{0, 4}, {0, 0}}};
    if (rectified) prepared.in_place = {{dz_output, 4}};
    if (dz_output > 0) prepared.in_place.push_back({0, 0});
    return prepared;
  });
}

// dx is where dz lies at first.
bool supports_rectified_gradient(const NodeSpec& s) { return supports_channels(s, 4) && s.has_output(0); }

}  // namespace

std::vector<Kernel> batch_normalization_kernels() {
  const auto train = [](bool rectified) {
    return [rectified](const NodeSpec& s) { return prepare_train(s, rectified); };
  };
  const auto gradient = [](Mode mode) { return [mode](const NodeSpec& s) { return prepare_gradient(s, mode); }; };
  const auto supports = [](int images) { return [images](const NodeSpec& s) { return supports_channels(s, images); }; };
  return {
      {"BatchNormalization", supports_inference, prepare_inference},
      {"BatchNormalizationTrain", supports(3), train(false), kDomain},
      {"BatchNormalizationReluTrain", supports(3), train(true), kDomain},
      {"BatchNormalizationAddReluTrain", supports(3), train(true), kDomain},
      {"BatchNormalizationGrad", supports(4), gradient(Mode::kTrain), kDomain},
      {"BatchNormalizationFrozenGrad", supports(4), gradient(Mode::kFrozen), kDomain},
      {"BatchNormalizationReluGrad", supports_rectified_gradient, gradient(Mode::kRectified), kDomain},
  };
}

}  // namespace onnx_train::cpu
