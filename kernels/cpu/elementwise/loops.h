// The CPU's loops over the formulas of kernels/elementwise.h. A loop computes consecutive elements on one thread; the
// operator's own kernel (elementwise.cc) and fused programs (cpu/fused) call the same one, so a fused node computes the
// same bits as its kernel. The rows are built once and never change; any thread may read them and run a loop.
#pragma once

#include <functional>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train::cpu {

// One operand of a loop: n elements, or one element for all.
struct LoopOperand {
  const void* data;
  bool moves;

  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// Computes result[i] = f(operands[0][i], ...) for i < n. The result may overwrite an operand that moves and has
// elements of the same size. Absent operands are null.
using ElementwiseLoop = std::function<void(int64_t n, const LoopOperand* operands, void* result)>;

struct ElementwiseRow {
  const char* op;
  const char* domain;
  int operands;   // inputs that the loop reads element by element; those after are scalars
  bool one_type;  // whether all inputs have the element type of the first
  // Whether there is a loop for the element types of the inputs. Assumes one type where `one_type` is set; reads no
  // shapes.
  std::function<bool(const Node&)> supports;
  // Makes the loop for a supported node with known shapes.
  std::function<ElementwiseLoop(const Node&)> make;
  // Makes the loop that scales the result of a variadic operator in place; an empty function if nothing does.
  std::function<ElementwiseLoop(const Node&)> make_scale = nullptr;

  bool is_variadic() const { return make_scale != nullptr; }
};

// All rows. No two have the same operator.
const std::vector<ElementwiseRow>& elementwise_rows();

// The rows of each group, one file per group.
std::vector<ElementwiseRow> arithmetic_rows();           // arithmetic.cc
std::vector<ElementwiseRow> bound_rows();                // bounds.cc
std::vector<ElementwiseRow> power_rows();                // powers.cc
std::vector<ElementwiseRow> function_of_floats_rows();   // functions.cc
std::vector<ElementwiseRow> activation_rows();           // activations.cc
std::vector<ElementwiseRow> activation_gradient_rows();  // activation_gradients.cc
std::vector<ElementwiseRow> comparison_rows();           // comparisons.cc
std::vector<ElementwiseRow> logic_rows();                // logic.cc
std::vector<ElementwiseRow> cast_rows();                 // casts.cc

}  // namespace onnx_train::cpu
