// Casts of many float32 tensors to 16 bits (lowering/merge_casts.cc), up to kMostTensors in one launch.
#include <algorithm>
#include <vector>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/tensor_list.h"
#include "kernels/geometry/casts.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

constexpr int kMostTensors = 96;  // of a launch: they are its parameters
constexpr int kOfThread = 8;      // elements: one access of 16 bytes writes them
static_assert(kOfBlock == int64_t{kThreads} * kOfThread);

struct Tensor {
  const float* x;
  void* y;
  int64_t size, first_block;
};

using Tensors = TensorList<Tensor, kMostTensors>;

template <typename S>
__global__ void cast_tensors(Tensors tensors) {
  int64_t begin = 0;
  const Tensor& tensor = tensors.of_block(&begin);
  begin += int64_t{threadIdx.x} * kOfThread;
  if (begin >= tensor.size) return;
  const float* const x = tensor.x + begin;
  S* const y = static_cast<S*>(tensor.y) + begin;
  if (begin + kOfThread > tensor.size) {
    for (int64_t i = 0; i < tensor.size - begin; ++i) y[i] = math::convert<S>(x[i]);
    return;
  }
  Pack<S, kOfThread> rounded;
  for (int half = 0; half < 2; ++half) {
    const auto four = reinterpret_cast<const Pack<float, kOfThread / 2>*>(x)[half];
    for (int i = 0; i < kOfThread / 2; ++i) rounded.at[half * kOfThread / 2 + i] = math::convert<S>(four.at[i]);
  }
  *reinterpret_cast<Pack<S, kOfThread>*>(y) = rounded;
}

template <typename S>
Prepared prepare_casts_to(std::vector<TensorCast> casts) {
  std::erase_if(casts, [](const TensorCast& cast) { return cast.size == 0; });
  return {[casts](const Launch& launch) {
    for (size_t first = 0; first < casts.size(); first += kMostTensors) {
      Tensors tensors = {};
      for (size_t i = first; i < std::min(casts.size(), first + kMostTensors); ++i)
        tensors.add({launch.in<float>(casts[i].input), launch.outputs[casts[i].output], casts[i].size, 0});
      enqueue(launch, "cast_tensors", cast_tensors<S>, static_cast<unsigned>(tensors.blocks), kThreads, 0, tensors);
    }
  }};
}

Prepared prepare_casts(const NodeSpec& spec) {
  return spec.out_type() == DType::kBFloat16 ? prepare_casts_to<BFloat16>(tensor_casts(spec))
                                             : prepare_casts_to<__half>(tensor_casts(spec));
}

}  // namespace

std::vector<Kernel> cast_tensors_rows() {
  return {{"Casts", [](const NodeSpec& spec) { return !tensor_casts(spec).empty(); }, prepare_casts, kDomain}};
}

}  // namespace onnx_train::cuda
