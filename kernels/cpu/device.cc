#include "kernels/device.h"

#include <cstring>

#include "kernels/cpu/fused/operations.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/host.h"
#include "kernels/lowering/pipeline.h"
#include "onnx_passes/ir/error.h"
#include "platform/mapping.h"

namespace onnx_train {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// A gradient whose update alone, a node of its own, costs no more than within a multi-tensor update.
constexpr size_t kEarlyUpdate = size_t{256} << 10;
// Least number of keys for which BlockAttention is faster with a causal mask. If the mask hides nothing, it is slower
// at 256 and even 512 keys and faster at 1,024 (docs/performance.md); the pass cannot distinguish the cases, because
// masks may be inputs. A memory budget does not change this choice: a plan with a budget gives the same bits.
constexpr int64_t kBlockAttention = 256;

// The CPU's stream has no queue: work is done when it is enqueued.
class CpuStream : public Stream {
 public:
  void copy_from_host(void* to, const void* from, size_t bytes) override { copy({to, from, bytes}); }
  void copy_to_host(void* to, const void* from, size_t bytes) override { copy({to, from, bytes}); }
  void copy(const Transfer& transfer) override {
    if (transfer.bytes > 0) std::memcpy(transfer.to, transfer.from, transfer.bytes);
  }
  void commit(const std::vector<Transfer>& transfers, const Fault* fault) override {
    if (fault->node != 0) return;
    for (const Transfer& transfer : transfers) copy(transfer);
  }
  void synchronize() override {}
  int64_t mark() override { return 0; }
  void wait(int64_t) override {}
  std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }
};

class CpuDevice : public Device {
 public:
  CpuDevice()
      : level_(cpu::isa()),
        kernels_({
#define ONNX_TRAIN_FAMILY(name) cpu::name##_kernels(),
#include "kernels/cpu/support/families.def"
        }) {
  }

  std::string name() const override { return "cpu"; }
  std::string description() const override {
    const size_t bytes = available_bytes();
    const std::string memory = bytes == SIZE_MAX ? "" : concat(", ", bytes >> 20, " MiB of memory available");
    const int threads = default_threads();
    return concat(threads, threads == 1 ? " thread, " : " threads, ", cpu::name_of(level_), memory);
  }

  void* allocate(size_t bytes) override {
    // Uses huge pages for large blocks and touches them now, so that steps do not pay for page faults.
    const size_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
    const size_t padded = std::max(align_up(bytes), kAlignment);
    // Checked first: Linux overcommits, and running out of memory later would end in the system killing a process.
    const bool there = padded >= bytes && (padded < kHugePage || padded <= available_bytes());
    void* const data = there ? platform::allocate_aligned(alignment, padded) : nullptr;
    if (!data)
      fail_as(ErrorCode::kMemory, "out of memory: ", bytes,
              " bytes could not be allocated on the CPU; use a smaller batch");
    if (alignment == kHugePage) platform::prefer_huge_pages(data, padded / kHugePage * kHugePage);
    std::memset(data, 0, padded);
    return data;
  }
  void free(void* data) override { platform::free_aligned(data); }
  bool uses_host_memory() const override { return true; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }
  const KernelTable& kernels() const override { return kernels_; }
  size_t available_bytes() const override { return available_host_memory(); }
  std::string bfloat16_units() const override {
    return level_ >= cpu::Isa::kAvx512Bf16 ? std::string(cpu::name_of(level_)) : "";
  }
  const LoweringTraits& lowering() const override {
    static const LoweringTraits traits = {
        .can_fuse = cpu::can_fuse, .least_keys = kBlockAttention, .early_update = kEarlyUpdate};
    return traits;
  }

 private:
  const cpu::Isa level_;  // initialized first: it caps oneDNN before the first primitive
  const KernelTable kernels_;
};

}  // namespace

Device& Device::cpu() {
  static CpuDevice device;
  return device;
}

}  // namespace onnx_train
