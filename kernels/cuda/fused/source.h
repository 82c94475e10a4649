// A fusion region, or a single element-wise node, as the text of a CUDA kernel. The length of rows, broadcasts and
// attributes are constants of the text; the number of elements or rows is a parameter. It contains no names of nodes
// and values, so that equal regions share a kernel. Pure functions; any thread.
//
// Without rows, a thread computes a few neighbouring elements of the region's space. With rows, a thread, a warp or a
// block computes a row: one pass over its elements per stage of reductions that need others' results, then a pass that
// writes. Each pass computes elements again; its inputs are in the cache. A reduction whose result is complete only
// after the last element is left to the reduction kernels, which read an output or workspace.
#pragma once

#include <vector>

#include "kernels/geometry/fusion/fused_body.h"
#include "kernels/place.h"

namespace onnx_train::cuda {

inline constexpr const char* kFusedKernel = "fused";  // the function's name in the text

// A reduction that follows the kernel.
struct FinalReduction {
  const Node* node;   // a node of the body
  OperandPlace from;  // its input
  DType stored;       // element type of `from`: that of the reduction's input, or for sums a 16-bit type
  int output;         // output number of the call
};

struct FusedSourceText {
  std::string text;
  // The kernel's parameters are the guard (kernels/cuda/support/launch.h), `count`, then the addresses of these places.
  int64_t count = 0;  // elements of the region's space, or rows
  std::vector<OperandPlace> arguments;
  int64_t threads = 0;
  std::vector<FinalReduction> reductions;
  std::vector<InPlace> in_place;
  size_t workspace = 0;
};

// Whether a fusion region may contain the node. The pass fuse_elementwise asks this function, so every node that it
// makes can be prepared.
bool can_fuse(const Node& node);

// `spec` is the call of `Fused` or the element-wise node whose region `body` is.
FusedSourceText fused_source(const NodeSpec& spec, const FusedBody& body);

}  // namespace onnx_train::cuda
