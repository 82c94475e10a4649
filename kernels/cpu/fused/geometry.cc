#include "kernels/cpu/fused/geometry.h"

#include <algorithm>
#include <numeric>

namespace onnx_train::cpu {
namespace {

constexpr int64_t kShortRun = 512;  // elements; shorter runs are gathered, several in a block
constexpr int64_t kLongestUnit = 2048;
constexpr size_t kCacheBytes = 24 << 10;  // part of the L1 cache that all operands of a block may use

}  // namespace

Geometry::Geometry(const Space& space, const std::vector<Broadcast>& patterns) : size(space.size), run(space.size) {
  if (space.row_size > 0) {
    rows = space.row_size >= kShortRun ? 1 : std::min(2 * kShortRun / space.row_size, space.size / space.row_size);
    unit = rows * space.row_size;
    if (rows == 1) run = space.row_size;
    return;
  }
  for (const Broadcast& pattern : patterns) {
    if (pattern.run_length() >= kShortRun) run = std::min(run, pattern.run_length());
  }
  for (const Broadcast& pattern : patterns) {
    if (!pattern.repeats(0) || pattern.run_length() >= kShortRun) continue;
    const int64_t both = std::lcm(unit, pattern.run_length());
    if (both <= kLongestUnit && (run == size || run % both == 0)) unit = both;
  }
}

int64_t Geometry::block(size_t bytes_per_element) const {
  if (rows > 0) return unit;
  const auto fitting = static_cast<int64_t>(kCacheBytes / std::max<size_t>(bytes_per_element, 1));
  const int64_t most = std::clamp<int64_t>(fitting, 256, 4096);
  const int64_t blocks = (run + most - 1) / most;
  constexpr int64_t kVector = 64;
  const int64_t step = std::lcm(unit, kVector) <= most ? std::lcm(unit, kVector) : unit;
  return std::min(run, ((run + blocks - 1) / blocks + step - 1) / step * step);
}

}  // namespace onnx_train::cpu
