#pragma once

#include <cstdint>
#include <type_traits>

namespace onnx_train::cuda {

// The type of sums of Ts: floats sum as floats, by hundreds of threads each of which sums a part, so that errors stay
// small; integers may wrap.
template <typename T>
using DeviceWide = std::conditional_t<std::is_floating_point_v<T>, T, uint64_t>;

}  // namespace onnx_train::cuda
