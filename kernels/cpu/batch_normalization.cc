// Batch normalization on [batch, channels, rest]. A channel's `rest` is contiguous, its rows lie `channels * rest`
// apart.
#include <cmath>

#include "kernels/cpu/normalization.h"
#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

struct Layout {
  int64_t batch = 1, channels = 1, rest = 1;
  explicit Layout(const Shape& shape) {
    if (!shape.empty()) batch = shape[0];
    if (shape.size() > 1) channels = shape[1];
    for (size_t i = 2; i < shape.size(); ++i) rest *= shape[i];
  }
  int64_t stride() const { return channels * rest; }
  int64_t per_channel() const { return batch * rest; }
};

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

// Runs a reduction over each channel and then a pass over it. With many channels, a thread does both while the channel
// is in its cache; with few, the batch is cut into pieces, whose sums are added in order. The cut depends on shapes
// alone, so the sums do not depend on the number of threads.
class PerChannel {
 public:
  explicit PerChannel(const Layout& layout)
      : layout_(layout), pieces_(layout.batch, std::max<int64_t>(1, layout.batch * layout.channels / kManyChannels)) {}

  size_t workspace() const { return static_cast<size_t>(layout_.channels * pieces_.count) * sizeof(Sums); }

  // Sums reduce(channel, first row, end row); void finish(channel, sums); void apply(channel, first row, end row).
  template <typename Reduce, typename Finish, typename Apply>
  void run(Sums* scratch, const Reduce& reduce, const Finish& finish, const Apply& apply) const {
    const int64_t grain = std::max<int64_t>(1, kElementGrain / 2 / std::max<int64_t>(layout_.per_channel(), 1));
    if (pieces_.count == 1) {
      return parallel_for(layout_.channels, grain, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          finish(c, reduce(c, 0, layout_.batch));
          apply(c, 0, layout_.batch);
        }
      });
    }
    const int64_t items = layout_.channels * pieces_.count;
    const auto each = [&](const auto& f) {
      parallel_for(items, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t piece = i % pieces_.count;
          f(i, i / pieces_.count, pieces_.begin(piece), pieces_.end(piece));
        }
      });
    };
    each([&](int64_t i, int64_t c, int64_t begin, int64_t end) { scratch[i] = reduce(c, begin, end); });
    for (int64_t c = 0; c < layout_.channels; ++c) {
      Sums total;
      for (int64_t p = 0; p < pieces_.count; ++p) {
        total.first += scratch[c * pieces_.count + p].first;
        total.second += scratch[c * pieces_.count + p].second;
      }
      finish(c, total);
    }
    each([&](int64_t, int64_t c, int64_t begin, int64_t end) { apply(c, begin, end); });
  }

 private:
  static constexpr int64_t kManyChannels = 16;
  Layout layout_;
  Pieces pieces_;
};

bool all_of_one_type(const NodeSpec& s) {
  for (int i = 0; i < s.num_inputs(); ++i) {
    if (!s.has_input(i) || s.in_type(i) != s.in_type(0)) return false;
  }
  return is_float_or_double(s.in_type(0));
}

// ---- Inference

Prepared prepare_inference(const NodeSpec& s) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Layout layout(s.in_shape(0));
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const auto run = [=](const Args& a) {
      const T *x = a.in<T>(0), *scale = a.in<T>(1), *bias = a.in<T>(2), *mean = a.in<T>(3), *variance = a.in<T>(4);
      const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(layout.rest, 1));
      parallel_for(layout.batch * layout.channels, grain, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t c = r % layout.channels;
          const double factor = static_cast<double>(scale[c]) / std::sqrt(static_cast<double>(variance[c]) + epsilon);
          scale_rows(x + r * layout.rest, mean[c], static_cast<T>(factor), bias[c], 1, layout.rest, 0,
                     a.out<T>() + r * layout.rest);
        }
      });
    };
    return {run, 0, {{0, 0}}};
  });
}

bool supports_inference(const NodeSpec& s) {
  return all_of_one_type(s) && s.num_outputs() == 1 && s.node().attr("training_mode", 0) == 0;
}

// ---- Training: the body of BatchNormalizationTrain

