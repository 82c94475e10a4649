// Where plans run: memory, kernels, and the rewrites a device wants. One object per device, alive as long as the
// program; `Device::cpu()` is always there.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "onnx_passes/passes/pass.h"

namespace onnx_train {

struct LoweringOptions;

class Device {
 public:
  // Throws Error when ONNX_TRAIN_ISA cannot be followed (kernels/cpu/cpu_features.h).
  static Device& cpu();

  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cpu"
  // Memory of the device, aligned to 64 bytes and touched once. Throws Error when there is not enough.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* data) = 0;
  virtual void copy_from_host(void* to, const void* from, size_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void synchronize() = 0;
  // Bytes that can still be allocated before the system runs out of them; the largest size_t where nothing tells.
  virtual size_t available_bytes() const = 0;
  // In order of preference: the first row for the operator that supports the node runs it.
  virtual const std::vector<const Kernel*>& kernels() const = 0;
  // What a plan's graph goes through once its inputs have shapes; required_lowering and what makes it faster.
  virtual std::vector<Pass> lowering(const LoweringOptions& options) const = 0;
};

// The first kernel of `device` that supports the node; null when there is none.
const Kernel* find_kernel(const Device& device, const NodeSpec& spec);

// Whether a kernel of `device` for the node's operator may throw Error for data that nothing before it has refused.
bool may_refuse_data(const Device& device, const Node& node);

// Number of threads of the one pool (OpenMP's) that all CPU kernels share: 1 or more; the default is the number of
// cores this process may use.
void set_num_threads(int threads);
int num_threads();

}  // namespace onnx_train
