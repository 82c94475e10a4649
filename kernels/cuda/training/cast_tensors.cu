// Casts of many tensors from float32 to 16 bits, or back (kernels/lowering/fusion/merge_casts.cc), up to kMostTensors
// in one launch.
#include <algorithm>
#include <vector>

#include "kernels/cuda/support/elements.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/tensor_list.h"
#include "kernels/geometry/casts.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

constexpr int kMostTensors = 96;  // tensors per launch, passed as kernel parameters
constexpr int kOfThread = 8;      // elements of a thread: one access of 16 bytes on the 16-bit side
static_assert(kOfBlock == int64_t{kThreads} * kOfThread);

struct Tensor {
  const void* x;
  void* y;
  int64_t size, first_block;
};

using Tensors = TensorList<Tensor, kMostTensors>;

template <typename From, typename To>
__global__ void cast_tensors(Tensors tensors) {
  int64_t begin = 0;
  const Tensor& tensor = tensors.of_block(&begin);
  begin += int64_t{threadIdx.x} * kOfThread;
  if (begin >= tensor.size) return;
  const From* const x = static_cast<const From*>(tensor.x) + begin;
  To* const y = static_cast<To*>(tensor.y) + begin;
  if (begin + kOfThread > tensor.size) {
    for (int64_t i = 0; i < tensor.size - begin; ++i) y[i] = math::convert<To>(x[i]);
    return;
  }
  const auto read = load<kOfThread>(x);
  Elements<kOfThread, To> written;
  for (int i = 0; i < kOfThread; ++i) written[i] = math::convert<To>(read[i]);
  store(written, y);
}

template <typename From, typename To>
Prepared prepare_casts_to(std::vector<TensorCast> casts) {
  std::erase_if(casts, [](const TensorCast& cast) { return cast.size == 0; });
  return {[casts](const Launch& launch) {
    for (size_t first = 0; first < casts.size(); first += kMostTensors) {
      Tensors tensors = {};
      for (size_t i = first; i < std::min(casts.size(), first + kMostTensors); ++i)
        tensors.add({launch.inputs[casts[i].input], launch.outputs[casts[i].output], casts[i].size, 0});
      enqueue(launch, "cast_tensors", cast_tensors<From, To>, static_cast<unsigned>(tensors.blocks), kThreads, 0,
              tensors);
    }
  }};
}

Prepared prepare_casts(const NodeSpec& spec) {
  const std::vector<TensorCast> casts = tensor_casts(spec);
  const auto prepare = [&]<typename S>(S) {
    return spec.in_type() == DType::kFloat ? prepare_casts_to<float, S>(casts) : prepare_casts_to<S, float>(casts);
  };
  const bool is_bfloat16 = spec.in_type() == DType::kBFloat16 || spec.out_type() == DType::kBFloat16;
  return is_bfloat16 ? prepare(BFloat16{}) : prepare(__half{});
}

}  // namespace

std::vector<Kernel> cast_kernels() {
  return {{"Casts", [](const NodeSpec& spec) { return !tensor_casts(spec).empty(); }, prepare_casts, kDomain}};
}

}  // namespace onnx_train::cuda
