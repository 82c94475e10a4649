// A fused node as a program. The iteration space is cut into blocks that fit the L1 cache; for each block the
// instructions run in order. They work on slots: pointers to where a block of a value lies, be it in an input, in an
// output, or in scratch memory (a register).
//
//   blocks    `block` elements, never across a multiple of `run`; in a program with lines, whole lines
//   pieces    a fixed number of groups of neighbouring blocks. A closing reduction sums each piece by itself and then
//             the pieces in order, so that its result does not depend on the number of threads
//   shares    the blocks of one thread, with registers of its own
//
// The order of a reduction: a line is summed in 32 lanes, the lanes pairwise (as reductions.cc does; the same bits). A
// closing reduction adds the rows of a piece one after the other, or what their runs come to, each summed like a line,
// if the innermost axis is reduced; then the pieces. Floats are summed in float64 throughout.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "kernels/cpu/broadcast.h"
#include "kernels/cpu/fused_reducers.h"
#include "kernels/kernel.h"

namespace onnx_train::cpu {

// What an instruction sees of one block.
struct FusedBlock {
  int64_t first = 0, count = 0;  // elements of the space
  int64_t line = 0, lines = 0;   // the first of its lines, and how many; 0 in a program without
  char* const* slots = nullptr;
  char* accumulators = nullptr;  // of the block's piece

  template <typename T = void>
  T* at(int slot) const {
    return static_cast<T*>(static_cast<void*>(slots[slot]));
  }
};

using Instruction = std::function<void(const FusedBlock&)>;

// Where a slot points to while a block is worked on.
struct Slot {
  enum Kind { kScratch, kConstant, kFixedInput, kInput, kOutput };  // kFixedInput: where it begins, for all blocks
  Kind kind;
  size_t bytes = 0;   // of one element
  size_t offset = 0;  // kScratch: in a share's scratch memory
  int port = 0;       // of inputs and outputs; kConstant: which of `constants`
  bool per_line = false;
  std::optional<Broadcast> pattern =
      std::nullopt;  // kInput: how its elements are spread over the space; none: in order
};

// A reduction whose result is known at the end.
struct Closing {
  const Reducer* reducer;
  int output;         // port
  int64_t size;       // elements of the output
  int64_t repeats;    // accumulators for each of them, `size` apart
  int64_t count;      // elements that make one of the output's
  size_t offset = 0;  // in a piece's accumulators
};

struct Program {
  int64_t size = 0, line = 0;  // of the space; line 0: none
  int64_t block = 0, run = 0;
  int64_t pieces = 1;
  int64_t grain = 1;  // blocks that are worth a thread
  std::vector<Slot> slots;
  std::vector<Tensor> constants;
  std::vector<Instruction> once;  // run by each share before its first block, as if for a full block at element 0
  std::vector<Instruction> instructions;
  std::vector<Closing> closings;
  size_t register_bytes = 0;     // of one share
  size_t accumulator_bytes = 0;  // of one piece
  std::vector<InPlace> in_place;

  int64_t blocks_per_run() const { return (run + block - 1) / block; }
  int64_t num_blocks() const { return size / run * blocks_per_run(); }
};

// The program of a call of `Fused`: a function whose nodes fit one island. Throws Error when they do not.
Program compile_fused(const NodeSpec& spec);

// Scratch memory that a run with this many threads needs.
size_t fused_workspace(const Program& program, int threads);

void run_fused(const Program& program, int threads, const Launch& launch);

}  // namespace onnx_train::cpu
