// Integers of 4 bits, two in a byte, the first in the low half. Stateless; host and device code share it.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace onnx_train::math {

// Both integers of a byte as int8, the first in the low half of the result.
ONNX_TRAIN_HD constexpr uint16_t unpacked_int4(uint8_t byte) {
  const auto bits = static_cast<uint32_t>(byte);
  const uint32_t halves = (bits & 0x0f) | (bits << 4 & 0x0f00);
  return static_cast<uint16_t>(halves | (halves & 0x0808) * 0x1e);  // the sign bit of each, four times more
}

}  // namespace onnx_train::math
