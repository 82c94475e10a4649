// UnpackInt4: integers of 4 bits, two in a byte, as int8.
#include <bit>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// Both integers of a byte, the low half first in memory.
uint16_t unpacked(uint8_t byte) {
  static_assert(std::endian::native == std::endian::little);
  const auto bits = static_cast<uint32_t>(byte);
  const uint32_t halves = (bits & 0x0f) | (bits << 4 & 0x0f00);
  return static_cast<uint16_t>(halves | (halves & 0x0808) * 0x1e);  // the sign bit of each, four times more
}

Prepared prepare_unpack_int4(const NodeSpec& spec) {
  Prepared prepared;
  prepared.run = [bytes = spec.in_size()](const Launch& launch) {
    const auto* from = launch.in<uint8_t>(0);
    auto* to = launch.out<uint16_t>();
    parallel_for(bytes, kElementGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = unpacked(from[i]);
    });
  };
  return prepared;
}

}  // namespace

std::vector<Kernel> unpack_int4_kernels() {
  const auto supports = [](const NodeSpec& spec) {
    return spec.in_type() == DType::kUint8 && spec.out_type() == DType::kInt8 && spec.out_size() == 2 * spec.in_size();
  };
  return {{"UnpackInt4", supports, prepare_unpack_int4, kDomain}};
}

}  // namespace onnx_train::cpu
