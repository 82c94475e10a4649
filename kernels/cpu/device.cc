#include "kernels/device.h"

#include <sched.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/fused/operations.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/movement/resampling.h"
#include "kernels/cpu/recurrent/recurrent.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/host.h"
#include "kernels/lowering/attention/block_attention.h"
#include "kernels/lowering/canonical/sequences_first.h"
#include "kernels/lowering/lowering.h"
#include "kernels/lowering/updates/updates.h"
#include "onnx_passes/ir/error.h"

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
      : level_(cpu::isa()), kernels_({cpu::elementwise_kernels(),       cpu::softmax_kernels(),
                                      cpu::product_kernels(),           cpu::convolution_kernels(),
                                      cpu::pooling_kernels(),           cpu::normalization_kernels(),
                                      cpu::reduction_kernels(),         cpu::shape_kernels(),
                                      cpu::generator_kernels(),         cpu::indexing_kernels(),
                                      cpu::scan_and_topk_kernels(),     cpu::gather_scatter_element_kernels(),
                                      cpu::pad_trilu_reverse_kernels(), cpu::loss_kernels(),
                                      cpu::optimizer_kernels(),         cpu::random_kernels(),
                                      cpu::recurrent_kernels(),         cpu::fused_kernels(),
                                      cpu::sparse_update_kernels(),     cpu::attention_kernels(),
                                      cpu::resampling_kernels()}) {}

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
    void* data = nullptr;  // aligned_alloc requires a size that is a multiple of the alignment
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
  size_t available_bytes() const override { return available_host_memory(); }
  std::vector<Pass> lowering(const LoweringOptions& options) const override {
    std::vector<Pass> passes = required_lowering(*this);
    // Runs before functions are expanded: without a kernel the two forms could not be told apart afterwards.
    passes.insert(passes.begin() + 2, {"share_recurrent_steps", share_recurrent_steps});
    passes.push_back({"drop_zero_biases", drop_zero_biases});
    passes.push_back({"split_selections", split_selections});
    passes.push_back({"round_once", round_once});
    passes.push_back(
        {"fuse_batch_normalization", [this](Model& model) { return fuse_batch_normalization(model, *this); }});
    passes.push_back({"channels_last", [](Model& model) { return channels_last(model); }});
    passes.push_back({"fold_transposes", fold_transposes});
    passes.push_back({"block_attention", [](Model& model) { return block_attention(model, kBlockAttention); }});
    passes.push_back({"simplify_masks", [](Model& model) { return simplify_masks(model, /*makes_finite=*/false); }});
    passes.push_back({"add_gather_gradients", add_gather_gradients});
    passes.push_back({"sparse_updates", sparse_updates});
    passes.push_back({"move_bfloat16", move_bfloat16});
    passes.push_back({"bfloat16_products", [this](Model& model) { return bfloat16_products(model, *this); }});
    passes.push_back({"widen_at_readers", widen_at_readers});
    passes.push_back({"remove_dead_nodes", remove_dead_nodes});
    passes.push_back({"product_epilogues", [this](Model& model) { return product_epilogues(model, *this); }});
    passes.push_back({"narrow_before_moves", narrow_before_moves});
    passes.push_back({"pack_attention", [this](Model& model) { return pack_attention(model, *this); }});
    passes.push_back({"bfloat16_recurrences", [this](Model& model) { return bfloat16_recurrences(model, *this); }});
    passes.push_back({"narrow_storage", [this](Model& model) { return narrow_storage(model, *this); }});
    passes.push_back({"fuse_elementwise", [](Model& model) { return fuse_elementwise(model, cpu::can_fuse); }});
    const auto may_reject = [this](const Node& node) { return may_reject_data(*this, node); };
    passes.push_back({"update_early", [=](Model& model) { return update_early(model, may_reject, kEarlyUpdate); }});
    passes.push_back({"merge_updates", merge_updates});
    passes.push_back(recompute_pass(options));
    passes.push_back({"remove_dead_nodes", remove_dead_nodes});
    passes.push_back({"order_nodes", [=](Model& model) { return order_nodes(model, may_reject); }});
    return passes;
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
