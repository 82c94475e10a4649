// Register allocation for fused programs: a linear scan over the instructions assigns values to buffers of one block in
// scratch memory. A value may reuse the register of an operand if its instruction is the last to read that operand and
// allows it. Used by the compiler, on one thread.
#pragma once

#include <cstddef>
#include <vector>

namespace onnx_train::cpu {

class Registers {
 public:
  // Instruction `at` writes `slot`. The value may overwrite the register of one of `over`, operands that the
  // instruction reads element by element.
  void write(int slot, size_t bytes, int at, std::vector<int> over = {});
  void read(int slot, int at);
  // The value is computed before the first block and stays valid.
  void keep(int slot);

  void assign();
  // After assign(): bytes of all registers per element of a block, and the offset of a register.
  size_t bytes_per_element() const;
  size_t offset(int slot, size_t block) const;
  size_t end(size_t block) const;  // end of all registers
  const std::vector<int>& slots() const { return slots_; }

 private:
  struct Life {
    size_t bytes = 0;
    int written = -1, last_read = -1;
    bool kept = false;
    std::vector<int> over = {};
    int reg = -1;
  };
  struct Register {
    size_t bytes;
    int free_from;  // first instruction that may overwrite it
  };
  int take_over(const Life& life);
  int find_free(const Life& life);
  Life& life(int slot);

  std::vector<Life> lives_;  // indexed by slot
  std::vector<int> slots_;   // slots with a register, in the order in which they are written
  std::vector<Register> registers_;
};

}  // namespace onnx_train::cpu
