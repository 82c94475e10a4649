#include <algorithm>

#include "kernels/cpu/fused/program.h"
#include "kernels/cpu/support/parallel.h"

namespace onnx_train::cpu {
namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t share_bytes(const Program& program) {
  return aligned(program.slots.size() * sizeof(char*)) + aligned(program.register_bytes);
}

// The number of units that threads share: pieces if there is a terminal reduction, else blocks.
int64_t num_units(const Program& program) {
  return program.terminal_reductions.empty() ? program.num_blocks() : program.pieces;
}

int64_t num_shares(const Program& program, int threads) {
  const int64_t worth = (program.num_blocks() + program.grain - 1) / program.grain;
  return std::clamp<int64_t>(std::min(worth, num_units(program)), 1, std::max(threads, 1));
}

// The work of one thread.
class Share {
 public:
  Share(const Program& program, const Launch& launch, char* scratch)
      : program_(program),
        args_(launch),
        slots_(static_cast<char**>(static_cast<void*>(scratch))),
        registers_(scratch + aligned(program.slots.size() * sizeof(char*))) {
    for (size_t s = 0; s < program.slots.size(); ++s) slots_[s] = start_of(program.slots[s]);
    block_.slots = slots_;
    block_.count = program.block;
    if (program.row_size > 0) block_.rows = program.block / program.row_size;
    for (const Instruction& instruction : program.once) instruction(block_);
  }

  void run_blocks(int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) run_block(b);
  }

  void run_piece(int64_t piece, char* accumulators) {
    block_.accumulators = accumulators;
    const int64_t blocks = program_.num_blocks(), pieces = program_.pieces;
    run_blocks(blocks * piece / pieces, blocks * (piece + 1) / pieces);
  }

 private:
  void run_block(int64_t b) {
    const int64_t in_run = program_.blocks_per_run(), at = b % in_run * program_.block;
    block_.first = b / in_run * program_.run + at;
    block_.count = std::min(program_.block, program_.run - at);
    if (program_.row_size > 0) {
      block_.first_row = block_.first / program_.row_size;
      block_.rows = block_.count / program_.row_size;
    }
    for (size_t s = 0; s < program_.slots.size(); ++s) move(program_.slots[s], &slots_[s]);
    for (const Instruction& instruction : program_.instructions) instruction(block_);
  }

  char* start_of(const Slot& slot) const {
    switch (slot.kind) {
      case Slot::kScratch: return registers_ + slot.offset;
      case Slot::kConstant: return const_cast<char*>(program_.constants[static_cast<size_t>(slot.port)].data<char>());
      case Slot::kFixedInput:
      case Slot::kInput: return const_cast<char*>(args_.in<char>(slot.port));
      case Slot::kOutput: return args_.out<char>(slot.port);
    }
    return nullptr;
  }

  void move(const Slot& slot, char** pointer) const {
    if (slot.kind != Slot::kInput && slot.kind != Slot::kOutput) return;
    const int64_t index = slot.per_row ? block_.first_row : block_.first;
    *pointer = start_of(slot) + static_cast<size_t>(slot.pattern ? slot.pattern->offset(0, index) : index) * slot.bytes;
  }

  const Program& program_;
  const Launch& args_;
  char** slots_;
  char* registers_;
  FusedBlock block_;
};

void start_accumulators(const Program& program, char* piece) {
  for (const TerminalReduction& c : program.terminal_reductions) c.reducer->start(c.size * c.repeats, piece + c.offset);
}

// Merges the accumulators of the pieces in order, then the repeats within one piece, and writes the results.
void close(const Program& program, char* accumulators, const Launch& launch) {
  for (const TerminalReduction& c : program.terminal_reductions) {
    char* first = accumulators + c.offset;
    for (int64_t p = 1; p < program.pieces; ++p) {
      c.reducer->merge(c.size * c.repeats, first + static_cast<size_t>(p) * program.accumulator_bytes, first);
    }
    for (int64_t r = 1; r < c.repeats; ++r) {
      c.reducer->merge(c.size, first + static_cast<size_t>(r * c.size) * c.reducer->accumulator_bytes, first);
    }
    c.reducer->finish(c.size, first, c.count, launch.outputs[c.output]);
  }
}

}  // namespace

size_t fused_workspace(const Program& program, int threads) {
  const auto shares = static_cast<size_t>(num_shares(program, threads));
  return shares * share_bytes(program) + static_cast<size_t>(program.pieces) * program.accumulator_bytes;
}

void run_fused(const Program& program, int threads, const Launch& launch) {
  const int64_t shares = num_shares(program, threads), units = num_units(program);
  char* accumulators = launch.scratch<char>() + static_cast<size_t>(shares) * share_bytes(program);
  parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      Share share(program, launch, launch.scratch<char>() + static_cast<size_t>(s) * share_bytes(program));
      const int64_t first = units * s / shares, last = units * (s + 1) / shares;
      if (program.terminal_reductions.empty()) {
        share.run_blocks(first, last);
        continue;
      }
      for (int64_t p = first; p < last; ++p) {
        char* piece = accumulators + static_cast<size_t>(p) * program.accumulator_bytes;
        start_accumulators(program, piece);
        share.run_piece(p, piece);
      }
    }
  });
  close(program, accumulators, launch);
}

}  // namespace onnx_train::cpu
