// Comparisons, boolean and bitwise operators, and selection.
#include "kernels/cpu/elementwise/choose.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/support/maps.h"
#include "kernels/math/binary.h"
#include "kernels/math/unary.h"

namespace onnx_train::cpu {
namespace {

bool takes_any(const NodeSpec& spec) { return takes_numbers(spec) || spec.in_type() == DType::kBool; }
bool takes_integers(const NodeSpec& spec) { return is_integer(spec.in_type()); }
bool takes_bools(const NodeSpec& spec) { return spec.in_type() == DType::kBool; }

template <typename Op>
Kernel comparison(const char* op) {
  return {op, takes_any, [](const NodeSpec& spec) {
            return dispatch_any(spec.in_type(), [&](auto t) {
              using T = decltype(t);
              return prepare_binary<T, T, bool>(spec, Op{});
            });
          }};
}

template <typename Op>
Kernel logical(const char* op) {
  return {op, takes_bools, [](const NodeSpec& spec) { return prepare_binary<bool, bool, bool>(spec, Op{}); }};
}

template <typename Op>
Prepared prepare_bitwise(const NodeSpec& spec) {
  return dispatch_size(size_of(spec.in_type()), [&](auto t) {
    using T = decltype(t);
    return prepare_binary<T, T, T>(spec, Op{});
  });
}

Prepared prepare_bitwise_not(const NodeSpec& spec) {
  return dispatch_size(size_of(spec.in_type()),
                       [&](auto t) { return prepare_unary<decltype(t), decltype(t)>(spec, math::BitwiseNot{}); });
}

Prepared prepare_shift(const NodeSpec& spec) {
  const bool left = spec.node().attr("direction", "") == "LEFT";
  return dispatch_numeric(spec.in_type(), [&](auto t) -> Prepared {
    using T = decltype(t);
    if constexpr (std::is_integral_v<T>) {
      return left ? prepare_binary<T, T, T>(spec, math::ShiftLeft{})
                  : prepare_binary<T, T, T>(spec, math::ShiftRight{});
    } else {
      fail(spec.node().label(), ": shifts of floats");
    }
  });
}

Prepared prepare_is_nan(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&](auto t) { return prepare_unary<decltype(t), bool>(spec, math::IsNaN{}); });
}

Prepared prepare_is_inf(const NodeSpec& spec) {
  const math::IsInf op{spec.node().attr("detect_positive", 1) != 0, spec.node().attr("detect_negative", 1) != 0};
  return dispatch_float(spec.in_type(), [&](auto t) { return prepare_unary<decltype(t), bool>(spec, op); });
}

// ---- Where: elements are only copied, so it depends on their size alone.

template <typename T>
Prepared prepare_where(const NodeSpec& spec) {
  const Broadcast broadcast(spec.out_shape(), {spec.in_shape(0), spec.in_shape(1), spec.in_shape(2)});
  Prepared prepared;
  prepared.run = [broadcast, run = select_choose<T>(broadcast.moves(0), broadcast.moves(1), broadcast.moves(2))](
                     const Launch& launch) {
    const uint8_t* condition = launch.in<uint8_t>(0);
    const T *a = launch.in<T>(1), *b = launch.in<T>(2);
    T* y = launch.out<T>();
    parallel_for(broadcast.size(), kElementGrain, [&](int64_t begin, int64_t end) {
      broadcast.for_each_run(begin, end, [&](int64_t first, int64_t count, const Broadcast::Offsets& at) {
        run(count, condition + at[0], a + at[1], b + at[2], y + first);
      });
    });
  };
  prepared.in_place = in_place_of_equal_inputs(spec);
  return prepared;
}

Prepared prepare_where_of_any_type(const NodeSpec& spec) {
  return dispatch_size(size_of(spec.out_type()), [&](auto t) { return prepare_where<decltype(t)>(spec); });
}

}  // namespace

std::vector<Kernel> logic_kernels() {
  return {
      comparison<math::Equal>("Equal"),
      comparison<math::Less>("Less"),
      comparison<math::LessOrEqual>("LessOrEqual"),
      comparison<math::Greater>("Greater"),
      comparison<math::GreaterOrEqual>("GreaterOrEqual"),
      logical<math::BitwiseAnd>("And"),
      logical<math::BitwiseOr>("Or"),
      logical<math::BitwiseXor>("Xor"),
      {"Not", takes_bools, [](const NodeSpec& spec) { return prepare_unary<bool, bool>(spec, math::Not{}); }},
      {"BitwiseAnd", takes_integers, prepare_bitwise<math::BitwiseAnd>},
      {"BitwiseOr", takes_integers, prepare_bitwise<math::BitwiseOr>},
      {"BitwiseXor", takes_integers, prepare_bitwise<math::BitwiseXor>},
      {"BitwiseNot", takes_integers, prepare_bitwise_not},
      {"BitShift", takes_integers, prepare_shift},
      {"IsNaN", takes_floats, prepare_is_nan},
      {"IsInf", takes_floats, prepare_is_inf},
      {"Where", [](const NodeSpec& spec) { return is_movable(spec.out_type()); }, prepare_where_of_any_type},
  };
}

}  // namespace onnx_train::cpu
