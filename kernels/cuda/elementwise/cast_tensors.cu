// Casts of many float32 tensors to 16 bits (lowering/merge_casts.cc), up to kMostTensors in one launch.
#include <algorithm>
#include <vector>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/casts.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

constexpr int kMostTensors = 96;  // of a launch: they are its parameters
constexpr int kOfThread = 8;      // elements: one access of 16 bytes writes them
constexpr int64_t kOfBlock = int64_t{kThreads} * kOfThread;

struct Tensor {
  const float* x;
  void* y;
  int64_t size, first_block;
};

struct Tensors {
  Tensor all[kMostTensors];
  int count;
};

template <typename S>
__global__ void cast_tensors(Tensors tensors) {
  int t = 0;
  while (t + 1 < tensors.count && tensors.all[t + 1].first_block <= blockIdx.x) ++t;
  const Tensor& tensor = tensors.all[t];
  const int64_t begin = (blockIdx.x - tensor.first_block) * kOfBlock + int64_t{threadIdx.x} * kOfThread;
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
void run(const Launch& launch, const TensorCast* begin, const TensorCast* end) {
  Tensors tensors = {};
  int64_t blocks = 0;
  for (const TensorCast* cast = begin; cast != end; ++cast) {
    tensors.all[tensors.count++] = {launch.in<float>(cast->input), launch.outputs[cast->output], cast->size, blocks};
    blocks += (cast->size + kOfBlock - 1) / kOfBlock;
  }
  enqueue(launch, "cast_tensors", cast_tensors<S>, static_cast<unsigned>(blocks), kThreads, 0, tensors);
}

Prepared prepare_casts(const NodeSpec& spec) {
  std::vector<TensorCast> casts = tensor_casts(spec);
  std::erase_if(casts, [](const TensorCast& cast) { return cast.size == 0; });
  return {dispatch_stored(spec.out_type(), [&]<typename S>(S) -> std::function<void(const Launch&)> {
    if constexpr (!math::kIsHalf<S>) {
      return nullptr;
    } else {
      return [casts](const Launch& launch) {
        for (size_t i = 0; i < casts.size(); i += kMostTensors) {
          run<S>(launch, &casts[i], casts.data() + std::min(casts.size(), i + kMostTensors));
        }
      };
    }
  })};
}

}  // namespace

std::vector<Kernel> cast_tensors_rows() {
  return {{"Casts", [](const NodeSpec& spec) { return !tensor_casts(spec).empty(); }, prepare_casts, kDomain}};
}

}  // namespace onnx_train::cuda
