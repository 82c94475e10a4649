// Rows of the Reduce operators: sums.cu, extrema.cu and norms.cu hold the kernels.
#include "kernels/cuda/reduction/reductions.h"

#include <algorithm>

#include "kernels/cuda/reduction/plan.h"
#include "kernels/cuda/support/kernels.h"

namespace onnx_train::cuda {

ReductionPlan::ReductionPlan(const Shape& shape, const std::vector<bool>& is_reduced) {
  for (size_t k = 0; k < shape.size(); ++k) (is_reduced[k] ? count : outputs) *= shape[k];
  const std::vector<ReductionAxis> axes = merged_reduction_axes(shape, is_reduced);
  int64_t to = 1;
  if (outputs == 0) return;
  for (const ReductionAxis& axis : axes) {
    if (axis.reduced && count > 0) reduced.insert(reduced.begin(), {axis.size, {axis.stride}});
    if (axis.reduced) continue;
    kept.insert(kept.begin(), {axis.size, {axis.stride, to}});
    to *= axis.size;
  }
  columns = !axes.empty() && !axes[0].reduced;
  // The number of blocks fills a large device, and each has enough elements. It is not asked of the device, since
  // pieces decide in which order elements are added.
  constexpr int64_t kBlocks = 512, kLeast = 4096, kMost = 1024;
  const int64_t blocks = columns ? (outputs + kColumns - 1) / kColumns : outputs;
  const int64_t least = columns ? kLeast / kColumns : kLeast;
  if (blocks < kBlocks) pieces = std::clamp<int64_t>(std::min(kBlocks / blocks, count / least), 1, kMost);
  piece = (count + pieces - 1) / pieces;
  if (piece > 0) pieces = std::max<int64_t>((count + piece - 1) / piece, 1);
}

std::vector<Kernel> reduction_kernels() {
  return {
      {"ReduceSum", reduces_numbers, prepare_sum},
      {"ReduceMean", reduces_numbers, prepare_mean},
      {"ReduceMax", reduces_ordered, prepare_maximum},
      {"ReduceMin", reduces_ordered, prepare_minimum},
      {"ReduceProd", reduces_numbers, prepare_reduced_product},
      {"ReduceL1", reduces_numbers, prepare_absolute_sum},
      {"ReduceL2", reduces_numbers, prepare_norm},
      {"ReduceLogSum", reduces_numbers, prepare_log_sum},
      {"ReduceLogSumExp", reduces_numbers, prepare_log_sum_exp},
      {"ReduceSumSquare", reduces_numbers, prepare_square_sum},
  };
}

}  // namespace onnx_train::cuda
