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

// The same without centering: x̂ = x / sqrt(mean(x²) + epsilon), dx = (g - x̂ mean(g x̂)) / sqrt(mean(x²) + epsilon).
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

}  // namespace

std::vector<FunctionRow> normalization_functions() {
  return {
      function("LayerNormalizationGrad", kLayerNormalizationGrad),
      function("RMSNormalizationGrad", kRmsNormalizationGrad),
  };
}

}  // namespace onnx_train
