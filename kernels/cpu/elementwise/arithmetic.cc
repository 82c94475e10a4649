// Arithmetic of all numeric types.
#include <algorithm>
#include <limits>

#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/support/maps.h"
#include "kernels/math/binary.h"
#include "kernels/math/unary.h"

namespace onnx_train::cpu {
namespace {

template <typename Op>
Kernel binary(const char* op) {
  return {op, takes_numbers, [](const NodeSpec& spec) {
            return dispatch_numeric(spec.in_type(), [&](auto t) {
              using T = decltype(t);
              return prepare_binary<T, T, T>(spec, Op{});
            });
          }};
}

template <typename Op>
Kernel unary(const char* op) {
  return {op, takes_numbers, [](const NodeSpec& spec) {
            return dispatch_numeric(spec.in_type(),
                                    [&](auto t) { return prepare_unary<decltype(t), decltype(t)>(spec, Op{}); });
          }};
}

Prepared prepare_mod(const NodeSpec& spec) {
  return dispatch_numeric(spec.in_type(), [&](auto t) {
    using T = decltype(t);
    return spec.node().attr("fmod", 0) != 0 ? prepare_binary<T, T, T>(spec, math::TruncatedMod{})
                                            : prepare_binary<T, T, T>(spec, math::FloorMod{});
  });
}

// ---- Pow: squares and cubes, the common exponents, are computed as products.

template <typename F>
Prepared dispatch_power_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat: return f(float{});
    case DType::kDouble: return f(double{});
    case DType::kInt32: return f(int32_t{});
    case DType::kInt64: return f(int64_t{});
    default: fail("a Pow kernel got ", name(dtype));
  }
}

bool is_power_type(DType dtype) {
  return is_float_or_double(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64;
}

template <typename T, typename E>
Prepared prepare_pow(const NodeSpec& spec) {
  Prepared prepared;
  const Broadcast broadcast(spec.out_shape(), {spec.in_shape(0), spec.in_shape(1)});
  const bool one_exponent = spec.in_size(1) == 1;
  prepared.run = [broadcast, one_exponent](const Launch& launch) {
    const T* base = launch.in<T>(0);
    const E* exponent = launch.in<E>(1);
    T* y = launch.out<T>();
    const auto powers = [&](auto op) {
      parallel_for(broadcast.size(), kElementGrain, [=](int64_t b, int64_t e) { map(e - b, base + b, y + b, op); });
    };
    if constexpr (std::is_floating_point_v<T>) {
      if (one_exponent && *exponent == E{2}) return powers(math::Square{});
      if (one_exponent && *exponent == E{3}) return powers(math::Cube{});
    }
    map(broadcast, base, exponent, y, math::Pow{});
  };
  prepared.in_place = in_place_of_equal_inputs(spec);
  return prepared;
}

Kernel pow_kernel() {
  return {"Pow", [](const NodeSpec& spec) { return is_power_type(spec.in_type(0)) && is_numeric(spec.in_type(1)); },
          [](const NodeSpec& spec) {
            return dispatch_power_type(spec.in_type(0), [&](auto base) {
              return dispatch_numeric(spec.in_type(1), [&](auto exponent) {
                return prepare_pow<decltype(base), decltype(exponent)>(spec);
              });
            });
          }};
}

// ---- Variadic: combines the first two operands into the output, then adds one operand at a time.

struct SecondOf {
  template <typename T>
  T operator()(T, T b) const {
    return b;
  }
};

template <typename T, typename Op>
Prepared prepare_variadic(const NodeSpec& spec, Op op, T scale) {
  const Shape out = spec.out_shape();
  const int inputs = spec.num_inputs();
  std::vector<Broadcast> steps;
  steps.push_back(Broadcast(out, {spec.in_shape(0), spec.in_shape(inputs > 1 ? 1 : 0)}));
  for (int i = 2; i < inputs; ++i) steps.push_back(Broadcast(out, {out, spec.in_shape(i)}));
  Prepared prepared;
  prepared.run = [steps, op, scale, inputs](const Launch& launch) {
    T* y = launch.out<T>();
    if (inputs == 1) return map(steps[0], launch.in<T>(0), launch.in<T>(0), y, SecondOf{});
    map(steps[0], launch.in<T>(0), launch.in<T>(1), y, op);
    for (int i = 2; i < inputs; ++i) map<T, T, T>(steps[static_cast<size_t>(i) - 1], y, launch.in<T>(i), y, op);
    if (scale != T{1}) {
      parallel_for(steps[0].size(), kElementGrain, [=](int64_t begin, int64_t end) {
        map(end - begin, y + begin, y + begin, [=](T x) { return x * scale; });
      });
    }
  };
  // Operands after the second are read after the output has been written, so they must not share its memory.
  const auto& operands = spec.node().inputs();
  for (const InPlace& pair : in_place_of_equal_inputs(spec)) {
    const Value* operand = operands[static_cast<size_t>(pair.input)];
    if (std::find(operands.begin() + std::min(2, inputs), operands.end(), operand) == operands.end()) {
      prepared.in_place.push_back(pair);
    }
  }
  return prepared;
}

template <typename Op>
Kernel variadic(const char* op) {
  return {op, takes_numbers, [](const NodeSpec& spec) {
            return dispatch_numeric(spec.in_type(),
                                    [&](auto t) { return prepare_variadic(spec, Op{}, decltype(t){1}); });
          }};
}

Kernel mean() {
  return {"Mean", takes_floats, [](const NodeSpec& spec) {
            return dispatch_float(spec.in_type(), [&](auto t) {
              using T = decltype(t);
              return prepare_variadic(spec, math::Add{}, T{1} / static_cast<T>(spec.num_inputs()));
            });
          }};
}

// ---- Clip: the bounds are scalars, read at run time.

template <typename T>
Prepared prepare_clip(const NodeSpec& spec) {
  Prepared prepared;
  const bool has_low = spec.has_input(1), has_high = spec.has_input(2);
  prepared.run = [n = spec.in_size(), has_low, has_high](const Launch& launch) {
    using Limits = std::numeric_limits<T>;
    constexpr T kLowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    constexpr T kHighest = Limits::has_infinity ? Limits::infinity() : Limits::max();
    const math::Clip<T> op{has_low ? *launch.in<T>(1) : kLowest, has_high ? *launch.in<T>(2) : kHighest};
    const T* x = launch.in<T>(0);
    T* y = launch.out<T>();
    parallel_for(n, kElementGrain, [=](int64_t begin, int64_t end) { map(end - begin, x + begin, y + begin, op); });
  };
  prepared.in_place = {{0, 0}};
  return prepared;
}

Prepared prepare_clip_of_any_type(const NodeSpec& spec) {
  return dispatch_numeric(spec.in_type(), [&](auto t) { return prepare_clip<decltype(t)>(spec); });
}

}  // namespace

std::vector<Kernel> arithmetic_kernels() {
  return {
      binary<math::Add>("Add"),
      binary<math::Sub>("Sub"),
      binary<math::Mul>("Mul"),
      binary<math::Div>("Div"),
      {"Mod", takes_numbers, prepare_mod},
      pow_kernel(),
      unary<math::Neg>("Neg"),
      unary<math::Abs>("Abs"),
      unary<math::Sign>("Sign"),
      variadic<math::Max>("Max"),
      variadic<math::Min>("Min"),
      variadic<math::Add>("Sum"),
      mean(),
      {"Clip", takes_numbers, prepare_clip_of_any_type},
  };
}

}  // namespace onnx_train::cpu
