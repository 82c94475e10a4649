#include "kernels/cuda/device.h"

#include <map>
#include <mutex>

#include "kernels/cuda/attention/cudnn.h"
#include "kernels/cuda/convolution/convolutions.h"
#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/products/cudnn.h"
#include "kernels/cuda/support/cudnn_library.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/cuda/support/runtime.h"
#include "kernels/cuda/support/stream.h"
#include "kernels/lowering/attention/block_attention.h"
#include "kernels/lowering/canonical/sequences_first.h"
#include "kernels/lowering/lowering.h"
#include "kernels/lowering/updates/updates.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr size_t kCudaAlignment = 256;  // of cudaMalloc
// A gradient whose update alone takes ten times as long as the two launches more that it needs (AdamW moves seven times
// its bytes).
constexpr size_t kEarlyUpdate = size_t{16} << 20;

class CudaDevice : public Device {
 public:
  CudaDevice(int number, int count)
      : number_(number),
        count_(count),
        kernels_({
            cuda::cudnn_attention_kernels(),  // precede ours
            cuda::cudnn_product_kernels(),
            cuda::attention_kernels(),
            cuda::convolution_kernels(),
            cuda::elementwise_kernels(),
            cuda::extremum_kernels(),
            cuda::fused_kernels(),
            cuda::gather_kernels(),
            cuda::generator_kernels(),
            cuda::lookup_kernels(),
            cuda::loss_kernels(),
            cuda::movement_kernels(),
            cuda::optimizer_kernels(),
            cuda::pad_trilu_reverse_kernels(),
            cuda::normalization_kernels(),
            cuda::pooling_kernels(),
            cuda::product_kernels(),
            cuda::random_kernels(),
            cuda::recurrent_kernels(),
            cuda::reduction_kernels(),
            cuda::resampling_kernels(),
            cuda::row_normalization_kernels(),
            cuda::scan_kernels(),
            cuda::scatter_kernels(),
            cuda::softmax_kernels(),
            cuda::sparse_update_kernels(),
            cuda::top_k_kernels(),
        }) {
    cuda::check(cudaGetDeviceProperties(&properties_, number_), "cudaGetDeviceProperties");
  }

  std::string name() const override { return number_ == 0 ? "cuda" : concat("cuda:", number_); }
  std::string description() const override {
    const cuda::CurrentDevice here(number_);
    return concat(properties_.name, ", compute capability ", properties_.major, ".", properties_.minor, ", ",
                  properties_.multiProcessorCount, " multiprocessors, ", available_bytes() >> 20, " of ",
                  properties_.totalGlobalMem >> 20, " MiB of memory available, ", cuda::cudnn_library().description());
  }
  int count() const override { return count_; }
  DlpackDevice dlpack() const override { return {kDlpackCuda, number_}; }
  size_t alignment() const override { return kCudaAlignment; }
  size_t piece_alignment() const override { return cuda::kVectorBytes; }

