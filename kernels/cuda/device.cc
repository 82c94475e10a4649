#include "kernels/cuda/support/device.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "kernels/cuda/collective/nccl.h"
#include "kernels/cuda/convolution/convolutions.h"
#include "kernels/cuda/fused/nvrtc.h"
#include "kernels/cuda/fused/source.h"
#include "kernels/cuda/support/cudnn_library.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/cuda/support/runtime.h"
#include "kernels/cuda/support/stream.h"
#include "kernels/host.h"
#include "kernels/lowering/layout/channels_last_rules.h"
#include "kernels/lowering/pipeline.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr size_t kCudaAlignment = 256;  // of cudaMalloc
// A gradient whose update alone takes ten times as long as the two launches more that it needs (AdamW moves seven times
// its bytes).
constexpr size_t kEarlyUpdate = size_t{16} << 20;
constexpr int kFirstWith8BitProducts = 89;  // compute capability, times 10

// Selects the nodes that get channels-last images: convolutions for tensor cores, whose operands are rounded to 16 bits
// or may be rounded to TF32, and the nodes between such convolutions. Tensor cores read such images, and cuDNN copies
// others in each convolution; other convolutions become slower.
bool takes_channels_last(const Node& node, const Arithmetic& arithmetic, ChannelsLastRule* rule) {
  if (node.is("Conv") || node.is("ConvGradWeight", kDomain) || node.is("ConvGradInput", kDomain)) {
    const Value *a = widened_from(node.input(0)), *b = widened_from(node.input(1));
    if (a && b && a->dtype() == b->dtype()) return cuda::supports_channels_last(node, a->dtype());
    const DType type = node.input(0)->dtype();
    return arithmetic.tf32 && type == DType::kFloat && cuda::supports_channels_last(node, type);
  }
  rule->gains = false;
  return true;
}

class CudaDevice : public Device {
 public:
  CudaDevice(int number, int count)
      : number_(number),
        count_(count),
        kernels_({
#define ONNX_TRAIN_FAMILY(name) cuda::name##_kernels(),
#include "kernels/cuda/support/families.def"
        }) {
    cuda::check(cudaGetDeviceProperties(&properties_, number_), "cudaGetDeviceProperties");
    traits_.multiplies_8_bits = 10 * properties_.major + properties_.minor >= kFirstWith8BitProducts;
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
      fail_as(ErrorCode::kOutOfMemory, "out of memory: ", bytes, " bytes could not be allocated on ", properties_.name,
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

  void* allocate_host(size_t bytes) override {
    const cuda::CurrentDevice here(number_);
    // Asked first: a control group that runs out of memory ends the process.
    const size_t available = available_host_memory();
    void* host = nullptr;
    const cudaError_t status = bytes > available
                                   ? cudaErrorMemoryAllocation
                                   : cudaHostAlloc(&host, std::max<size_t>(bytes, 1), cudaHostAllocMapped);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail_as(
          ErrorCode::kOutOfMemory, "out of memory: ", bytes, " bytes of the host's memory could not be pinned for ",
          name(), available == SIZE_MAX ? "" : concat(", with ", available, " available"),
          "; raise the limit of the container or of locked memory (ulimit -l), build the model with fewer or smaller "
          "states (--optimizer adamw8bit, lion), or leave out offload");
    }
    cuda::check(status, "cudaHostAlloc");
    try {
      void* data = nullptr;
      cuda::check(cudaHostGetDevicePointer(&data, host, 0), "cudaHostGetDevicePointer");
      cuda::check(cudaMemsetAsync(data, 0, bytes, nullptr), "cudaMemset");
      cuda::check(cudaStreamSynchronize(nullptr), "cudaMemset");
      const std::lock_guard lock(mutex_);
      host_of_[data] = host;
      return data;
    } catch (...) {
      cudaStreamSynchronize(nullptr);  // cudaFreeHost need not wait for the memset
      cudaFreeHost(host);
      throw;
    }
  }
  void free_host(void* data) override {
    const std::lock_guard lock(mutex_);
    cudaFreeHost(host_of_.at(data));
    host_of_.erase(data);
  }
  double measure_host_bandwidth() override {
    const cuda::CurrentDevice here(number_);
    constexpr size_t kBytes = size_t{32} << 20, kCopies = 4;
    const cuda::PinnedMemory from(kBytes);
    const cuda::DeviceMemory to(kBytes);
    cuda::CudaStream stream(number_);
    const auto copy = [&](size_t) {
      cuda::check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDefault, stream.handle()),
                  "cudaMemcpyAsync");
    };
    const std::vector<double> ends = stream.time(kCopies, copy);
    double least = ends[1] - ends[0];  // the first copy also waits for the graph to start
    for (size_t i = 2; i < kCopies; ++i) least = std::min(least, ends[i] - ends[i - 1]);
    return static_cast<double>(kBytes) / (1e-3 * std::max(least, 1e-6));
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<cuda::CudaStream>(number_); }
  size_t available_bytes() const override {
    const cuda::CurrentDevice here(number_);
    size_t available = 0, total = 0;
    cuda::check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    return available;
  }
  std::string bfloat16_units() const override { return properties_.major >= 8 ? "tensor cores" : ""; }
  const KernelTable& kernels() const override { return kernels_; }
  void connect(Collectives& ranks) override {
    const cuda::CurrentDevice here(number_);
    cuda::NcclRanks::connect(ranks);
  }
  void connect(Collectives& ranks, int from, int to) override {
    const cuda::CurrentDevice here(number_);
    cuda::NcclRanks::connect(ranks, from, to);
  }

  const LoweringTraits& lowering() const override { return traits_; }

 private:
  int enter() const override { return cuda::set_device(number_); }
  void leave(int before) const noexcept override { cuda::restore_device(before); }

  const int number_, count_;
  const KernelTable kernels_;
  cudaDeviceProp properties_ = {};
  std::mutex mutex_;
  std::map<void*, void*> host_of_;  // the host's address of what allocate_host returned
  LoweringTraits traits_ = {.can_fuse = cuda::can_fuse,
                            .takes_channels_last = takes_channels_last,
                            .is_gpu = true,
                            .attends_through_roundings = true,
                            .needs_finite_masks = true,
                            .early_update = kEarlyUpdate};
};

}  // namespace

Device& cuda_device(int number) {
  static std::mutex mutex;
  static auto& devices = *new std::map<int, CudaDevice>;
  const std::lock_guard lock(mutex);
  if (const auto known = devices.find(number); known != devices.end()) return known->second;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    fail_as(ErrorCode::kDevice, "device 'cuda': ", status == cudaSuccess ? "no GPU" : cudaGetErrorString(status),
            "; install NVIDIA's driver, or run on the CPU");
  }
  check_device_number("cuda", number, count);
  cuda::nvrtc_version();  // throws without NVRTC, by which we and cuDNN compile kernels
  return devices.try_emplace(number, number, count).first->second;
}

}  // namespace onnx_train
