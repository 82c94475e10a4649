// The sink that makes the CUDA rows of the element-wise operators (kernels/elementwise.h). Included only by the files
// that each compile one group. One thread uses a sink.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/elementwise/map.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"

namespace onnx_train {
namespace cuda {
struct Half;
}
namespace math {
template <>
inline constexpr bool kIsHalf<cuda::Half> = true;
}
}  // namespace onnx_train

namespace onnx_train::cuda {

// ---- Functors that read scalars on the device

template <typename T>
struct ReadClip {
  const T *low, *high;
  __device__ math::Clip<T> operator()() const { return math::Clip<T>::between(low, high); }
};

template <typename T, typename R>
struct ReadDropoutGrad {
  const R* ratio;
  __device__ math::DropoutGrad<T> operator()() const { return math::DropoutGrad<T>::of_ratio(*ratio); }
};

// Pow with one exponent for all elements.
template <typename E>
struct OneExponent {
  E exponent;
  template <typename T>
  __device__ T operator()(T base) const {
    switch (math::exponent_of_product<T>(exponent)) {
      case 2: return math::Square{}(base);
      case 3: return math::Cube{}(base);
      default: return math::Pow{}(base, exponent);
    }
  }
};

template <typename E>
struct ReadExponent {
  const E* exponent;
  __device__ OneExponent<E> operator()() const { return {*exponent}; }
};

struct Choose {
  template <typename T>
  __device__ T operator()(uint8_t condition, T a, T b) const {
    return condition != 0 ? a : b;
  }
};

// float16 in device code: the compiler's own type; Float16 wraps a type that exists on hosts only.
struct Half {
  __half value;
  Half() = default;
  __host__ __device__ explicit Half(float x) : value(__float2half(x)) {}
  __host__ __device__ explicit operator float() const { return __half2float(value); }
};

template <typename T>
using OnDevice = std::conditional_t<std::is_same_v<T, Float16>, Half, T>;

// ---- Rows

class MapSink {
 public:
  std::vector<Kernel> rows() { return std::move(rows_); }

  template <typename Types, typename Formula>
  void unary(const char* op, Types types, Formula formula, const char* domain = "") {
    of_one_type(op, domain, types, [=]<typename T>(const NodeSpec& spec, T t) {
      return formula(spec.node(), t,
                     [&](auto f) { return prepare<decltype(f(T{})), T>(spec, op, Known<decltype(f)>{f}); });
    });
  }

  template <typename Types, typename Formula>
  void binary(const char* op, Types types, Formula formula, const char* domain = "") {
    of_one_type(op, domain, types, [=]<typename T>(const NodeSpec& spec, T t) {
      return formula(spec.node(), t,
                     [&](auto f) { return prepare<decltype(f(T{}, T{})), T, T>(spec, op, Known<decltype(f)>{f}); });
    });
  }

  template <typename Types, typename F>
  void variadic(const char* op, Types types, F f, Combination combination) {
    of_one_type(op, "", types, [=]<typename T>(const NodeSpec& spec, T) -> Prepared {
      std::function<void(const Launch&)> scale = [](const Launch&) {};
      if constexpr (std::is_floating_point_v<T>) {
        if (combination == Combination::kMean) scale = scaling<T>(spec);
      }
      return variadic_of<T>(spec, op, f, scale);
    });
  }

  void power(const char* op) {
    const auto supports = [](const NodeSpec& spec) {
      return PowerBases{}.contains(spec.in_type(0)) && PowerBases{}.contains(spec.in_type(1));
    };
    rows_.push_back({op, supports, [=](const NodeSpec& spec) {
                       return PowerBases{}.dispatch(spec.in_type(0), [&]<typename T>(T) {
                         return PowerBases{}.dispatch(spec.in_type(1),
                                                      [&]<typename E>(E) { return prepare_power<T, E>(spec, op); });
                       });
                     }});
  }

  void clip(const char* op) {
    of_one_type(op, "", Numbers{}, [=]<typename T>(const NodeSpec& spec, T) {
      return prepare_reading<T, T>(spec, op, [low = spec.has_input(1), high = spec.has_input(2)](const Launch& launch) {
        return ReadClip<T>{low ? launch.in<T>(1) : nullptr, high ? launch.in<T>(2) : nullptr};
      });
    });
  }

  void dropout_gradient(const char* op, const char* domain) {
    const auto supports = [](const NodeSpec& spec) {
      return is_float_or_double(spec.in_type(0)) && spec.in_type(1) == DType::kBool &&
             is_float_or_double(spec.in_type(2));
    };
    rows_.push_back({op, supports,
                     [=](const NodeSpec& spec) {
                       return dispatch_float(spec.in_type(0), [&]<typename T>(T) {
                         return dispatch_float(spec.in_type(2), [&]<typename R>(R) {
                           return prepare_reading<T, T, uint8_t>(
                               spec, op, [](const Launch& launch) { return ReadDropoutGrad<T, R>{launch.in<R>(2)}; });
                         });
                       });
                     },
                     domain});
  }

  void choose(const char* op) {
    rows_.push_back({op, [](const NodeSpec& spec) { return is_movable(spec.out_type()); },
                     [=](const NodeSpec& spec) {
                       return dispatch_size(size_of(spec.out_type()), [&]<typename T>(T) {
                         return prepare<T, uint8_t, T, T>(spec, op, Known<Choose>{});
                       });
                     }});
  }

