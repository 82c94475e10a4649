// Batch normalization in inference and training, alone or fused with a following Relu or Add and Relu.
#include "kernels/cpu/normalization/batch_normalization_blocks.h"

#include <cmath>

#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train::cpu {
namespace {

// Whether images and channel values are all float32 or all float64. With `narrow`, whether images are bfloat16, channel
// values float32, and output 0 is bfloat16 or float32.
bool supports_channels(const NodeSpec& s, int images, bool narrow) {
  const DType stored = s.in_type(0), computed = narrow ? DType::kFloat : stored;
  if (narrow ? stored != DType::kBFloat16 : !is_float_or_double(stored)) return false;
  if (s.has_output(0) && s.out_type(0) != stored && s.out_type(0) != computed) return false;
  return has_channel_values(s, images, stored, computed);
}

// Calls f(X{}, Y{}) for the element types of the images that are read and written.
template <typename F>
Prepared dispatch_images(const NodeSpec& s, const F& f) {
  if (s.in_type(0) != DType::kBFloat16) return dispatch_float(s.in_type(0), [&](auto zero) { return f(zero, zero); });
  const bool narrow = s.has_output(0) && s.out_type(0) == DType::kBFloat16;
  return narrow ? f(BFloat16{}, BFloat16{}) : f(BFloat16{}, float{});
}

// The workspace: sums, per-channel values, and rows converted to float32.
template <typename X>
struct Workspace {
  ChannelLayout layout;
  size_t sums, per_channel, rows;

