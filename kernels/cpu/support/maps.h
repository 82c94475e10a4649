// Kernels made from scalar functors (kernels/math): element-wise, with one operand or several broadcast operands.
// Shared by the element-wise and the activation family. Functions that take a NodeSpec run while a kernel is prepared.
#pragma once

#include <type_traits>

#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/elementwise/convert.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/dispatch.h"
#include "kernels/kernel.h"

namespace onnx_train::cpu {

// Integer loops are compiled for the baseline only: more variants would add many copies for little gain.
template <typename T>
inline constexpr bool kWorthWideVectors = std::is_floating_point_v<T> || kIsHalf<T>;

// y[i] = op(x[i]). y may be x.
template <typename T, typename R, typename Op>
void map(int64_t n, const T* x, R* y, Op op) {
  const auto loop = [=] {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = op(x[i]);
  };
  if constexpr (kWorthWideVectors<T>) {
    vectorized(loop);
  } else {
    loop();
  }
}

// y[i] = op(a[i], b[i]); an operand that does not move is one scalar. y may be an operand that moves.
template <typename A, typename B, typename R, typename Op>
void map(int64_t n, const A* a, bool a_moves, const B* b, bool b_moves, R* y, Op op) {
  const auto loop = [=] {
    if (a_moves && b_moves) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = op(a[i], b[i]);
    } else if (a_moves) {
      const B scalar = *b;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = op(a[i], scalar);
    } else if (b_moves) {
      const A scalar = *a;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = op(scalar, b[i]);
    } else {  // two of several operands, both broadcast by a third
      const R value = op(*a, *b);
      for (int64_t i = 0; i < n; ++i) y[i] = value;
    }
  };
  if constexpr (kWorthWideVectors<A>) {
    vectorized(loop);
  } else {
    loop();
  }
}

// The same over a whole broadcast, in parallel.
template <typename A, typename B, typename R, typename Op>
void map(const Broadcast& broadcast, const A* a, const B* b, R* y, Op op) {
  parallel_for(broadcast.size(), kElementGrain, [&](int64_t begin, int64_t end) {
    broadcast.for_each_run(begin, end, [&](int64_t first, int64_t count, const Broadcast::Offsets& at) {
      map(count, a + at[0], broadcast.moves(0), b + at[1], broadcast.moves(1), y + first, op);
    });
  });
}

// ---- Prepared kernels

template <typename T, typename R, typename Op>
Prepared prepare_unary(const NodeSpec& spec, Op op) {
  Prepared prepared;
  prepared.run = [n = spec.in_size(), op](const Launch& launch) {
    const T* x = launch.in<T>(0);
    R* y = launch.out<R>();
    parallel_for(n, kElementGrain, [=](int64_t begin, int64_t end) { map(end - begin, x + begin, y + begin, op); });
  };
  if (sizeof(T) == sizeof(R)) prepared.in_place = {{0, 0}};
  return prepared;
}

// Output 0 may overwrite any input with as many elements of the same size.
inline std::vector<InPlace> in_place_of_equal_inputs(const NodeSpec& spec) {
  std::vector<InPlace> in_place;
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!spec.has_input(i) || spec.in_size(i) != spec.out_size()) continue;
    if (size_of(spec.in_type(i)) == size_of(spec.out_type())) in_place.push_back({0, i});
  }
  return in_place;
}

template <typename A, typename B, typename R, typename Op>
Prepared prepare_binary(const NodeSpec& spec, Op op) {
  Prepared prepared;
  const Broadcast broadcast(spec.out_shape(), {spec.in_shape(0), spec.in_shape(1)});
  prepared.run = [broadcast, op](const Launch& launch) {
    map(broadcast, launch.in<A>(0), launch.in<B>(1), launch.out<R>(), op);
  };
  prepared.in_place = in_place_of_equal_inputs(spec);
  return prepared;
}

// ---- Rows

inline bool takes_floats(const NodeSpec& spec) { return is_float_or_double(spec.in_type()); }
inline bool takes_numbers(const NodeSpec& spec) { return is_numeric(spec.in_type()); }

// op(x) for float32 and float64; `make(node, T{})` returns the functor.
template <typename Make>
Kernel float_unary(const char* op, Make make, const char* domain = "") {
  return {op, takes_floats,
          [make](const NodeSpec& spec) {
            return dispatch_float(spec.in_type(), [&](auto t) {
              return prepare_unary<decltype(t), decltype(t)>(spec, make(spec.node(), t));
            });
          },
          domain};
}

// op(a, b) for float32 and float64.
template <typename Make>
Kernel float_binary(const char* op, Make make, const char* domain = "") {
  return {op, takes_floats,
          [make](const NodeSpec& spec) {
            return dispatch_float(spec.in_type(), [&](auto t) {
              using T = decltype(t);
              return prepare_binary<T, T, T>(spec, make(spec.node(), t));
            });
          },
          domain};
}

}  // namespace onnx_train::cpu
