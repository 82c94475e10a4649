#include "kernels/device.h"

#include <omp.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>

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
#include "kernels/preparation.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

class CpuDevice : public Device {
 public:
  CpuDevice() {
    cpu::isa();  // caps oneDNN before its first primitive
    static std::vector<std::vector<Kernel>> families = {
        cpu::elementwise_kernels(),   cpu::activation_kernels(), cpu::product_kernels(),
        cpu::convolution_kernels(),   cpu::pooling_kernels(),    cpu::normalization_kernels(),
        cpu::reduction_kernels(),     cpu::shape_kernels(),      cpu::generator_kernels(),
        cpu::indexing_kernels(),      cpu::line_kernels(),       cpu::element_kernels(),
        cpu::row_kernels(),           cpu::loss_kernels(),       cpu::optimizer_kernels(),
        cpu::random_kernels(),        cpu::recurrent_kernels(),  cpu::fused_kernels(),
        cpu::sparse_update_kernels(), cpu::attention_kernels(),  cpu::resampling_kernels(),
    };
    for (const auto& family : families) {
      for (const Kernel& kernel : family) kernels_.push_back(&kernel);
    }
  }

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
  void copy_from_host(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void copy_to_host(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void synchronize() override {}
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }
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
  std::vector<const Kernel*> kernels_;
};

}  // namespace

Device& Device::cpu() {
  static CpuDevice device;
  return device;
}

namespace {

using Rows = std::vector<const Kernel*>;
using RowIndex = std::unordered_map<std::string, Rows>;

std::string key(std::string_view domain, std::string_view op) { return concat(domain, ".", op); }

RowIndex index_by_operator(const Device& device) {
  RowIndex index;
  for (const Kernel* kernel : device.kernels()) index[key(kernel->domain, kernel->op)].push_back(kernel);
  return index;
}

// The device's rows for the node's operator. The CPU's are indexed once and never change after that, so every thread
// may ask; a device that comes and goes has no index that could outlive it.
Rows kernels_for(const Device& device, const Node& node) {
  static const RowIndex cpu = index_by_operator(Device::cpu());
  if (&device == &Device::cpu()) {
    const auto found = cpu.find(key(node.domain(), node.op()));
    return found == cpu.end() ? Rows() : found->second;
  }
  Rows rows;
  for (const Kernel* kernel : device.kernels()) {
    if (node.is(kernel->op, kernel->domain)) rows.push_back(kernel);
  }
  return rows;
}

// f(); what it throws names the node.
template <typename F>
auto naming(const Node& node, const F& f) {
  const std::string label = node.label();
  try {
    return f();
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(label) != std::string_view::npos) throw;
    fail_as(error.code(), label, ": ", error.what());
  } catch (const std::bad_alloc&) {
    fail_as(ErrorCode::kMemory, label, ": there is not enough memory to prepare it");
  } catch (const std::exception& error) {
    fail(label, ": ", error.what());
  }
}

}  // namespace

const Kernel* find_kernel(const Device& device, const NodeSpec& spec) {
  const auto& kernels = kernels_for(device, spec.node());
  if (kernels.empty()) return nullptr;
  check_shapes(spec.node());
  return naming(spec.node(), [&]() -> const Kernel* {
    for (const Kernel* kernel : kernels) {
      if (!kernel->supports || kernel->supports(spec)) return kernel;
    }
    return nullptr;
  });
}

Prepared prepare(const Kernel& kernel, const NodeSpec& spec) {
  return naming(spec.node(), [&] { return kernel.prepare(spec); });
}

bool may_refuse_data(const Device& device, const Node& node) {
  const Rows kernels = kernels_for(device, node);
  return std::any_of(kernels.begin(), kernels.end(), [](const Kernel* k) { return k->refuses == Refuses::kData; });
}

void set_num_threads(int threads) { omp_set_num_threads(std::max(threads, 1)); }

int num_threads() { return omp_get_max_threads(); }

}  // namespace onnx_train