  Workspace(const ChannelLayout& l, const PerChannel& channels, int numbers)
      : layout(l),
        sums(channels.workspace()),
        per_channel(static_cast<size_t>(numbers * l.channels) * sizeof(Computed<X>)),
        rows(Stage<X>::bytes(l, channels.shares())) {}
  size_t bytes() const { return sums + per_channel + rows; }
  Computed<X>* numbers(const Launch& a) const { return reinterpret_cast<Computed<X>*>(a.scratch<char>() + sums); }
  Stage<X> stage(const Launch& a) const {
    return {reinterpret_cast<float*>(a.scratch<char>() + sums + per_channel), layout.rest};
  }
};

// The operations after the normalization: none, [Add and] Relu, or the same with every result before Relu rounded to
// bfloat16.
enum class AfterScaling { kNothing, kRelu, kRoundedRelu };

AfterScaling after_scaling(const NodeSpec& s) {
  if (!has_step(s.node(), EpilogueStep::kRelu)) return AfterScaling::kNothing;
  return s.node().attr("round_to", 0) == 0 ? AfterScaling::kRelu : AfterScaling::kRoundedRelu;
}

// Whether the kernels support the attribute round_to. Only float32 computations may be rounded to bfloat16.
bool supports_rounding(const NodeSpec& s, bool narrow) {
  const int64_t round_to = s.node().attr("round_to", 0);
  switch (after_scaling(s)) {
    case AfterScaling::kNothing: return round_to == 0;
    case AfterScaling::kRelu: return !narrow;
    case AfterScaling::kRoundedRelu:
      return round_to == static_cast<int>(DType::kBFloat16) && s.in_type(0) != DType::kDouble;
  }
  return false;
}

template <typename X, typename T, typename Y>
void apply(AfterScaling after, const X* x, const X* residual, const T* mean, const T* factor, const T* bias,
           const ChannelBlock& block, const ChannelLayout& layout, Y* y) {
  switch (after) {
    case AfterScaling::kNothing: return scale_block(x, mean, factor, bias, block, layout, y);
    case AfterScaling::kRelu:
      if constexpr (std::is_same_v<T, Y>) {
        return scale_and_rectify_block<T>(x, residual, mean, factor, bias, block, layout, y);
      }
      break;
    case AfterScaling::kRoundedRelu:
      if constexpr (std::is_same_v<T, float>) {
        return scale_and_rectify_block<BFloat16>(x, residual, mean, factor, bias, block, layout, y);
      }
      break;
  }
}

// ---- Inference: mean and variance are inputs, so the factors of each channel are known from the start

template <typename X, typename Y>
Prepared prepare_inference(const NodeSpec& s) {
  using T = Computed<X>;
  const ChannelLayout layout(s.in_shape(0));
  const PerChannel channels(layout, s.threads());
  const Workspace<X> workspace(layout, channels, 1);
  const double epsilon = s.node().attr("epsilon", kEpsilon);
  const int residual_at = input_at(s.node(), "residual");
  const AfterScaling after = after_scaling(s);
  const auto run = [=](const Launch& a) {
    const X *x = a.in<X>(0), *residual = residual_at >= 0 ? a.in<X>(residual_at) : nullptr;
    const T *scale = a.in<T>(1), *bias = a.in<T>(2), *mean = a.in<T>(3), *variance = a.in<T>(4);
    T* factor = workspace.numbers(a);
    channels.run(
        a.scratch<Sums>(), [](const ChannelBlock&, Sums*) {},
        [&](int64_t c, Sums) {
          factor[c] =
              static_cast<T>(static_cast<double>(scale[c]) / std::sqrt(static_cast<double>(variance[c]) + epsilon));
        },
        [&](const ChannelBlock& block) { apply(after, x, residual, mean, factor, bias, block, layout, a.out<Y>()); });
  };
  Prepared prepared = {run, workspace.bytes(), {{0, 0}}};
  if (residual_at >= 0) prepared.in_place.push_back({0, residual_at});
  return prepared;
}

// ---- Training: the bodies of BatchNormalizationTrain, alone and with Relu or Add and Relu

// An estimate of each channel's mean: the mean of a few elements from all over the batch.
template <typename X, typename T>
void guess_means(const X* x, const ChannelLayout& layout, T* guess) {
  const int64_t some = std::min<int64_t>(layout.rest, kWidth);
  const int64_t samples = std::min(layout.batch, kShort / std::max<int64_t>(some, 1) + 1);
  std::fill_n(guess, layout.channels, T{0});
  if (some == 0) return;
  T row[kWidth];
  for (int64_t k = 0; k < samples; ++k) {
    const X* sample = x + k * layout.batch / samples * layout.stride();
    for (int64_t c = 0; c < layout.channels; ++c) {
      vectorized([&] { convert_row(sample + c * layout.rest, some, row); });
      guess[c] += some == 1 ? row[0] : vectorized([&] { return sum(row, some); });
    }
  }
  for (int64_t c = 0; c < layout.channels && samples > 0; ++c) guess[c] /= static_cast<T>(some * samples);
}

template <typename X, typename Y>
Prepared prepare_train(const NodeSpec& s) {
  using T = Computed<X>;
  const ChannelLayout layout(s.in_shape(0));
  const PerChannel channels(layout, s.threads());
  const Workspace<X> workspace(layout, channels, 4);
  const double epsilon = s.node().attr("epsilon", kEpsilon);
  const bool has_mean = s.has_output(1), has_variance = s.has_output(2);
  const int residual_at = input_at(s.node(), "residual");
  const AfterScaling after = after_scaling(s);
  const auto run = [=](const Launch& a) {
    const X *x = a.in<X>(0), *residual = residual_at >= 0 ? a.in<X>(residual_at) : nullptr;
    const T *scale = a.in<T>(1), *bias = a.in<T>(2);
    // One value per channel; mean and variance are stored here if the node does not have them as outputs.
    T *guess = workspace.numbers(a), *factor = guess + layout.channels;
    T* mean = has_mean ? a.out<T>(1) : guess + 2 * layout.channels;
    T* variance = has_variance ? a.out<T>(2) : guess + 3 * layout.channels;
    const double n = static_cast<double>(layout.per_channel());
    guess_means(x, layout, guess);
    channels.run(
        a.scratch<Sums>(),
        [&](const ChannelBlock& block, Sums* sums) { moments(x, guess, block, layout, workspace.stage(a), sums); },
        [&](int64_t c, Sums sums) {
          const double offset = sums.first / n;
          const double square = std::max(sums.second / n - offset * offset, 0.0);
          mean[c] = static_cast<T>(static_cast<double>(guess[c]) + offset);
          variance[c] = static_cast<T>(square);
          factor[c] = static_cast<T>(static_cast<double>(scale[c]) / std::sqrt(square + epsilon));
        },
        [&](const ChannelBlock& block) { apply(after, x, residual, mean, factor, bias, block, layout, a.out<Y>()); });
  };
  Prepared prepared = {run, workspace.bytes()};
  if (residual_at >= 0) prepared.in_place = {{0, residual_at}};
  return prepared;
}

// ---- Gradients: the bodies of BatchNormalizationGrad and BatchNormalizationFrozenGrad

// With inv_std = 1 / sqrt(var + epsilon): dscale = inv_std Σ dy (x - mean), dbias = Σ dy, and in training
//   dx = (dy - dbias / n - (x - mean) inv_std² Σ dy (x - mean) / n) scale inv_std
// With frozen statistics, dx = dy scale inv_std. With Relu (kRectified), dy is set to 0 where y is not positive; that
// dy is an output of its own or is stored in dx until dx is computed.
enum class Mode { kTrain, kFrozen, kRectified };

// D is the element type of the stored dy after Relu.
template <typename X, typename Y, typename D>
Prepared prepare_gradient(const NodeSpec& s, Mode mode) {
  using T = Computed<X>;
  const ChannelLayout layout(s.in_shape(0));
  const PerChannel channels(layout, s.threads());
  const Workspace<X> workspace(layout, channels, 3);
  const double epsilon = s.node().attr("epsilon", kEpsilon);
  const bool frozen = mode == Mode::kFrozen, rectified = mode == Mode::kRectified;
  const bool has_dx = s.has_output(0), has_dscale = s.has_output(1), has_dbias = s.has_output(2);
  const int y = input_at(s.node(), "y"), dz = output_at(s.node(), "dz"), dz_output = std::max(dz, 0);
  const auto run = [=](const Launch& a) {
    const X *x = a.in<X>(0), *dy = a.in<X>(4);
    const T *scale = a.in<T>(1), *mean = a.in<T>(2), *variance = a.in<T>(3);
    T* numbers = workspace.numbers(a);
    const Slopes<T> slopes = {numbers, numbers + layout.channels, numbers + 2 * layout.channels};
    const double n = static_cast<double>(layout.per_channel());
    const bool needs_sums = !frozen || has_dscale || has_dbias;
    channels.run(
        a.scratch<Sums>(),
        [&](const ChannelBlock& block, Sums* sums) {
          const Stage<X> stage = workspace.stage(a);
          if (rectified) {
            rectified_gradient_moments(x, dy, a.in<X>(y), mean, block, layout, stage, a.out<D>(dz_output), sums);
          } else if (needs_sums) {
            gradient_moments(x, dy, mean, block, layout, stage, sums);
          }
        },
        [&](int64_t c, Sums sums) {
          const double inv_std = math::inverse_deviation(static_cast<double>(variance[c]), epsilon);
          if (has_dscale) a.out<T>(1)[c] = static_cast<T>(sums.second * inv_std);
          if (has_dbias) a.out<T>(2)[c] = static_cast<T>(sums.first);
          slopes.dy_mean[c] = frozen ? T{0} : static_cast<T>(sums.first / n);
          slopes.along[c] = frozen ? T{0} : static_cast<T>(sums.second / n * inv_std * inv_std);
          slopes.factor[c] = static_cast<T>(static_cast<double>(scale[c]) * inv_std);
        },
        [&](const ChannelBlock& block) {
          if (!has_dx) return;
          if (frozen) {  // the gradients of mean and variance are zero
            scale_block(dy, slopes.dy_mean, slopes.factor, slopes.along, block, layout, a.out<Y>(0));
          } else if (rectified) {
            differentiate_block(x, a.out<D>(dz_output), mean, slopes, block, layout, a.out<Y>(0));
          } else {
            differentiate_block(x, dy, mean, slopes, block, layout, a.out<Y>(0));
          }
        });
  };
  Prepared prepared = {run, workspace.bytes(), {{0, 4}, {0, 0}}};
  if (rectified) prepared.in_place = {{dz_output, 4}};
  if (dz >= 0) prepared.in_place.push_back({0, 0});
  return prepared;
}

// ---- Rows

bool supports_inference(const NodeSpec& s, bool narrow) {
  return supports_channels(s, 5, narrow) && supports_rounding(s, narrow) && s.num_outputs() == 1 &&
         s.node().attr("training_mode", 0) == 0;
}

Prepared inference(const NodeSpec& s) {
  return dispatch_images(s, [&]<typename X, typename Y>(X, Y) { return prepare_inference<X, Y>(s); });
}

bool supports_train(const NodeSpec& s, bool narrow) {
  return supports_channels(s, 3, narrow) && supports_rounding(s, narrow);
}

Prepared train(const NodeSpec& s) {
  return dispatch_images(s, [&]<typename X, typename Y>(X, Y) { return prepare_train<X, Y>(s); });
}

bool supports_frozen_gradient(const NodeSpec& s, bool narrow) { return supports_channels(s, 4, narrow); }

// With Relu, dx must exist: without a dz output, dz is stored in dx first.
bool supports_gradient(const NodeSpec& s, bool narrow) {
  const int dz = output_at(s.node(), "dz");
  const bool is_rectified = has_step(s.node(), EpilogueStep::kRelu);
  return supports_channels(s, 4, narrow) && (!is_rectified || s.has_output(0)) &&
         (dz < 0 || s.out_type(dz) == s.in_type(0));
}

Prepared prepare_gradient_of(const NodeSpec& s, Mode mode) {
  return dispatch_images(s, [&]<typename X, typename Y>(X, Y) {
    return output_at(s.node(), "dz") >= 0 ? prepare_gradient<X, Y, X>(s, mode) : prepare_gradient<X, Y, Y>(s, mode);
  });
}

Prepared gradient(const NodeSpec& s) {
  return prepare_gradient_of(s, has_step(s.node(), EpilogueStep::kRelu) ? Mode::kRectified : Mode::kTrain);
}

Prepared frozen_gradient(const NodeSpec& s) { return prepare_gradient_of(s, Mode::kFrozen); }

}  // namespace

std::vector<Kernel> batch_normalization_kernels() {
  const auto wide = [](auto supports) { return [=](const NodeSpec& s) { return supports(s, false); }; };
  const auto stored = [](auto supports) {
    return [=](const NodeSpec& s) { return supports(s, false) || supports(s, true); };
  };
  const std::vector<const char*> forward = {"", "relu", "residual, relu"}, backward = {"", "relu"};
  return {
      {"BatchNormalization", wide(supports_inference), inference},
      Kernel{"BatchNormalization", stored(supports_inference), inference, kDomain}.with_epilogues(forward),
      Kernel{"BatchNormalizationTrain", stored(supports_train), train, kDomain}.with_epilogues(forward),
      Kernel{"BatchNormalizationGrad", stored(supports_gradient), gradient, kDomain}.with_epilogues(backward),
      {"BatchNormalizationFrozenGrad", stored(supports_frozen_gradient), frozen_gradient, kDomain},
  };
}

}  // namespace onnx_train::cpu