Prepared prepare_train(const NodeSpec& s) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Layout layout(s.in_shape(0));
    const PerChannel channels(layout);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    // The factors of a channel, between the two passes; mean and variance where they are no outputs.
    const auto count = static_cast<size_t>(layout.channels);
    const size_t sums_bytes = channels.workspace();
    const bool has_mean = s.has_output(1), has_variance = s.has_output(2);
    const auto run = [=](const Args& a) {
      const T *x = a.in<T>(0), *scale = a.in<T>(1), *bias = a.in<T>(2);
      T* spare = reinterpret_cast<T*>(a.scratch<char>() + sums_bytes);
      T *factor = spare, *mean = has_mean ? a.out<T>(1) : spare + count;
      T* variance = has_variance ? a.out<T>(2) : spare + 2 * count;
      const double n = static_cast<double>(layout.per_channel());
      const auto shift = [&](int64_t c) {
        const int64_t some = std::min<int64_t>(layout.rest, 256);
        return n > 0 ? sum(x + c * layout.rest, some) / static_cast<T>(some) : T{0};
      };
      channels.run(
          a.scratch<Sums>(),
          [&](int64_t c, int64_t begin, int64_t end) {
            return shifted_moments(x + c * layout.rest + begin * layout.stride(), shift(c), end - begin, layout.rest,
                                   layout.stride());
          },
          [&](int64_t c, Sums sums) {
            const double offset = sums.first / n;
            const double square = std::max(sums.second / n - offset * offset, 0.0);
            mean[c] = static_cast<T>(static_cast<double>(shift(c)) + offset);
            variance[c] = static_cast<T>(square);
            factor[c] = static_cast<T>(static_cast<double>(scale[c]) / std::sqrt(square + epsilon));
          },
          [&](int64_t c, int64_t begin, int64_t end) {
            const int64_t at = c * layout.rest + begin * layout.stride();
            scale_rows(x + at, mean[c], factor[c], bias[c], end - begin, layout.rest, layout.stride(), a.out<T>() + at);
          });
    };
    return {run, sums_bytes + 3 * count * sizeof(T)};
  });
}

// ---- Gradients: the bodies of BatchNormalizationGrad and BatchNormalizationFrozenGrad

// With inv_std = 1 / sqrt(var + epsilon): dscale = inv_std Σ dy (x - mean), dbias = Σ dy, and in training
//   dx = (dy - dbias / n - (x - mean) inv_std² Σ dy (x - mean) / n) scale inv_std
Prepared prepare_gradient(const NodeSpec& s, bool frozen) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    struct Factors {
      T dy_mean, along, factor;
    };
    const Layout layout(s.in_shape(0));
    const PerChannel channels(layout);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const size_t sums_bytes = channels.workspace();
    const bool has_dx = s.has_output(0), has_dscale = s.has_output(1), has_dbias = s.has_output(2);
    const auto run = [=](const Args& a) {
      const T *x = a.in<T>(0), *scale = a.in<T>(1), *mean = a.in<T>(2), *variance = a.in<T>(3), *dy = a.in<T>(4);
      auto* factors = reinterpret_cast<Factors*>(a.scratch<char>() + sums_bytes);
      const double n = static_cast<double>(layout.per_channel());
      const bool needs_sums = !frozen || has_dscale || has_dbias;
      channels.run(
          a.scratch<Sums>(),
          [&](int64_t c, int64_t begin, int64_t end) {
            if (!needs_sums) return Sums();
            const int64_t at = c * layout.rest + begin * layout.stride();
            return gradient_sums(x + at, dy + at, mean[c], end - begin, layout.rest, layout.stride());
          },
          [&](int64_t c, Sums sums) {
            const double inv_std = 1 / std::sqrt(static_cast<double>(variance[c]) + epsilon);
            if (has_dscale) a.out<T>(1)[c] = static_cast<T>(sums.second * inv_std);
            if (has_dbias) a.out<T>(2)[c] = static_cast<T>(sums.first);
            const double dy_mean = frozen ? 0 : sums.first / n, along = frozen ? 0 : sums.second / n;
            factors[c] = {static_cast<T>(dy_mean), static_cast<T>(along * inv_std * inv_std),
                          static_cast<T>(static_cast<double>(scale[c]) * inv_std)};
          },
          [&](int64_t c, int64_t begin, int64_t end) {
            if (!has_dx) return;
            const int64_t at = c * layout.rest + begin * layout.stride();
            const Factors f = factors[c];
            T* dx = a.out<T>(0) + at;
            if (frozen) {
              scale_rows(dy + at, T{0}, f.factor, T{0}, end - begin, layout.rest, layout.stride(), dx);
            } else {
              differentiate_rows(x + at, dy + at, mean[c], f.dy_mean, f.along, f.factor, end - begin, layout.rest,
                                 layout.stride(), dx);
            }
          });
    };
    return {run, sums_bytes + static_cast<size_t>(layout.channels) * sizeof(Factors), {{0, 4}, {0, 0}}};
  });
}

}  // namespace

std::vector<Kernel> batch_normalization_kernels() {
  const auto gradient = [](bool frozen) { return [frozen](const NodeSpec& s) { return prepare_gradient(s, frozen); }; };
  return {
      {"BatchNormalization", supports_inference, prepare_inference},
      {"BatchNormalizationTrain", all_of_one_type, prepare_train, kDomain},
      {"BatchNormalizationGrad", all_of_one_type, gradient(false), kDomain},
      {"BatchNormalizationFrozenGrad", all_of_one_type, gradient(true), kDomain},
  };
}

}  // namespace onnx_train::cpu
