// The operations of fused programs: element-wise operators as loops over blocks that fit the L1 cache. They use the
// loops (maps.h, choose.h) and functors (kernels/math) of the operators' own kernels, so that a fused node computes the
// same bits as its body. The tables are built once; any thread may call an Operation.
#pragma once

#include <functional>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cpu {

// One operand of an operation: n elements, or one element for all.
struct FusedOperand {
  const void* data;
  bool moves;

  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// result[i] = f(operands[0][i], ...) for i < n. At least one operand moves. The result may overwrite one of the first
// two operands if the element sizes are equal. Absent operands are null.
using Operation = std::function<void(int64_t n, const FusedOperand* operands, void* result)>;

struct FusedOperator {
  const char* op;
  // Returns the loop for the node, or an empty function if its types are not supported.
  std::function<Operation(const Node&)> make;
  const char* domain = "";
  int moving = 0;  // number of leading operands that must move
};

constexpr int kMaxOperands = 8;

// The operator families, joined in operations.cc.
std::vector<FusedOperator> fused_arithmetic();   // arithmetic.cc: Add, Pow, Max, Clip, Exp, ...
std::vector<FusedOperator> fused_activations();  // activations.cc: Relu, Gelu, their gradients, DropoutGrad
std::vector<FusedOperator> fused_logic();        // logic.cc: comparisons, And, Where, Cast

// The table row of the node's operator; null if there is none.
const FusedOperator* find_fused_operator(const Node& node);

// Whether a fused program may contain the node: an operator of the families with supported types, a reduction, a view
// or an Expand. The pass fuse_elementwise asks this function, so every node it makes can be prepared.
bool can_fuse(const Node& node);

}  // namespace onnx_train::cpu
