#include "kernels/cpu/fused/instructions.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/dispatch.h"

namespace onnx_train::cpu {
namespace {

int64_t count_of(const FusedBlock& block, Extent extent) {
  return extent == Extent::kElements ? block.count : block.rows;
}

template <typename F>
Instruction for_size(size_t bytes, F&& f) {
  return dispatch_size(bytes, [&]<typename T>(T t) -> Instruction { return f(t); });
}

}  // namespace

Instruction compute(const ElementwiseLoop& loop, const std::vector<SlotOperand>& operands, int result, Extent extent) {
  std::array<SlotOperand, kMaxOperands> slots{};
  std::copy(operands.begin(), operands.end(), slots.begin());
  return [loop, slots, count = operands.size(), result, extent](const FusedBlock& block) {
    LoopOperand values[kMaxOperands];
    for (size_t i = 0; i < count; ++i) {
      values[i] = {slots[i].slot < 0 ? nullptr : block.at(slots[i].slot), slots[i].moves};
    }
    loop(count_of(block, extent), values, block.at(result));
  };
}

Instruction load(int input, const Broadcast& pattern, size_t bytes, int result, Extent extent) {
  return for_size(bytes, [&]<typename T>(T) -> Instruction {
    return [=](const FusedBlock& block) {
      const T* from = block.at<T>(input);
      T* to = block.at<T>(result);
      const int64_t first = extent == Extent::kElements ? block.first : block.first_row;
      pattern.for_each_run(first, first + count_of(block, extent),
                           [&](int64_t at, int64_t count, const Broadcast::Offsets& offsets) {
                             const T* run = from + offsets[0];
                             if (pattern.moves(0)) {
                               std::copy(run, run + count, to + (at - first));
                             } else {
                               std::fill_n(to + (at - first), count, *run);
                             }
                           });
    };
  });
}

Instruction copy(SlotOperand from, size_t bytes, int result, Extent extent) {
  return for_size(bytes, [&]<typename T>(T) -> Instruction {
    return [=](const FusedBlock& block) {
      const T* x = block.at<T>(from.slot);
      T* y = block.at<T>(result);
      const int64_t count = count_of(block, extent);
      if (!from.moves) {
        std::fill_n(y, count, *x);
      } else if (x != y) {
        std::memcpy(y, x, static_cast<size_t>(count) * sizeof(T));
      }
    };
  });
}

Instruction broadcast_rows(int rows, int64_t row_size, size_t bytes, int result) {
  return for_size(bytes, [&]<typename T>(T) -> Instruction {
    return [=](const FusedBlock& block) {
      const T* x = block.at<T>(rows);
      T* y = block.at<T>(result);
      for (int64_t l = 0; l < block.rows; ++l) std::fill_n(y + l * row_size, row_size, x[l]);
    };
  });
}

Instruction reduce_rows(const Reducer* reducer, int x, int64_t row_size, int result) {
  return [=](const FusedBlock& block) {
    const char* from = block.at<char>(x);
    char* to = block.at<char>(result);
    const size_t bytes = reducer->element_bytes;
    for (int64_t l = 0; l < block.rows; ++l) {
      reducer->row(row_size, from + static_cast<size_t>(l * row_size) * bytes, to + static_cast<size_t>(l) * bytes);
    }
  };
}

Instruction add_to_terminal(const TerminalReduction& terminal, int x, const Broadcast& kept) {
  const Reducer* r = terminal.reducer;
  if (terminal.repeats > 1) {
    return [r, x, offset = terminal.offset, width = terminal.size * terminal.repeats](const FusedBlock& block) {
      for (int64_t j = 0; j < block.count; j += width) {
        r->add(std::min(width, block.count - j), block.at<char>(x) + static_cast<size_t>(j) * r->element_bytes,
               block.accumulators + offset);
      }
    };
  }
  return [r, x, kept, offset = terminal.offset](const FusedBlock& block) {
    kept.for_each_run(block.first, block.first + block.count,
                      [&](int64_t at, int64_t count, const Broadcast::Offsets& offsets) {
                        const char* from = block.at<char>(x) + static_cast<size_t>(at - block.first) * r->element_bytes;
                        char* to = block.accumulators + offset + static_cast<size_t>(offsets[0]) * r->accumulator_bytes;
                        kept.moves(0) ? r->add(count, from, to) : r->add_row(count, from, to);
                      });
  };
}

}  // namespace onnx_train::cpu
