#include "kernels/device.h"

#include <omp.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/available_memory.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/fused_operations.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/lowering/lowering.h"
#include "kernels/cpu/recurrent.h"
#include "kernels/cpu/resampling.h"
#include "kernels/lowering/block_attention.h"
#include "kernels/lowering/lowering.h"
#include "kernels/lowering/recurrent.h"
#include "kernels/lowering/updates.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Work is done when it is given.
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
  std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }
};

class CpuDevice : public Device {
 public:
  CpuDevice()
      : level_(cpu::isa()),
        kernels_({cpu::elementwise_kernels(),   cpu::activation_kernels(), cpu::product_kernels(),
                  cpu::convolution_kernels(),   cpu::pooling_kernels(),    cpu::normalization_kernels(),
                  cpu::reduction_kernels(),     cpu::shape_kernels(),      cpu::generator_kernels(),
                  cpu::indexing_kernels(),      cpu::line_kernels(),       cpu::element_kernels(),
                  cpu::row_kernels(),           cpu::loss_kernels(),       cpu::optimizer_kernels(),
                  cpu::random_kernels(),        cpu::recurrent_kernels(),  cpu::fused_kernels(),
                  cpu::sparse_update_kernels(), cpu::attention_kernels(),  cpu::resampling_kernels()}) {}

  std::string name() const override { return "cpu"; }

  void* allocate(size_t bytes) override {
    // Large blocks on huge pages, and touched now: a step should not pay for page faults.
    const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
    const size_t padded = std::max<size_t>((bytes + 63) / 64 * 64, 64);
    // Asked first: memory that is promised but not there ends in the system killing some process.
    const bool there = padded >= bytes && (padded < kHugePage || padded <= available_bytes());
    void* data = nullptr;  // posix_memalign: aligned_alloc wants a multiple of the alignment
    if (!there || posix_memalign(&data, alignment, padded) != 0)
      fail_as(ErrorCode::kMemory, "out of memory: ", bytes,
              " bytes could not be allocated on the CPU; use a smaller batch");
    if (alignment == kHugePage) madvise(data, padded / kHugePage * kHugePage, MADV_HUGEPAGE);
    std::memset(data, 0, padded);
    return data;
  }
  void free(void* data) override { std::free(data); }
  bool uses_host_memory() const override { return true; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }
  const KernelTable& kernels() const override { return kernels_; }
  size_t available_bytes() const override { return cpu::available_memory(); }
  std::vector<Pass> lowering(const LoweringOptions& options) const override {
    std::vector<Pass> passes = required_lowering(*this);
    // Before functions are expanded: without a kernel the two forms could not be told apart.
    passes.insert(passes.begin() + 2, {"share_recurrent_steps", share_recurrent_steps});
    passes.push_back({"round_once", cpu::round_once});
    passes.push_back({"fuse_batch_normalization", cpu::fuse_batch_normalization});
    passes.push_back({"channels_last", cpu::channels_last});
    passes.push_back({"fold_transposes", fold_transposes});
    passes.push_back({"block_attention", block_attention});
    passes.push_back({"add_gather_gradients", add_gather_gradients});
    passes.push_back({"sparse_updates", sparse_updates});
    passes.push_back({"move_bfloat16", cpu::move_bfloat16});
    passes.push_back({"bfloat16_products", cpu::bfloat16_products});
    passes.push_back({"widen_at_readers", cpu::widen_at_readers});
    passes.push_back({"remove_dead_nodes", remove_dead_nodes});
    passes.push_back({"narrow_before_moves", cpu::narrow_before_moves});
    passes.push_back({"bfloat16_recurrences", cpu::bfloat16_recurrences});
    passes.push_back({"narrow_storage", cpu::narrow_storage});
    passes.push_back({"fuse_elementwise", [](Model& model) { return fuse_elementwise(model, cpu::can_fuse); }});
    const auto may_refuse = [this](const Node& node) { return may_refuse_data(*this, node); };
    passes.push_back({"update_early", [=](Model& model) { return update_early(model, may_refuse); }});
    passes.push_back({"merge_updates", merge_updates});
    passes.push_back(recompute_pass(options));
    passes.push_back({"remove_dead_nodes", remove_dead_nodes});
    passes.push_back({"order_nodes", [=](Model& model) { return order_nodes(model, may_refuse); }});
    return passes;
  }

 private:
  const cpu::Isa level_;  // asked for first: this caps oneDNN before its first primitive
  const KernelTable kernels_;
};

}  // namespace

Device& Device::cpu() {
  static CpuDevice device;
  return device;
}

void set_num_threads(int threads) { omp_set_num_threads(std::max(threads, 1)); }

int num_threads() { return omp_get_max_threads(); }

}  // namespace onnx_train
