#include "onnx_passes/functions/body.h"

namespace onnx_train {
namespace {

// ---- Per row: x is seen as rows of the normalized axes

Term rows_of(const Term& x) { return x.body()->op("Flatten", {x}, "axis: int = @axis"); }
Term sum_of_rows(const Term& rows, const Term& like) {
  return reshape(reduce_sum(rows, {0}, /*keepdims=*/false), shape(like));
}

// sqrt(mean(x²) + epsilon) over `axes`
Term magnitude(const Term& x, const Term& axes) {
  return sqrt(reduce_mean(x * x, axes) + x.body()->attribute("epsilon"));
}
// g - mean(g) - x̂ mean(g x̂)
Term across(const Term& g, const Term& normalized, const Term& axes) {
  return (g - reduce_mean(g, axes)) - normalized * reduce_mean(g * normalized, axes);
}

// With x̂ = (x - mean(x)) / sqrt(var(x) + epsilon) and g = dy scale:
//   dx = (g - mean(g) - x̂ mean(g x̂)) / sqrt(var(x) + epsilon),  dscale = Σrows dy x̂,  dbias = Σrows dy.
// The mean and the deviation are computed anew: cheaper than storing them, and the forward node stays as it is.
// `scale` has the shape of the normalized axes.
Terms layer_normalization_grad(const Term& x, const Term& scale, const Term& dy) {
  const Term rows = rows_of(x), dy_rows = rows_of(dy), centered = rows - reduce_mean(rows, {1});
  const Term deviation = magnitude(centered, {1}), normalized = centered / deviation;
  const Term dx = across(dy_rows * reshape(scale, {-1}), normalized, {1}) / deviation;
  return {reshape(dx, shape(x)), sum_of_rows(dy_rows * normalized, scale), sum_of_rows(dy_rows, scale)};
}

// y = x / sqrt(mean(x²) + epsilon) scale: for models of an opset before 23, which has it. `scale` broadcasts to the
// normalized axes.
Term rms_normalization(const Term& x, const Term& scale) {
  const Term rows = rows_of(x);
  return reshape(rows / magnitude(rows, {1}), shape(x)) * scale;
}

// LayerNormalizationGrad without centering: x̂ = x / sqrt(mean(x²) + epsilon), dx = (g - x̂ mean(g x̂)) / sqrt(mean(x²) +
// epsilon).
Terms rms_normalization_grad(const Term& x, const Term& scale, const Term& dy) {
  const Term rows = rows_of(x), dy_rows = rows_of(dy), size = magnitude(rows, {1}), normalized = rows / size;
  const Term g = dy_rows * reshape(scale, {-1});
  const Term dx = (g - normalized * reduce_mean(g * normalized, {1})) / size;
  return {reshape(dx, shape(x)), sum_of_rows(dy_rows * normalized, scale)};
}

// ---- Per channel: x is seen as [batch, channels, rest]

constexpr std::initializer_list<int64_t> kBatchAndRest = {0, 2};

Term rest_of(const Term& x) { return reduce_prod(concat({{1}, shape_from(x, 2)}, 0)); }
Term channels_of(const Term& x, const Term& like) { return reshape(x, concat({shape(like, 0, 2), rest_of(like)}, 0)); }
Term sum_of_channels(const Term& x, const Term& scale) { return reshape(reduce_sum(x, kBatchAndRest), shape(scale)); }

// y = (x - mean) / sqrt(var + epsilon) scale + bias, where mean and var are those of the batch, var = mean((x -
// mean)²).
Terms batch_normalization_train(Body& f, const Term& x, const Term& scale, const Term& bias) {
  const Term view = channels_of(x, x), mean = reduce_mean(view, kBatchAndRest), centered = view - mean;
  const Term var = reduce_mean(centered * centered, kBatchAndRest);
  const Term normalized = centered / sqrt(var + f.attribute("epsilon"));
  const Term y = normalized * unsqueeze(scale, {1}) + unsqueeze(bias, {1});
  return {reshape(y, shape(x)), reshape(mean, shape(scale)), reshape(var, shape(scale))};
}

// What both gradients need: x̂ = (x - mean) / sqrt(var + epsilon), dbias = Σ dy, dscale = Σ dy x̂.
struct ChannelGrad {
  Term dy, normalized, factor;  // scale / sqrt(var + epsilon)
  ChannelGrad(Body& f, const Term& x, const Term& scale, const Term& mean, const Term& var, const Term& given) {
    const Term deviation = unsqueeze(sqrt(var + f.as(f.attribute("epsilon"), x)), {1});
    dy = channels_of(given, x);
    normalized = (channels_of(x, x) - unsqueeze(mean, {1})) / deviation;
    factor = unsqueeze(scale, {1}) / deviation;
  }
  Terms with(const Term& dx, const Term& x, const Term& scale) const {
    return {reshape(dx, shape(x)), sum_of_channels(dy * normalized, scale), sum_of_channels(dy, scale)};
  }
};

// mean and var are the batch's own: dx = (dy - mean(dy) - x̂ mean(dy x̂)) scale / sqrt(var + epsilon).
Terms batch_normalization_grad(Body& f, const Term& x, const Term& scale, const Term& mean, const Term& var,
                               const Term& dy) {
  const ChannelGrad grad(f, x, scale, mean, var, dy);
  return grad.with(across(grad.dy, grad.normalized, kBatchAndRest) * grad.factor, x, scale);
}

// mean and var are constants: dx = dy scale / sqrt(var + epsilon).
Terms batch_normalization_frozen_grad(Body& f, const Term& x, const Term& scale, const Term& mean, const Term& var,
                                      const Term& dy) {
  const ChannelGrad grad(f, x, scale, mean, var, dy);
  return grad.with(grad.dy * grad.factor, x, scale);
}

// The statistics are those of each group of channels of each sample; with g = dy scale,
//   dx = (g - mean(g) - x̂ mean(g x̂)) / sqrt(var + epsilon),  dscale = Σ dy x̂,  dbias = Σ dy.
Terms group_normalization_grad(Body& f, const Term& x, const Term& scale, const Term& dy) {
  const Term groups = reshape(f.attribute("num_groups"), {1});
  const Term view = concat({shape(x, 0, 1), groups, shape(x, 1, 2) / groups * rest_of(x)}, 0);
  const Term x_group = reshape(x, view), centered = x_group - reduce_mean(x_group, {2});
  const Term deviation = magnitude(centered, {2}), normalized = centered / deviation;
  const Term dy_view = channels_of(dy, x), g = reshape(dy_view * unsqueeze(scale, {1}), view);
  return {reshape(across(g, normalized, {2}) / deviation, shape(x)),
          sum_of_channels(dy_view * channels_of(normalized, x), scale), sum_of_channels(dy_view, scale)};
}

}  // namespace

std::vector<FunctionRow> normalization_functions() {
  return {
      function("LayerNormalizationGrad <axis: int = -1, epsilon: float = 1e-5> (x, scale, dy) => (dx, dscale, dbias)",
               layer_normalization_grad),
      function("RMSNormalization <axis: int = -1, epsilon: float = 1e-5> (x, scale) => (y)", rms_normalization),
      function("RMSNormalizationGrad <axis: int = -1, epsilon: float = 1e-5> (x, scale, dy) => (dx, dscale)",
               rms_normalization_grad),
      function("BatchNormalizationTrain <epsilon: float = 1e-5> (x, scale, bias) => (y, mean, var)",
               batch_normalization_train),
      function("BatchNormalizationGrad <epsilon: float = 1e-5> (x, scale, mean, var, dy) => (dx, dscale, dbias)",
               batch_normalization_grad),
      function("BatchNormalizationFrozenGrad <epsilon: float = 1e-5> (x, scale, mean, var, dy) => (dx, dscale, dbias)",
               batch_normalization_frozen_grad),
      function("GroupNormalizationGrad <num_groups, epsilon: float = 1e-5> (x, scale, dy) => (dx, dscale, dbias)",
               group_normalization_grad),
  };
}

}  // namespace onnx_train
