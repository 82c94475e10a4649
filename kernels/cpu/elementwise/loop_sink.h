// The sink that makes the CPU's rows of the element-wise operators (kernels/elementwise.h). Included only by the files
// that each compile one group. One thread uses a sink.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/elementwise/choose.h"
#include "kernels/cpu/elementwise/loops.h"
#include "kernels/cpu/support/maps.h"
#include "kernels/elementwise.h"

namespace onnx_train::cpu {

// ---- Loops

template <typename T, typename Op>
ElementwiseLoop unary_loop(Op op) {
  using R = decltype(op(T{}));
  return [op](int64_t n, const LoopOperand* in, void* out) { map(n, in[0].as<T>(), static_cast<R*>(out), op); };
}

template <typename A, typename B, typename R, typename Op>
void run_binary(int64_t n, const LoopOperand* in, void* out, Op op) {
  map(n, in[0].as<A>(), in[0].moves, in[1].as<B>(), in[1].moves, static_cast<R*>(out), op);
}

template <typename T, typename Op>
ElementwiseLoop binary_loop(Op op) {
  using R = decltype(op(T{}, T{}));
  return [op](int64_t n, const LoopOperand* in, void* out) { run_binary<T, T, R>(n, in, out, op); };
}

template <typename T, typename E>
ElementwiseLoop power_loop(bool one_exponent) {
  return [one_exponent](int64_t n, const LoopOperand* in, void* out) {
    const T* base = in[0].as<T>();
    T* y = static_cast<T*>(out);
    switch (one_exponent && in[0].moves ? math::exponent_of_product<T>(*in[1].as<E>()) : 0) {
      case 2: return map(n, base, y, math::Square{});
      case 3: return map(n, base, y, math::Cube{});
      default: return run_binary<T, E, T>(n, in, out, math::Pow{});
    }
  };
}

template <typename From, typename To>
ElementwiseLoop cast_loop() {
  if constexpr (std::is_same_v<From, To>) {
    return [](int64_t n, const LoopOperand* in, void* out) {
      if (in[0].data != out) std::memcpy(out, in[0].data, static_cast<size_t>(n) * sizeof(From));
    };
  } else if constexpr (std::is_same_v<From, bool>) {
    return cast_loop<uint8_t, To>();  // the same bytes; GCC 12 does not vectorize reading bool
  } else {
    return unary_loop<From>(math::Convert<To>{});
  }
}

template <typename T>
ElementwiseLoop choose_loop() {
  return [](int64_t n, const LoopOperand* in, void* out) {
    select_choose<T>(in[0].moves, in[1].moves, in[2].moves)(n, in[0].as<uint8_t>(), in[1].as<T>(), in[2].as<T>(),
                                                            static_cast<T*>(out));
  };
}

// ---- Rows

inline DType type_of(const Node& node, int input = 0) { return node.input(input)->dtype(); }

class LoopSink {
 public:
  std::vector<ElementwiseRow> rows() { return std::move(rows_); }

  template <typename Types, typename Formula>
  void unary(const char* op, Types types, Formula formula, const char* domain = "") {
    of_one_type(op, domain, 1, types, [=]<typename T>(const Node& node, T t) {
      return formula(node, t, [](auto f) { return unary_loop<T>(f); });
    });
  }

  template <typename Types, typename Formula>
  void binary(const char* op, Types types, Formula formula, const char* domain = "") {
    of_one_type(op, domain, 2, types, [=]<typename T>(const Node& node, T t) {
      return formula(node, t, [](auto f) { return binary_loop<T>(f); });
    });
  }

  template <typename Types, typename F>
  void variadic(const char* op, Types types, F f, Combination combination) {
    of_one_type(op, "", 2, types, [=]<typename T>(const Node&, T) { return binary_loop<T>(f); });
    rows_.back().make_scale = [=](const Node& node) -> ElementwiseLoop {
      if (combination == Combination::kWhole) return {};
      return dispatch_float(type_of(node), [&]<typename T>(T) {
        return unary_loop<T>(math::Scale<T>{T{1} / static_cast<T>(node.num_inputs())});
      });
    };
  }

  void power(const char* op) {
    const auto supports = [](const Node& node) {
      return PowerBases{}.contains(type_of(node)) && is_numeric(type_of(node, 1));
    };
    rows_.push_back({op, "", 2, false, supports, [](const Node& node) {
                       const bool one_exponent = num_elements(node.input(1)->type().shape()) == 1;
                       return PowerBases{}.dispatch(type_of(node), [&]<typename T>(T) {
                         return dispatch_numeric(type_of(node, 1),
                                                 [&]<typename E>(E) { return power_loop<T, E>(one_exponent); });
                       });
                     }});
  }

  void clip(const char* op) {
    of_one_type(op, "", 1, Numbers{}, []<typename T>(const Node& node, T) -> ElementwiseLoop {
      return [has_low = node.input(1) != nullptr, has_high = node.input(2) != nullptr](int64_t n, const LoopOperand* in,
                                                                                       void* out) {
        map(n, in[0].as<T>(), static_cast<T*>(out),
            math::Clip<T>::between(has_low ? in[1].as<T>() : nullptr, has_high ? in[2].as<T>() : nullptr));
      };
    });
  }

  void dropout_gradient(const char* op, const char* domain) {
    const auto supports = [](const Node& node) {
      return is_float_or_double(type_of(node)) && type_of(node, 1) == DType::kBool &&
             is_float_or_double(type_of(node, 2));
    };
    rows_.push_back({op, domain, 2, false, supports, [](const Node& node) {
                       return dispatch_float(type_of(node), [&]<typename T>(T) {
                         return dispatch_float(type_of(node, 2), []<typename R>(R) -> ElementwiseLoop {
                           return [](int64_t n, const LoopOperand* in, void* out) {
                             run_binary<T, uint8_t, T>(n, in, out, math::DropoutGrad<T>::of_ratio(*in[2].as<R>()));
                           };
                         });
                       });
                     }});
  }

  void choose(const char* op) {
    rows_.push_back({op, "", 3, false, [](const Node& node) { return is_movable(node.output()->dtype()); },
                     [](const Node& node) {
                       return dispatch_size(size_of(node.output()->dtype()),
                                            []<typename T>(T) { return choose_loop<T>(); });
                     }});
  }

  void cast(const char* op) {
    const auto supports = [](const Node& node) {
      return Castable{}.contains(type_of(node)) && Castable{}.contains(node.output()->dtype());
    };
    rows_.push_back({op, "", 1, false, supports, [](const Node& node) {
                       return Castable{}.dispatch(type_of(node), [&]<typename From>(From) {
                         return Castable{}.dispatch(node.output()->dtype(),
                                                    []<typename To>(To) { return cast_loop<From, To>(); });
                       });
                     }});
  }

 private:
  // `make(node, T{})` returns the loop for elements of type T.
  template <typename Types, typename Make>
  void of_one_type(const char* op, const char* domain, int operands, Types types, Make make) {
    const auto supports = [types](const Node& node) {
      for (const Value* input : node.inputs()) {
        if (input && input->dtype() != type_of(node)) return false;
      }
      return types.contains(type_of(node));
    };
    rows_.push_back({op, domain, operands, true, supports, [=](const Node& node) {
                       return types.dispatch(type_of(node), [&](auto t) -> ElementwiseLoop { return make(node, t); });
                     }});
  }

  std::vector<ElementwiseRow> rows_;
};

}  // namespace onnx_train::cpu
