// The location of a tensor while a kernel runs: fixed when the kernel is prepared, resolved to an address when it runs.
// Plain values; any thread.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train {

struct OperandPlace {
  enum Kind { kInput, kOutput, kWorkspace };
  Kind kind = kWorkspace;
  size_t at = 0;      // input or output number
  size_t offset = 0;  // bytes from the start of the input, output or workspace

  bool operator==(const OperandPlace&) const = default;
};

inline void* address(const OperandPlace& place, const Launch& launch) {
  void* base = launch.workspace;
  if (place.kind == OperandPlace::kInput)
    base = const_cast<void*>(launch.inputs[place.at]);  // the caller must not write to an input
  if (place.kind == OperandPlace::kOutput) base = launch.outputs[place.at];
  return static_cast<char*>(base) + place.offset;
}

// The alignment of each range of a workspace, in bytes. cuBLASLt refuses a workspace with less (the documentation of
// cublasLtMatmul); cache lines and vectors of CPUs need 64.
inline constexpr size_t kWorkspaceAlignment = 256;

// Assigns ranges of a node's workspace, whose start has the alignment of the device's allocations.
class Workspace {
 public:
  OperandPlace reserve(size_t size) {
    const OperandPlace place{OperandPlace::kWorkspace, 0, bytes_};
    bytes_ += (size + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    return place;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

// Returns output i of the node, or workspace if the output is absent.
inline OperandPlace output_or_scratch(const NodeSpec& spec, int i, size_t bytes, Workspace* workspace) {
  if (i < spec.num_outputs() && spec.has_output(i)) return {OperandPlace::kOutput, static_cast<size_t>(i)};
  return workspace->reserve(bytes);
}

}  // namespace onnx_train
