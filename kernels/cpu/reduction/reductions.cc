#include "kernels/cpu/reduction/reductions.h"

#include "kernels/cpu/reduction/reduce.h"
#include "kernels/cpu/support/kernels.h"

namespace onnx_train::cpu {

ReductionLayout::ReductionLayout(const Shape& shape, const std::vector<bool>& is_reduced) {
  int64_t outputs = 1;
  for (size_t k = 0; k < shape.size(); ++k) (is_reduced[k] ? count : outputs) *= shape[k];
  const std::vector<ReductionAxis> axes = merged_reduction_axes(shape, is_reduced);
  if (outputs == 0) {
    tasks = 0;
    return;
  }
  constexpr int64_t kEnoughTasks = 32, kPieces = 64;
  size_t next = 0;
  lanes = !axes.empty() && axes[0].reduced;
  if (lanes) {
    rows = axes[0].size;
    width = rows < kLineLanes ? 1 : kLineLanes;
    segment = kSegment;
    next = 1;
  } else {
    if (!axes.empty()) columns = axes[next++].size;
    width = std::min(columns, kMaxWidth);
    blocks = (columns + width - 1) / width;
    if (next < axes.size()) {
      rows = axes[next].size;
      row_stride = axes[next++].stride;
    }
    segment = std::max<int64_t>(kSegment / width, 1);
  }
  int64_t to = columns;
  for (; next < axes.size(); ++next) {
    const ReductionAxis& a = axes[next];
    if (a.reduced) {
      reduced.insert(reduced.begin(), {a.size, a.stride, 0});
    } else {
      kept.insert(kept.begin(), {a.size, a.stride, to});
      to *= a.size;
    }
  }
  tasks = outputs / columns * blocks;
  segments_per_run = (rows + segment - 1) / segment;
  segments = count == 0 ? 0 : segments_per_run * (count / rows);
  if (tasks < kEnoughTasks) pieces = std::clamp<int64_t>(std::min(segments, kPieces / tasks), 1, kPieces);
}

std::vector<Kernel> reduction_kernels() {
  std::vector<Kernel> all;
  for (auto* group : {sum_kernels, norm_kernels, extremum_kernels}) {
    for (Kernel& kernel : group()) all.push_back(std::move(kernel));
  }
  return all;
}

}  // namespace onnx_train::cpu
