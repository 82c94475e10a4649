// UnpackInt4: integers of 4 bits, two in a byte, as int8.
#include "kernels/cuda/support/elements.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/math/int4.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

constexpr int kOfThread = 8;  // bytes that a thread reads; it writes 16

// Both integers of a byte are one number of 16 bits. `threads` is the number of threads that have bytes.
__global__ void unpack_int4(int64_t threads, int64_t bytes, const uint8_t* packed, uint16_t* pairs) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= threads) return;
  const int64_t begin = thread * kOfThread;
  if (begin + kOfThread > bytes) {
    for (int64_t i = begin; i < bytes; ++i) pairs[i] = math::unpacked_int4(packed[i]);
    return;
  }
  const auto read = load<kOfThread>(packed + begin);
  Elements<kOfThread, uint16_t> written;
  for (int i = 0; i < kOfThread; ++i) written[i] = math::unpacked_int4(read[i]);
  store(written, pairs + begin);
}

Prepared prepare_unpack_int4(const NodeSpec& spec) {
  return {[bytes = spec.in_size()](const Launch& launch) {
    enqueue_each(launch, "unpack_int4", unpack_int4, (bytes + kOfThread - 1) / kOfThread, bytes, launch.in<uint8_t>(0),
                 launch.out<uint16_t>());
  }};
}

}  // namespace

std::vector<Kernel> unpack_int4_kernels() {
  const auto supports = [](const NodeSpec& spec) {
    return spec.in_type() == DType::kUint8 && spec.out_type() == DType::kInt8 && spec.out_size() == 2 * spec.in_size();
  };
  return {{"UnpackInt4", supports, prepare_unpack_int4, kDomain}};
}

}  // namespace onnx_train::cuda
