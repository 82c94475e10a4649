#include "kernels/cuda/recurrent/persistent_plan.h"

#include <algorithm>

namespace onnx_train::cuda {
namespace {

constexpr size_t kMostSharedBytes = size_t{96} << 10;  // of a block, on every device since compute capability 8.0

int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::optional<PersistentPlan> plan_persistent(const Extents& e, bool is_forward, std::span<const GateRows> phases,
                                              int64_t multiprocessors) {
  std::optional<PersistentPlan> best;
  int64_t least = 0;
  for (const int vectors : {1, 2, 4}) {
    PersistentPlan plan;
    plan.vectors = vectors;
    int64_t tasks = 0, row = 0, pitch = 0;  // tasks of kWarpRows units
    for (size_t p = 0; p < phases.size(); ++p) {
      const int64_t depth = is_forward ? e.hidden : phases[p].gates * e.hidden;
      const int64_t parts = quotient_up(depth, kLanes * 4 * vectors);
      if (parts > kWalkWarps) break;
      plan.parts[p] = static_cast<int>(parts);
      plan.tasks[p] = static_cast<int>(parts * (is_forward ? phases[p].gates : 1));
      tasks += plan.tasks[p];
      row = std::max(row, parts * vectors * kLanes);
      pitch = std::max(pitch, quotient_up(depth, 4) * 4);
      plan.pads = plan.pads || depth % 4 != 0;
    }
    if (tasks > kWalkWarps || plan.parts[phases.size() - 1] == 0) continue;
    const int64_t groups = std::min(kWalkWarps / tasks, quotient_up(e.hidden, kWarpRows));
    plan.units = static_cast<int>(groups * kWarpRows);
    for (int& of_phase : plan.tasks) of_phase *= static_cast<int>(groups);
    const int64_t unit_blocks = quotient_up(e.hidden, plan.units), chunks = quotient_up(e.batch, kWarpSamples);
    const int64_t tiles = std::min(multiprocessors / (e.directions * unit_blocks), chunks);
    if (tiles == 0) continue;
    const int64_t of_tile = quotient_up(chunks, tiles);
    plan.unit_blocks = static_cast<int>(unit_blocks);
    plan.tile = static_cast<int>(of_tile * kWarpSamples);
    plan.tiles = static_cast<int>(quotient_up(e.batch, plan.tile));
    plan.row = static_cast<int>(row), plan.pitch = static_cast<int>(pitch);
    plan.pass = std::min(plan.tile, kWalkThreads / plan.units / kWarpSamples * kWarpSamples);
    while (plan.pass > kWarpSamples && plan.shared_bytes() > kMostSharedBytes) plan.pass -= kWarpSamples;
    const int64_t work = of_tile * vectors;
    // Of equal ones, the plan whose barriers have fewer blocks.
    if (best && (work > least || (work == least && plan.unit_blocks >= best->unit_blocks))) continue;
    best = plan;
    least = work;
  }
  return best;
}

}  // namespace onnx_train::cuda
