// The instructions of fused programs (program.h). Each function below returns a closure that any thread may run on its
// own block.
#pragma once

#include "kernels/cpu/fused/operations.h"
#include "kernels/cpu/fused/program.h"

namespace onnx_train::cpu {

// An operand of an instruction: a slot that holds one element per element of the block, or one element for all.
struct SlotOperand {
  int slot;  // -1: absent operand
  bool moves;
};

// The elements for which an instruction computes one result each: all elements of the block, or its rows.
enum class Extent { kElements, kRows };

// result = loop(operands)
Instruction compute(const ElementwiseLoop& loop, const std::vector<SlotOperand>& operands, int result, Extent extent);

// result[i] = the element of `input` to which the pattern maps element i of the block.
Instruction load(int input, const Broadcast& pattern, size_t bytes, int result, Extent extent);

// result[i] = from[i], or from[0] if the operand does not move.
Instruction copy(SlotOperand from, size_t bytes, int result, Extent extent);

// Broadcasts one value per row to all elements of the row.
Instruction broadcast_rows(int rows, int64_t row_size, size_t bytes, int result);

// Reduces each row of x to one value.
Instruction reduce_rows(const Reducer* reducer, int x, int64_t row_size, int result);

// Adds x to the accumulators of a terminal reduction; `kept` maps elements to accumulators.
Instruction add_to_terminal(const TerminalReduction& terminal, int x, const Broadcast& kept);

}  // namespace onnx_train::cpu
