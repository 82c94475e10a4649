#include "kernels/cpu/fused/registers.h"

#include <algorithm>
#include <limits>

namespace onnx_train::cpu {
namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Registers::Life& Registers::life(int slot) {
  const auto index = static_cast<size_t>(slot);
  if (index >= lives_.size()) lives_.resize(index + 1);
  return lives_[index];
}

void Registers::write(int slot, size_t bytes, int at, std::vector<int> over) {
  Life& l = life(slot);
  l.bytes = bytes;
  l.written = at;
  l.last_read = std::max(l.last_read, at);
  l.over = std::move(over);
  slots_.push_back(slot);
}

void Registers::read(int slot, int at) { life(slot).last_read = std::max(life(slot).last_read, at); }

void Registers::keep(int slot) { life(slot).kept = true; }

int Registers::take_over(const Life& l) {
  for (int slot : l.over) {
    if (static_cast<size_t>(slot) >= lives_.size()) continue;  // the slot is not a register
    const Life& operand = lives_[static_cast<size_t>(slot)];
    if (operand.reg >= 0 && !operand.kept && operand.last_read == l.written && operand.bytes == l.bytes) {
      return operand.reg;
    }
  }
  return -1;
}

int Registers::find_free(const Life& l) {
  for (size_t r = 0; r < registers_.size() && !l.kept; ++r) {
    if (registers_[r].bytes == l.bytes && registers_[r].free_from <= l.written) return static_cast<int>(r);
  }
  registers_.push_back({l.bytes, 0});
  return static_cast<int>(registers_.size()) - 1;
}

void Registers::assign() {
  for (int slot : slots_) {
    Life& l = lives_[static_cast<size_t>(slot)];
    l.reg = take_over(l);
    if (l.reg < 0) l.reg = find_free(l);
    Register& reg = registers_[static_cast<size_t>(l.reg)];
    reg.free_from = l.kept ? std::numeric_limits<int>::max() : l.last_read + 1;
  }
}

size_t Registers::bytes_per_element() const {
  size_t bytes = 0;
  for (const Register& reg : registers_) bytes += reg.bytes;
  return bytes;
}

size_t Registers::offset(int slot, size_t block) const {
  size_t offset = 0;
  for (int r = 0; r < lives_[static_cast<size_t>(slot)].reg; ++r) {
    offset += aligned(registers_[static_cast<size_t>(r)].bytes * block);
  }
  return offset;
}

size_t Registers::end(size_t block) const {
  size_t end = 0;
  for (const Register& reg : registers_) end += aligned(reg.bytes * block);
  return end;
}

}  // namespace onnx_train::cpu