  void cast(const char* op) {
    const auto supports = [](const NodeSpec& spec) {
      return Castable{}.contains(spec.in_type(0)) && Castable{}.contains(spec.out_type());
    };
    rows_.push_back({op, supports, [=](const NodeSpec& spec) {
                       return Castable{}.dispatch(spec.in_type(0), [&]<typename From>(From) {
                         return Castable{}.dispatch(spec.out_type(), [&]<typename To>(To) {
                           return prepare<OnDevice<To>, OnDevice<From>>(spec, op, Known<math::Convert<OnDevice<To>>>{});
                         });
                       });
                     }});
  }

 private:
  template <size_t kOperands>
  static std::shared_ptr<const MapPlan<kOperands>> plan_of(const NodeSpec& spec) {
    std::vector<Shape> shapes;
    for (size_t i = 0; i < kOperands; ++i) shapes.push_back(spec.in_shape(static_cast<int>(i)));
    return std::make_shared<MapPlan<kOperands>>(Broadcast(spec.out_shape(), shapes));
  }

  // Prepares the kernel of a functor that `make(launch)` makes from a run's scalars, or that is made on the device.
  template <typename R, typename... Ts, typename Make>
  static Prepared prepare_reading(const NodeSpec& spec, const char* op, Make make) {
    constexpr int kOperands = sizeof...(Ts);
    Prepared prepared;
    prepared.run = [=, plan = plan_of<sizeof...(Ts)>(spec)](const Launch& launch) {
      const auto run = [&]<size_t... kOperand>(std::index_sequence<kOperand...>) {
        run_map<R>(launch, op, *plan, make(launch), guard_of(launch, kOperands, 1), launch.out<R>(),
                   launch.in<Ts>(kOperand)...);
      };
      run(std::index_sequence_for<Ts...>{});
    };
    prepared.in_place = in_place_of_equal_inputs(spec, kOperands);
    return prepared;
  }

  template <typename R, typename... Ts, typename Make>
  static Prepared prepare(const NodeSpec& spec, const char* op, Make make) {
    return prepare_reading<R, Ts...>(spec, op, [make](const Launch&) { return make; });
  }

  template <typename T, typename E>
  static Prepared prepare_power(const NodeSpec& spec, const char* op) {
    if (spec.in_size(1) != 1) return prepare<T, T, E>(spec, op, Known<math::Pow>{});
    return prepare_reading<T, T>(spec, op, [](const Launch& launch) { return ReadExponent<E>{launch.in<E>(1)}; });
  }

  template <typename T>
  static std::function<void(const Launch&)> scaling(const NodeSpec& spec) {
    const Known<math::Scale<T>> scale{{T{1} / static_cast<T>(spec.num_inputs())}};
    return [scale, plan = std::make_shared<MapPlan<1>>(Broadcast(spec.out_shape(), {spec.out_shape()}))](
               const Launch& launch) {
      T* const y = launch.out<T>();
      run_map<T>(launch, "Scale", *plan, scale, guard_of(launch, 1, 1), y, static_cast<const T*>(y));
    };
  }

  // Combines the first two operands into the output, then adds one operand at a time.
  template <typename T, typename F>
  static Prepared variadic_of(const NodeSpec& spec, const char* op, F f,
                              const std::function<void(const Launch&)>& last) {
    const int inputs = spec.num_inputs();
    if (inputs == 1) {
      return {[bytes = static_cast<size_t>(spec.in_size()) * sizeof(T)](const Launch& launch) {
        if (bytes > 0 && launch.outputs[0] != launch.inputs[0])
          launch.stream->copy({launch.outputs[0], launch.inputs[0], bytes});
      }};
    }
    std::vector<MapPlan<2>> steps;
    for (int i = 1; i < inputs; ++i) {
      steps.emplace_back(Broadcast(spec.out_shape(), {i == 1 ? spec.in_shape(0) : spec.out_shape(), spec.in_shape(i)}));
    }
    Prepared prepared;
    prepared.run = [=,
                    steps = std::make_shared<const std::vector<MapPlan<2>>>(std::move(steps))](const Launch& launch) {
      T* const y = launch.out<T>();
      const Fault* const guard = guard_of(launch, inputs, 1);
      for (int i = 1; i < inputs; ++i) {
        run_map<T>(launch, op, (*steps)[static_cast<size_t>(i) - 1], Known<F>{f}, guard, y,
                   i == 1 ? launch.in<T>(0) : static_cast<const T*>(y), launch.in<T>(i));
      }
      last(launch);
    };
    prepared.in_place = in_place_of_first_two(spec);
    return prepared;
  }

  // `make(spec, T{})` prepares the node for elements of type T, the type of all inputs that are present.
  template <typename Types, typename Make>
  void of_one_type(const char* op, const char* domain, Types types, Make make) {
    const auto supports = [types](const NodeSpec& spec) {
      for (int i = 0; i < spec.num_inputs(); ++i) {
        if (spec.has_input(i) && spec.in_type(i) != spec.in_type(0)) return false;
      }
      return types.contains(spec.in_type(0));
    };
    rows_.push_back(
        {op, supports,
         [=](const NodeSpec& spec) { return types.dispatch(spec.in_type(0), [&](auto t) { return make(spec, t); }); },
         domain});
  }

  std::vector<Kernel> rows_;
};

}  // namespace onnx_train::cuda
