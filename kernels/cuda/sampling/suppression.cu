// NonMaxSuppression (kernels/geometry/suppression.h). One block per class of an image: its threads find the best box
// that is left, then drop those that overlap it.
#include "kernels/geometry/suppression.h"

#include "kernels/cuda/reduction/leader.h"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/warp.h"

namespace onnx_train::cuda {
namespace {

// `is_left` holds a flag for each score. A thread reads and writes the flags of its own boxes alone.
template <typename T>
__global__ void select_boxes(BoxSelection s, const T* __restrict__ boxes, const T* __restrict__ scores,
                             const int64_t* most, const T* overlap, const T* least, bool* is_left, int64_t* order) {
  const int64_t line = blockIdx.x;
  const T* const box = boxes + line / s.classes * s.boxes * 4;
  const T* const score = scores + line * s.boxes;
  bool* const left = is_left + line * s.boxes;
  const LeaderOrder descending{true, false};
  for (int64_t i = threadIdx.x; i < s.boxes; i += kThreads) left[i] = is_candidate(score[i], *least);
  int64_t taken = 0;
  for (; taken < *most && taken < s.boxes; ++taken) {
    Leader<T> best{T{}, -1};
    for (int64_t i = threadIdx.x; i < s.boxes; i += kThreads) {
      if (left[i]) best = descending.best(best, Leader<T>{score[i], i});
    }
    best = merge_block<kThreads>(best, [=](const Leader<T>& a, const Leader<T>& b) { return descending.best(a, b); });
    if (best.index < 0) break;
    if (threadIdx.x == 0) order[line * s.boxes + taken] = best.index;
    const CandidateBox<T> chosen(s, box + 4 * best.index);
    for (int64_t i = threadIdx.x; i < s.boxes; i += kThreads) {
      if (left[i] && (i == best.index || chosen.overlaps(CandidateBox<T>(s, box + 4 * i), *overlap))) left[i] = false;
    }
  }
  for (int64_t i = taken + threadIdx.x; i < s.boxes; i += kThreads) order[line * s.boxes + i] = -1;
}

template <typename T>
Prepared prepare(const NodeSpec& spec) {
  const BoxSelection s = find_box_selection(spec);
  Prepared prepared;
  if (spec.out_size() == 0) return {[](const Launch&) {}};
  prepared.workspace = static_cast<size_t>(spec.out_size()) * sizeof(bool);
  prepared.run = [s](const Launch& launch) {
    enqueue(launch, "select_boxes", select_boxes<T>, static_cast<unsigned>(s.lines()), kThreads, 0, s, launch.in<T>(0),
            launch.in<T>(1), launch.in<int64_t>(2), launch.in<T>(3), launch.in<T>(4), launch.scratch<bool>(),
            launch.out<int64_t>());
  };
  return prepared;
}

}  // namespace

Prepared prepare_select_boxes(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(0), [&]<typename T>(T) { return prepare<T>(spec); });
}

}  // namespace onnx_train::cuda
