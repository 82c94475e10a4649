// The kernels of a device by operator, and how a node gets the one that runs it. A table is made with its device and
// never changes; any thread may ask. All functions throw Error that names the node.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

class Device;

class KernelTable {
 public:
  // In order of preference: the first row for the operator that supports a node runs it.
  explicit KernelTable(std::vector<std::vector<Kernel>> families);
  KernelTable(const KernelTable&) = delete;

  // The rows of an operator, in order; none for one that the device does not know.
  const std::vector<const Kernel*>& rows(std::string_view domain, std::string_view op) const;
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<std::vector<Kernel>> families_;
  std::vector<const Kernel*> all_;
  std::unordered_map<std::string, std::vector<const Kernel*>> by_operator_;
};

// The first kernel of `device` that supports the node; null when there is none.
const Kernel* find_kernel(const Device& device, const NodeSpec& spec);

// kernel.prepare(spec), for a kernel that find_kernel has found. What it finds wrong becomes an Error.
Prepared prepare(const Kernel& kernel, const NodeSpec& spec);

// Runs what a kernel of the CPU has prepared for the node once, on host memory. Throws Error for a fault.
void run_now(const Prepared& prepared, const Node& node, const void* const* inputs, void* const* outputs,
             void* workspace);

// Whether a kernel of `device` for the node's operator may refuse data that nothing before it has refused.
bool may_refuse_data(const Device& device, const Node& node);

}  // namespace onnx_train
