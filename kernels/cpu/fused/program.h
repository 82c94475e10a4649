// A fused node as a program. The iteration space is cut into blocks that fit the L1 cache; the instructions run in
// order on each block. Their operands are slots: pointers to the block's part of a value, in an input, an output, or
// scratch memory (a register).
//
//   blocks    `block` elements, never across a multiple of `run`; in a program with rows, whole rows
//   pieces    a fixed number of groups of consecutive blocks. A terminal reduction sums each piece separately and then
//             the pieces in order, so its result does not depend on the number of threads
//   shares    the blocks of one thread, with its own registers
//
// Order of summation: a row is summed in 32 lanes, which are then added pairwise (like reductions.cc, with the same
// bits). A terminal reduction adds the rows of a piece one after the other, or, if the innermost axis is reduced, the
// sums of its runs, each computed like a row; then it adds the pieces. Float sums are accumulated in float64.
//
// The prepared kernel owns its Program, which is immutable: any thread may run it.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "kernels/cpu/fused/reducers.h"
#include "kernels/geometry/indexing/broadcast.h"
#include "kernels/kernel.h"

namespace onnx_train::cpu {

// The block that an instruction works on.
struct FusedBlock {
  int64_t first = 0, count = 0;     // range of elements of the space
  int64_t first_row = 0, rows = 0;  // range of rows; empty in a program without rows
  char* const* slots = nullptr;
  char* accumulators = nullptr;  // accumulators of the piece that contains the block

  template <typename T = void>
  T* at(int slot) const {
    return static_cast<T*>(static_cast<void*>(slots[slot]));
  }
};

using Instruction = std::function<void(const FusedBlock&)>;

// The memory that a slot refers to while a block is processed.
struct Slot {
  enum Kind {
    kScratch,
    kConstant,
    kFixedInput,
    kInput,
    kOutput
  };  // kFixedInput: the start of the input for every block
  Kind kind;
  size_t bytes = 0;   // per element
  size_t offset = 0;  // kScratch: in the scratch memory of a share
  int port = 0;       // input or output number; kConstant: index into `constants`
  bool per_row = false;
  std::optional<Broadcast> pattern =
      std::nullopt;  // kInput: broadcast of its elements over the space; nothing if in order
};

// A reduction whose result is complete only after the last element.
struct TerminalReduction {
  const Reducer* reducer;
  int output;         // output number
  int64_t size;       // elements of the output
  int64_t repeats;    // accumulators per output element, `size` apart
  int64_t count;      // input elements per output element
  size_t offset = 0;  // in the accumulators of a piece
};

struct Program {
  int64_t size = 0, row_size = 0;  // sizes of the space; row_size 0: no rows
  int64_t block = 0, run = 0;
  int64_t pieces = 1;
  int64_t grain = 1;  // blocks per thread that make a thread worthwhile
  std::vector<Slot> slots;
  std::vector<Tensor> constants;
  std::vector<Instruction> once;  // each share runs them before its first block, as for a full block at element 0
  std::vector<Instruction> instructions;
  std::vector<TerminalReduction> terminal_reductions;
  size_t register_bytes = 0;     // per share
  size_t accumulator_bytes = 0;  // per piece
  std::vector<InPlace> in_place;

  int64_t blocks_per_run() const { return (run + block - 1) / block; }
  int64_t num_blocks() const { return size / run * blocks_per_run(); }
};

// Compiles a call of `Fused`. Throws Error when the nodes of the function do not form a fusion region.
Program compile_fused(const NodeSpec& spec);

// Bytes of scratch memory for a run with this many threads.
size_t fused_workspace(const Program& program, int threads);

void run_fused(const Program& program, int threads, const Launch& launch);

}  // namespace onnx_train::cpu
