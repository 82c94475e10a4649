#include "onnx_passes/functions/functions.h"

namespace onnx_train {

std::vector<FunctionRow> activation_functions() {
  return {
      // y = max(x, 0)    dx = dy where y > 0, else 0
      function("ReluGrad", R"(ReluGrad (dy, y) => (dx) {
        zero_float = Constant <value: tensor = float {0}> ()
        zero = CastLike(zero_float, y)
        positive = Greater(y, zero)
        dx = Where(positive, dy, zero)
      })"),
      // y = sigmoid(x)    dx = dy y (1 - y)
      function("SigmoidGrad", R"(SigmoidGrad (dy, y) => (dx) {
        one_float = Constant <value: tensor = float {1}> ()
        one = CastLike(one_float, y)
        rest = Sub(one, y)
        slope = Mul(y, rest)
        dx = Mul(dy, slope)
      })"),
      // y = tanh(x)    dx = dy (1 - y²)
      function("TanhGrad", R"(TanhGrad (dy, y) => (dx) {
        one_float = Constant <value: tensor = float {1}> ()
        one = CastLike(one_float, y)
        square = Mul(y, y)
        slope = Sub(one, square)
        dx = Mul(dy, slope)
      })"),
      // y = x Φ(x)    dx = dy (Φ(x) + x φ(x)), Φ and φ the normal distribution: Φ(x) = (1 + erf(x/√2)) / 2,
      // φ(x) = exp(-x²/2) / √(2π)
      function("GeluGrad", R"(GeluGrad (dy, x) => (dx) {
        one_double = Constant <value: tensor = double {1}> ()
        half_double = Constant <value: tensor = double {0.5}> ()
        sqrt_half_double = Constant <value: tensor = double {0.70710678118654752}> ()
        minus_half_double = Constant <value: tensor = double {-0.5}> ()
        peak_double = Constant <value: tensor = double {0.39894228040143268}> ()
        one = CastLike(one_double, x)
        half = CastLike(half_double, x)
        sqrt_half = CastLike(sqrt_half_double, x)
        minus_half = CastLike(minus_half_double, x)
        peak = CastLike(peak_double, x)
        scaled = Mul(x, sqrt_half)
        error = Erf(scaled)
        twice_cumulative = Add(error, one)
        cumulative = Mul(twice_cumulative, half)
        square = Mul(x, x)
        exponent = Mul(square, minus_half)
        bell = Exp(exponent)
        density = Mul(bell, peak)
        rise = Mul(x, density)
        slope = Add(cumulative, rise)
        dx = Mul(dy, slope)
      })"),
      // y = x (1 + t) / 2, t = tanh(u), u = √(2/π) (x + 0.044715 x³)
      // dx = dy ((1 + t) + x (1 - t²) u') / 2, u' = √(2/π) (1 + 0.134145 x²)
      function("GeluTanhGrad", R"(GeluTanhGrad (dy, x) => (dx) {
        one_double = Constant <value: tensor = double {1}> ()
        half_double = Constant <value: tensor = double {0.5}> ()
        scale_double = Constant <value: tensor = double {0.79788456080286536}> ()
        cubic_double = Constant <value: tensor = double {0.044715}> ()
        cubic_slope_double = Constant <value: tensor = double {0.134145}> ()
        one = CastLike(one_double, x)
        half = CastLike(half_double, x)
        scale = CastLike(scale_double, x)
        cubic = CastLike(cubic_double, x)
        cubic_slope = CastLike(cubic_slope_double, x)
        square = Mul(x, x)
        cube = Mul(square, x)
        cube_part = Mul(cube, cubic)
        sum = Add(x, cube_part)
        u = Mul(sum, scale)
        t = Tanh(u)
        square_part = Mul(square, cubic_slope)
        u_slope_part = Add(square_part, one)
        u_slope = Mul(u_slope_part, scale)
        t_square = Mul(t, t)
        t_slope = Sub(one, t_square)
        chain = Mul(t_slope, u_slope)
        rise = Mul(x, chain)
        one_and_t = Add(one, t)
        twice_slope = Add(one_and_t, rise)
        slope = Mul(twice_slope, half)
        dx = Mul(dy, slope)
      })"),
      // y = x sigmoid(alpha x): for models of an opset before 24, which has it
      function("Swish", R"(Swish <alpha: float = 1> (x) => (y) {
        alpha_float = Constant <value_float: float = @alpha> ()
        alpha_like = CastLike(alpha_float, x)
        scaled = Mul(x, alpha_like)
        gate = Sigmoid(scaled)
        y = Mul(x, gate)
      })"),
      // y = x s, s = sigmoid(alpha x)    dx = dy (s + alpha x s (1 - s))
      function("SwishGrad", R"(SwishGrad <alpha: float = 1> (dy, x) => (dx) {
        one_float = Constant <value: tensor = float {1}> ()
        one = CastLike(one_float, x)
        alpha_float = Constant <value_float: float = @alpha> ()
        alpha_like = CastLike(alpha_float, x)
        scaled = Mul(x, alpha_like)
        gate = Sigmoid(scaled)
        rest = Sub(one, gate)
        gate_slope = Mul(gate, rest)
        rise = Mul(scaled, gate_slope)
        slope = Add(gate, rise)
        dx = Mul(dy, slope)
      })"),
      // y = softmax(x) along the axis    dx = y (dy - Σ dy y)
      function("SoftmaxGrad", R"(SoftmaxGrad <axis: int = -1> (dy, y) => (dx) {
        axis_scalar = Constant <value_int: int = @axis> ()
        first = Constant <value: tensor = int64[1] {0}> ()
        axes = Unsqueeze(axis_scalar, first)
        weighted = Mul(dy, y)
        sum = ReduceSum(weighted, axes)
        centered = Sub(dy, sum)
        dx = Mul(y, centered)
      })"),
      // y = log softmax(x) along the axis    dx = dy - exp(y) Σ dy
      function("LogSoftmaxGrad", R"(LogSoftmaxGrad <axis: int = -1> (dy, y) => (dx) {
        axis_scalar = Constant <value_int: int = @axis> ()
        first = Constant <value: tensor = int64[1] {0}> ()
        axes = Unsqueeze(axis_scalar, first)
        sum = ReduceSum(dy, axes)
        probability = Exp(y)
        share = Mul(probability, sum)
        dx = Sub(dy, share)
      })"),
  };
}

}  // namespace onnx_train
