#include "onnx_passes/functions/functions.h"

namespace onnx_train {
namespace {

// With x seen as rows of the normalized axes, x̂ = (x - mean(x)) / sqrt(var(x) + epsilon) and g = dy scale:
//   dx = (g - mean(g) - x̂ mean(g x̂)) / sqrt(var(x) + epsilon),  dscale = Σrows dy x̂,  dbias = Σrows dy.
// The mean and the deviation are computed anew: cheaper than storing them, and the forward node stays as it is.
// `scale` has the shape of the normalized axes.
constexpr const char* kLayerNormalizationGrad = R"(
LayerNormalizationGrad <axis: int = -1, epsilon: float = 1e-5> (x, scale, dy) => (dx, dscale, dbias)
{
  first = Constant <value_ints = [0]> ()
  last = Constant <value_ints = [1]> ()
  rest = Constant <value_ints = [-1]> ()
  rows = Flatten <axis: int = @axis> (x)
  dy_rows = Flatten <axis: int = @axis> (dy)
  gamma = Reshape (scale, rest)
  mean = ReduceMean (rows, last)
  centered = Sub (rows, mean)
  squares = Mul (centered, centered)
  variance = ReduceMean (squares, last)
  epsilon_float = Constant <value_float: float = @epsilon> ()
  small = CastLike (epsilon_float, x)
  variance_positive = Add (variance, small)
  deviation = Sqrt (variance_positive)
  normalized = Div (centered, deviation)
  g = Mul (dy_rows, gamma)
  g_mean = ReduceMean (g, last)
  g_along = Mul (g, normalized)
  g_along_mean = ReduceMean (g_along, last)
  along = Mul (normalized, g_along_mean)
  across = Sub (g, g_mean)
  difference = Sub (across, along)
  dx_rows = Div (difference, deviation)
  x_shape = Shape (x)
  dx = Reshape <allowzero = 1> (dx_rows, x_shape)
  scale_shape = Shape (scale)
  dscale_terms = Mul (dy_rows, normalized)
  dscale_row = ReduceSum <keepdims = 0> (dscale_terms, first)
  dscale = Reshape <allowzero = 1> (dscale_row, scale_shape)
  dbias_row = ReduceSum <keepdims = 0> (dy_rows, first)
  dbias = Reshape <allowzero = 1> (dbias_row, scale_shape)
}
)";

// y = x / sqrt(mean(x²) + epsilon) scale, with x seen as rows: for models of an opset before 23, which has it. `scale`
// broadcasts to the normalized axes.
constexpr const char* kRmsNormalization = R"(
RMSNormalization <axis: int = -1, epsilon: float = 1e-5> (x, scale) => (y)
{
  last = Constant <value_ints = [1]> ()
  rows = Flatten <axis: int = @axis> (x)
  squares = Mul (rows, rows)
  mean_square = ReduceMean (squares, last)
  epsilon_float = Constant <value_float: float = @epsilon> ()
  small = CastLike (epsilon_float, x)
  mean_square_positive = Add (mean_square, small)
  magnitude = Sqrt (mean_square_positive)
  normalized_rows = Div (rows, magnitude)
  x_shape = Shape (x)
  normalized = Reshape <allowzero = 1> (normalized_rows, x_shape)
  y = Mul (normalized, scale)
}
)";

