// What a fused program is made of: element-wise operators as loops over short pieces that lie in the L1 cache. They are
// the loops of the operators' own kernels (maps.h, choose.h) around the same functors (kernels/math), so that a fused
// node gives bit for bit what its body gives.
#pragma once

#include <functional>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cpu {

// One operand of a piece: as many elements as the piece has, or one that all share.
struct FusedOperand {
  const void* data;
  bool moves;

  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// result[i] = f(operands[0][i], ...) for i < n. At least one operand moves; the result may lie where one of the first
// two lies that has elements of the same size. Operands that the node leaves out are null.
using Operation = std::function<void(int64_t n, const FusedOperand* operands, void* result)>;

struct FusedOperator {
  const char* op;
  // The node's loop; empty when there is none for its types.
  std::function<Operation(const Node&)> make;
  const char* domain = "";
  int moving = 0;  // so many of the first operands must move
};

constexpr int kMaxOperands = 8;

// The families, joined in fused_operations.cc.
std::vector<FusedOperator> fused_arithmetic();   // fused_arithmetic.cc: Add, Pow, Max, Clip, Exp, ...
std::vector<FusedOperator> fused_activations();  // fused_activations.cc: Relu, Gelu, their gradients, DropoutGrad
std::vector<FusedOperator> fused_logic();        // fused_logic.cc: comparisons, And, Where, Cast

// The row of the node's operator; null when there is none.
const FusedOperator* find_fused_operator(const Node& node);

// Whether a fused program may hold the node: an operator of the families with types that it takes, a reduction, a
// view or an Expand. The pass fuse_elementwise asks this, and so never makes a node that cannot be prepared.
bool can_fuse(const Node& node);

}  // namespace onnx_train::cpu
