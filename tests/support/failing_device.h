// The CPU with a limit: the n-th allocation throws Error. It counts what is allocated and not freed. One thread only.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

class FailingDevice : public Device {
 public:
  static constexpr int kNever = -1;
  explicit FailingDevice(int failing = kNever) : failing_(failing) {}

  std::string name() const override { return "failing"; }
  std::string description() const override { return "the CPU, short of memory"; }
  void* allocate(size_t bytes) override {
    if (made_++ == failing_) fail("out of memory: this allocation of a test fails");
    void* data = Device::cpu().allocate(bytes);
    held_.insert(data);
    return data;
  }
  void free(void* data) override {
    if (held_.erase(data) != 1) fail("freed what was not allocated, or twice");
    Device::cpu().free(data);
  }
  bool uses_host_memory() const override { return true; }
  std::unique_ptr<Stream> make_stream() override { return Device::cpu().make_stream(); }
  size_t available_bytes() const override { return Device::cpu().available_bytes(); }
  const KernelTable& kernels() const override { return Device::cpu().kernels(); }
  const LoweringTraits& lowering() const override { return Device::cpu().lowering(); }

  int made() const { return made_; }
  size_t held() const { return held_.size(); }

 private:
  const int failing_;
  int made_ = 0;
  std::set<void*> held_;
};

}  // namespace onnx_train
