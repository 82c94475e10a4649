// In the place of cpu/, in a build with ONNX_TRAIN_MODELS_ONLY: the CPU is there, and has no kernels.
#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/lowering/pipeline.h"
#include "kernels/spin_limit/spin_limit.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

class NoKernels : public Device {
 public:
  std::string name() const override { return "cpu"; }
  std::string description() const override { return "not in this build: it makes models, and runs none"; }
  void* allocate(size_t) override { refuse(); }
  void free(void*) override {}
  bool uses_host_memory() const override { return true; }
  std::unique_ptr<Stream> make_stream() override { refuse(); }
  size_t available_bytes() const override { return available_host_memory(); }
  const KernelTable& kernels() const override { return none_; }
  const LoweringTraits& lowering() const override {
    static const LoweringTraits traits = {.can_fuse = [](const Node&) { return false; }};
    return traits;
  }

 private:
  [[noreturn]] static void refuse() {
    fail_as(ErrorCode::kNoDevice, "this build makes models, and runs none: it was made with ONNX_TRAIN_MODELS_ONLY");
  }

  const KernelTable none_{{}};
};

}  // namespace

Device& Device::cpu() {
  static NoKernels device;
  return device;
}

}  // namespace onnx_train

void onnx_train_restore_environment() {}
