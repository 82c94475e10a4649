// Which registers (buffers of one block in scratch memory) the values of a fused program get: linear scan over the
// instructions. A value takes the register of an operand that it is the last to read, where its instruction allows it.
#pragma once

#include <cstddef>
#include <vector>

namespace onnx_train::cpu {

class Registers {
 public:
  // The value of `slot` is written by instruction `at`; it may lie in the register of one of `over`, slots that the
  // instruction reads element by element.
  void write(int slot, size_t bytes, int at, std::vector<int> over = {});
  void read(int slot, int at);
  // The value is there from the first block on and stays.
  void keep(int slot);

  // Gives each slot a register.
  void assign();
  // After assign: bytes of all registers for each element of a block, and where one register of them begins.
  size_t bytes_per_element() const;
  size_t offset(int slot, size_t block) const;
  size_t end(size_t block) const;  // of all registers
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
    int free_from;  // the instruction from which on it may be written again
  };
  int take_over(const Life& life);
  int find_free(const Life& life);
  Life& life(int slot);

  std::vector<Life> lives_;  // by slot
  std::vector<int> slots_;   // that have a register, in the order in which they are written
  std::vector<Register> registers_;
};

}  // namespace onnx_train::cpu
