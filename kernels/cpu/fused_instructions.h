// The instructions of fused programs (fused_program.h).
#pragma once

#include "kernels/cpu/fused_operations.h"
#include "kernels/cpu/fused_program.h"

namespace onnx_train::cpu {

// An operand of an instruction: a slot with a block of elements, or with one that all share.
struct SlotOperand {
  int slot;  // -1: left out
  bool moves;
};

// Elements of the space, or lines of it: how many numbers an instruction makes.
enum class Extent { kElements, kLines };

// result = operation(operands)
Instruction compute(const Operation& operation, const std::vector<SlotOperand>& operands, int result, Extent extent);

// result[i] = the element of `input` that the pattern gives the i-th of the block
Instruction load(int input, const Broadcast& pattern, size_t bytes, int result, Extent extent);

// result[i] = what lies in `from`, or its only element
Instruction copy(SlotOperand from, size_t bytes, int result, Extent extent);

// A number for each line to all elements of the line.
Instruction spread(int lines, int64_t line, size_t bytes, int result);

// Each line of x to one number.
Instruction reduce_lines(const Reducer* reducer, int x, int64_t line, int result);

// x to the accumulators of a closing reduction, which lie as `kept` says.
Instruction add_to_closing(const Closing& closing, int x, const Broadcast& kept);

}  // namespace onnx_train::cpu
