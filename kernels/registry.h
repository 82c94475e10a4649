// The kernels of a device by operator, and the selection of a kernel for a node. A device owns its table, which never
// changes; any thread may read it. All functions throw Error that names the node.
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
  // Within an operator the rows are in order of preference: the first one that supports a node is used.
  explicit KernelTable(std::vector<std::vector<Kernel>> families);
  KernelTable(const KernelTable&) = delete;

  // Returns the rows of an operator in order; empty if the device does not know the operator.
  const std::vector<const Kernel*>& rows(std::string_view domain, std::string_view op) const;
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<std::vector<Kernel>> families_;
  std::vector<const Kernel*> all_;
  std::unordered_map<std::string, std::vector<const Kernel*>> by_operator_;
};

// Returns the first kernel of `device` that supports the node; null if there is none.
const Kernel* find_kernel(const Device& device, const NodeSpec& spec);

// Finds a kernel for a node without constant inputs.
const Kernel* find_kernel(const Device& device, const Node& node);

// Whether each kernel of `device` for the node's operator reads images channels first. False if there is no kernel.
bool needs_channels_first(const Device& device, const Node& node);

// Returns what the node computes: its operator, attributes, element types and shapes, without names. Nodes of equal
// texts compute the same.
std::string computation_of(const NodeSpec& spec);

// Calls kernel.prepare(spec) for a kernel that find_kernel returned; adds the node's name to errors.
Prepared prepare(const Kernel& kernel, const NodeSpec& spec);

// Runs a prepared CPU kernel once, on host memory. Throws Error for a fault.
void run_now(const Prepared& prepared, const Node& node, const void* const* inputs, void* const* outputs,
             void* workspace);

// Whether a kernel of `device` for the node's operator may reject data that no earlier node has checked.
bool may_reject_data(const Device& device, const Node& node);

}  // namespace onnx_train