  void* allocate(size_t bytes) override {
    const cuda::CurrentDevice here(number_);
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, std::max<size_t>(bytes, 1));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail_as(ErrorCode::kMemory, "out of memory: ", bytes, " bytes could not be allocated on ", properties_.name,
              "; use a smaller batch");
    }
    cuda::check(status, "cudaMalloc");
    try {
      cuda::check(cudaMemsetAsync(data, 0, bytes, nullptr), "cudaMemset");
      cuda::check(cudaStreamSynchronize(nullptr), "cudaMemset");
    } catch (...) {
      cudaFree(data);
      throw;
    }
    return data;
  }
  void free(void* data) override { cudaFree(data); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<cuda::CudaStream>(number_); }
  size_t available_bytes() const override {
    const cuda::CurrentDevice here(number_);
    size_t available = 0, total = 0;
    cuda::check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    return available;
  }
  const KernelTable& kernels() const override { return kernels_; }

  std::vector<Pass> lowering(const LoweringOptions& options) const override {
    std::vector<Pass> passes = required_lowering(*this);
    // Runs before functions are expanded: without a kernel the two forms could not be told apart afterwards.
    passes.insert(passes.begin() + 2, {"share_recurrent_steps", share_recurrent_steps});
    passes.push_back({"drop_zero_biases", drop_zero_biases});
    passes.push_back({"split_selections", split_selections});
    passes.push_back({"round_once", round_once});
    passes.push_back(
        {"fuse_batch_normalization", [this](Model& model) { return fuse_batch_normalization(model, *this); }});
    passes.push_back({"channels_last", [](Model& model) { return channels_last(model, cuda::takes_channels_last); }});
    passes.push_back({"fold_transposes", fold_transposes});
    passes.push_back(
        {"block_attention", [](Model& model) { return block_attention(model, 1, /*through_roundings=*/true); }});
    passes.push_back({"simplify_masks", [](Model& model) { return simplify_masks(model, /*makes_finite=*/true); }});
    passes.push_back({"add_gather_gradients", add_gather_gradients});
    passes.push_back({"sparse_updates", sparse_updates});
    passes.push_back({"merge_lookup_gradients", [this](Model& model) { return merge_lookup_gradients(model, *this); }});
    passes.push_back({"move_bfloat16", move_bfloat16});
    passes.push_back({"bfloat16_products", [this](Model& model) { return bfloat16_products(model, *this); }});
    passes.push_back({"widen_at_readers", widen_at_readers});
    passes.push_back({"remove_dead_nodes", remove_dead_nodes});
    passes.push_back({"product_epilogues", [this](Model& model) { return product_epilogues(model, *this); }});
    passes.push_back({"merge_projections", merge_projections});
    passes.push_back({"sum_products", [this](Model& model) { return sum_products(model, *this); }});
    passes.push_back({"narrow_before_moves", narrow_before_moves});
    passes.push_back({"pack_attention", [this](Model& model) { return pack_attention(model, *this); }});
    passes.push_back({"narrow_storage", [this](Model& model) { return narrow_storage(model, *this); }});
    passes.push_back({"fuse_products", [this](Model& model) { return fuse_products(model, *this); }});
    passes.push_back({"pad_classes", pad_classes});
    passes.push_back({"fuse_losses", [this](Model& model) { return fuse_losses(model, *this); }});
    passes.push_back({"batch_weight_gradients", [this, memory = options.memory](Model& model) {
                        return batch_weight_gradients(model, *this, memory);
                      }});
    passes.push_back({"merge_casts", merge_casts});
    passes.push_back({"merge_lookups", merge_lookups});
    passes.push_back({"fuse_elementwise", [](Model& model) { return fuse_elementwise(model, cuda::can_fuse); }});
    const auto may_reject = [this](const Node& node) { return may_reject_data(*this, node); };
    passes.push_back({"update_early", [=](Model& model) { return update_early(model, may_reject, kEarlyUpdate); }});
    passes.push_back({"merge_updates", merge_updates});
    passes.push_back(recompute_pass(options));
    passes.push_back({"remove_dead_nodes", remove_dead_nodes});
    passes.push_back({"order_nodes", [=](Model& model) { return order_nodes(model, may_reject); }});
    return passes;
  }

 private:
  int enter() const override { return cuda::set_device(number_); }
  void leave(int before) const noexcept override { cuda::restore_device(before); }

  const int number_, count_;
  const KernelTable kernels_;
  cudaDeviceProp properties_ = {};
};

}  // namespace

Device& cuda_device(int number) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    fail_as(ErrorCode::kDevice, "device 'cuda': ", status == cudaSuccess ? "no GPU" : cudaGetErrorString(status),
            "; install NVIDIA's driver, or run on the CPU");
  }
  check_device_number("cuda", number, count);
  static std::mutex mutex;
  static auto& devices = *new std::map<int, CudaDevice>;
  const std::lock_guard lock(mutex);
  return devices.try_emplace(number, number, count).first->second;
}

}  // namespace onnx_train
