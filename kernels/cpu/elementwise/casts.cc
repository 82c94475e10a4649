// Cast and CastLike between all element types that occupy whole bytes.
#include <cstring>
#include <type_traits>

#include "kernels/cpu/elementwise/convert.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/support/maps.h"

namespace onnx_train::cpu {
namespace {

template <typename From, typename To>
Prepared prepare_cast(const NodeSpec& spec) {
  if constexpr (std::is_same_v<From, To>) {
    Prepared prepared;
    prepared.run = [bytes = static_cast<size_t>(spec.in_size()) * sizeof(From)](const Launch& launch) {
      if (bytes > 0 && launch.outputs[0] != launch.inputs[0]) std::memcpy(launch.outputs[0], launch.inputs[0], bytes);
    };
    prepared.in_place = {{0, 0}};
    return prepared;
  } else if constexpr (std::is_same_v<From, bool>) {
    return prepare_cast<uint8_t, To>(spec);  // the same bytes; GCC 12 does not vectorize reading bool
  } else {
    return prepare_unary<From, To>(spec, [](From x) { return convert<To>(x); });
  }
}

bool is_castable(DType dtype) {
  return is_numeric(dtype) || dtype == DType::kBool || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

template <typename F>
Prepared dispatch_castable(DType dtype, F&& f) {
  if (dtype == DType::kFloat16) return f(Float16{});
  if (dtype == DType::kBFloat16) return f(BFloat16{});
  return dispatch_any(dtype, f);
}

Kernel cast(const char* op) {
  return {op, [](const NodeSpec& spec) { return is_castable(spec.in_type()) && is_castable(spec.out_type()); },
          [](const NodeSpec& spec) {
            return dispatch_castable(spec.in_type(), [&](auto from) {
              return dispatch_castable(spec.out_type(),
                                       [&](auto to) { return prepare_cast<decltype(from), decltype(to)>(spec); });
            });
          }};
}

}  // namespace

std::vector<Kernel> cast_kernels() { return {cast("Cast"), cast("CastLike")}; }

}  // namespace onnx_train::cpu
