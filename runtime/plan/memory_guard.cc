#include "runtime/plan/memory_guard.h"

#include <algorithm>
#include <cstring>

#include "kernels/lowering/memory/lifetimes.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr int kPoison = 0xff;

}  // namespace

void MemoryGuard::allow(const Range& range) {
  if (range.begin < arena_ || range.begin >= arena_ + bytes_) return;
  const auto first = static_cast<size_t>(range.begin - arena_);
  const size_t end = std::min(first + range.bytes, bytes_);
  std::fill(allowed_.begin() + static_cast<ptrdiff_t>(first), allowed_.begin() + static_cast<ptrdiff_t>(end), true);
}

void MemoryGuard::before(const Node& node, const Launch& launch, size_t workspace) {
  std::vector<Range> inputs, written;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    if (!node.inputs()[i]) continue;
    inputs.push_back({const_cast<char*>(static_cast<const char*>(launch.inputs[i])), bytes_of(*node.inputs()[i])});
  }
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    if (node.outputs()[i]) written.push_back({static_cast<char*>(launch.outputs[i]), bytes_of(*node.outputs()[i])});
  }
  if (workspace > 0) written.push_back({static_cast<char*>(launch.workspace), workspace});
  allowed_.assign(bytes_, false);
  for (const Range& range : written) {
    if (!range.begin || range.bytes == 0) continue;
    const bool in_place = std::any_of(inputs.begin(), inputs.end(), [&](const Range& input) {
      return input.begin < range.begin + range.bytes && range.begin < input.begin + input.bytes;
    });
    if (!in_place) std::memset(range.begin, kPoison, range.bytes);
    allow(range);
  }
  copy_.assign(arena_, arena_ + bytes_);
}

void MemoryGuard::after(const Node& node) const {
  for (size_t i = 0; i < bytes_; ++i) {
    if (allowed_[i] || arena_[i] == copy_[i]) continue;
    fail("[Plan] ", node.label(), " writes to byte ", i, " of the arena, which is not its own");
  }
}

}  // namespace onnx_train