// LayerNormalizationGrad without centering: x̂ = x / sqrt(mean(x²) + epsilon), dx = (g - x̂ mean(g x̂)) / sqrt(mean(x²) +
// epsilon).
constexpr const char* kRmsNormalizationGrad = R"(
RMSNormalizationGrad <axis: int = -1, epsilon: float = 1e-5> (x, scale, dy) => (dx, dscale)
{
  first = Constant <value_ints = [0]> ()
  last = Constant <value_ints = [1]> ()
  rest = Constant <value_ints = [-1]> ()
  rows = Flatten <axis: int = @axis> (x)
  dy_rows = Flatten <axis: int = @axis> (dy)
  gamma = Reshape (scale, rest)
  squares = Mul (rows, rows)
  mean_square = ReduceMean (squares, last)
  epsilon_float = Constant <value_float: float = @epsilon> ()
  small = CastLike (epsilon_float, x)
  mean_square_positive = Add (mean_square, small)
  magnitude = Sqrt (mean_square_positive)
  normalized = Div (rows, magnitude)
  g = Mul (dy_rows, gamma)
  g_along = Mul (g, normalized)
  g_along_mean = ReduceMean (g_along, last)
  along = Mul (normalized, g_along_mean)
  difference = Sub (g, along)
  dx_rows = Div (difference, magnitude)
  x_shape = Shape (x)
  dx = Reshape <allowzero = 1> (dx_rows, x_shape)
  dscale_terms = Mul (dy_rows, normalized)
  dscale_row = ReduceSum <keepdims = 0> (dscale_terms, first)
  scale_shape = Shape (scale)
  dscale = Reshape <allowzero = 1> (dscale_row, scale_shape)
}
)";

// ---- Per channel: x is seen as [batch, channels, rest]

constexpr const char* kChannelView = R"(
  one = Constant <value_ints = [1]> ()
  batch_and_rest = Constant <value_ints = [0, 2]> ()
  x_shape = Shape (x)
  channel_shape = Shape (scale)
  outer = Shape <start = 0, end = 2> (x)
  inner = Shape <start = 2> (x)
  inner_or_one = Concat <axis = 0> (one, inner)
  rest = ReduceProd (inner_or_one)
  view = Concat <axis = 0> (outer, rest)
  x_view = Reshape <allowzero = 1> (x, view)
  gamma = Unsqueeze (scale, one)
  epsilon_float = Constant <value_float: float = @epsilon> ()
  small = CastLike (epsilon_float, x)
)";

// y = (x - mean) / sqrt(var + epsilon) scale + bias, where mean and var are those of the batch, var = mean((x -
// mean)²).
constexpr const char* kBatchNormalizationTrain = R"(
  mean_view = ReduceMean (x_view, batch_and_rest)
  centered = Sub (x_view, mean_view)
  squares = Mul (centered, centered)
  var_view = ReduceMean (squares, batch_and_rest)
  var_positive = Add (var_view, small)
  deviation = Sqrt (var_positive)
  normalized = Div (centered, deviation)
  scaled = Mul (normalized, gamma)
  beta = Unsqueeze (bias, one)
  y_view = Add (scaled, beta)
  y = Reshape <allowzero = 1> (y_view, x_shape)
  mean = Reshape <allowzero = 1> (mean_view, channel_shape)
  var = Reshape <allowzero = 1> (var_view, channel_shape)
}
)";

// What both gradients need: x̂ = (x - mean) / sqrt(var + epsilon), dbias = Σ dy, dscale = Σ dy x̂.
constexpr const char* kBatchNormalizationSums = R"(
  dy_view = Reshape <allowzero = 1> (dy, view)
  mean_view = Unsqueeze (mean, one)
  centered = Sub (x_view, mean_view)
  var_positive = Add (var, small)
  deviation = Sqrt (var_positive)
  deviation_view = Unsqueeze (deviation, one)
  normalized = Div (centered, deviation_view)
  dbias_view = ReduceSum (dy_view, batch_and_rest)
  dbias = Reshape <allowzero = 1> (dbias_view, channel_shape)
  dscale_terms = Mul (dy_view, normalized)
  dscale_view = ReduceSum (dscale_terms, batch_and_rest)
  dscale = Reshape <allowzero = 1> (dscale_view, channel_shape)
  factor = Div (gamma, deviation_view)
)";

// mean and var are the batch's own: dx = (dy - mean(dy) - x̂ mean(dy x̂)) scale / sqrt(var + epsilon).
constexpr const char* kBatchNormalizationGrad = R"(
  dy_mean = ReduceMean (dy_view, batch_and_rest)
  along_mean = ReduceMean (dscale_terms, batch_and_rest)
  along = Mul (normalized, along_mean)
  across = Sub (dy_view, dy_mean)
  difference = Sub (across, along)
  dx_view = Mul (difference, factor)
  dx = Reshape <allowzero = 1> (dx_view, x_shape)
}
)";

