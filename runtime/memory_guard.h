// Finds kernels that read what nobody wrote, or write where they may not: for tests, and for a wrong number whose cause
// is sought (--check-memory). Sanitizers see the arena as one block, in which every such access is legal.
//
// Before a node runs, what it is to write and its workspace are filled with 0xff, a NaN in every floating-point type;
// afterwards the rest of the arena must be as it was.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

class MemoryGuard {
 public:
  // Host memory; the arena of a plan.
  MemoryGuard(char* arena, size_t bytes) : arena_(arena), bytes_(bytes) {}

  void before(const Node& node, const Launch& launch, size_t workspace);
  // Throws Error that names the node.
  void after(const Node& node) const;

 private:
  struct Range {
    char* begin;
    size_t bytes;
  };
  void allow(const Range& range);

  char* arena_;
  size_t bytes_;
  std::vector<char> copy_;     // of the arena
  std::vector<bool> allowed_;  // bytes that the node may write
};

}  // namespace onnx_train
