#pragma once

#include <cstdint>
#include <type_traits>

namespace onnx_train::cuda {

// The type of sums of Ts. Floats sum as floats: hundreds of threads sum a part each, so errors stay small. Integers
// wrap.
template <typename T>
using DeviceWide = std::conditional_t<std::is_floating_point_v<T>, T, uint64_t>;

}  // namespace onnx_train::cuda
