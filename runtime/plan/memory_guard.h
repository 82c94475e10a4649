// Detects kernels that read unwritten memory or write outside their outputs and workspace: for tests, and to find the
// cause of a wrong number (--check-memory). To sanitizers the arena is one block in which all accesses are legal. An
// executable owns it and calls it from its thread.
//
// Before a node runs, its outputs and workspace are filled with 0xff, which is NaN in every float type, unless it works
// in place; after it, the rest of the arena must be unchanged.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

class MemoryGuard {
 public:
  // `arena` is host memory that holds the arena of a plan.
  MemoryGuard(char* arena, size_t bytes) : arena_(arena), bytes_(bytes) {}

  void before(const Node& node, const Launch& launch, size_t workspace);
  // Throws Error that names the node if it wrote elsewhere.
  void after(const Node& node) const;

 private:
  struct Range {
    char* begin;
    size_t bytes;
  };
  void allow(const Range& range);

  char* arena_;
  size_t bytes_;
  std::vector<char> copy_;     // copy of the arena
  std::vector<bool> allowed_;  // bytes that the node may write
};

}  // namespace onnx_train
