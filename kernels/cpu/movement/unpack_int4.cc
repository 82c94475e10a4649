// UnpackInt4: integers of 4 bits, two in a byte, as int8.
#include <bit>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/math/int4.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

static_assert(std::endian::native == std::endian::little);  // two bytes of the output are one number

Prepared prepare_unpack_int4(const NodeSpec& spec) {
  Prepared prepared;
  prepared.run = [bytes = spec.in_size()](const Launch& launch) {
    const auto* from = launch.in<uint8_t>(0);
    auto* to = launch.out<uint16_t>();
    parallel_for(bytes, kElementGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = math::unpacked_int4(from[i]);
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