// mean and var are constants: dx = dy scale / sqrt(var + epsilon).
constexpr const char* kBatchNormalizationFrozenGrad = R"(
  dx_view = Mul (dy_view, factor)
  dx = Reshape <allowzero = 1> (dx_view, x_shape)
}
)";

// The statistics are those of each group of channels of each sample; with g = dy scale,
//   dx = (g - mean(g) - x̂ mean(g x̂)) / sqrt(var + epsilon),  dscale = Σ dy x̂,  dbias = Σ dy.
constexpr const char* kGroupNormalizationGrad = R"(
  within = Constant <value_ints = [2]> ()
  batch = Shape <start = 0, end = 1> (x)
  channels = Shape <start = 1, end = 2> (x)
  group_count = Constant <value_int: int = @num_groups> ()
  groups = Reshape (group_count, one)
  channels_per_group = Div (channels, groups)
  group_size = Mul (channels_per_group, rest)
  group_view = Concat <axis = 0> (batch, groups, group_size)
  x_group = Reshape <allowzero = 1> (x, group_view)
  mean = ReduceMean (x_group, within)
  centered = Sub (x_group, mean)
  squares = Mul (centered, centered)
  var = ReduceMean (squares, within)
  var_positive = Add (var, small)
  deviation = Sqrt (var_positive)
  normalized = Div (centered, deviation)
  dy_view = Reshape <allowzero = 1> (dy, view)
  g_view = Mul (dy_view, gamma)
  g = Reshape <allowzero = 1> (g_view, group_view)
  g_mean = ReduceMean (g, within)
  g_along = Mul (g, normalized)
  g_along_mean = ReduceMean (g_along, within)
  along = Mul (normalized, g_along_mean)
  across = Sub (g, g_mean)
  difference = Sub (across, along)
  dx_group = Div (difference, deviation)
  dx = Reshape <allowzero = 1> (dx_group, x_shape)
  normalized_view = Reshape <allowzero = 1> (normalized, view)
  dscale_terms = Mul (dy_view, normalized_view)
  dscale_view = ReduceSum (dscale_terms, batch_and_rest)
  dscale = Reshape <allowzero = 1> (dscale_view, channel_shape)
  dbias_view = ReduceSum (dy_view, batch_and_rest)
  dbias = Reshape <allowzero = 1> (dbias_view, channel_shape)
}
)";

// The row of a function whose body is the parts, one after the other.
FunctionRow function_of(const char* op, const std::vector<const char*>& parts) {
  std::string text = op;
  for (const char* part : parts) text += part;
  return {op, [text](const FunctionCall&) { return FunctionText{text, ""}; }};
}

constexpr const char* kTrainSignature = " <epsilon: float = 1e-5> (x, scale, bias) => (y, mean, var) {";
constexpr const char* kGradSignature = " <epsilon: float = 1e-5> (x, scale, mean, var, dy) => (dx, dscale, dbias) {";
constexpr const char* kGroupSignature = " <num_groups, epsilon: float = 1e-5> (x, scale, dy) => (dx, dscale, dbias) {";

}  // namespace

std::vector<FunctionRow> normalization_functions() {
  return {
      function("LayerNormalizationGrad", kLayerNormalizationGrad),
      function("RMSNormalization", kRmsNormalization),
      function("RMSNormalizationGrad", kRmsNormalizationGrad),
      function_of("BatchNormalizationTrain", {kTrainSignature, kChannelView, kBatchNormalizationTrain}),
      function_of("BatchNormalizationGrad",
                  {kGradSignature, kChannelView, kBatchNormalizationSums, kBatchNormalizationGrad}),
      function_of("BatchNormalizationFrozenGrad",
                  {kGradSignature, kChannelView, kBatchNormalizationSums, kBatchNormalizationFrozenGrad}),
      function_of("GroupNormalizationGrad", {kGroupSignature, kChannelView, kGroupNormalizationGrad}),
  };
}

}  // namespace onnx_train
