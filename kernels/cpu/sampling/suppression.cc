// NonMaxSuppression (kernels/geometry/suppression.h): the candidates of a class in the order of their scores, each
// compared with those that are taken.
#include "kernels/geometry/suppression.h"

#include <algorithm>

#include "kernels/cpu/sampling/sampling.h"
#include "kernels/cpu/support/parallel.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// Orders the boxes of one class of one image. `order` holds as many numbers as there are boxes, `candidates` too.
template <typename T>
void select_boxes(const BoxSelection& s, const T* boxes, const T* scores, int64_t most, T overlap, T least,
                  int64_t* candidates, int64_t* order) {
  int64_t count = 0, taken = 0;
  for (int64_t i = 0; i < s.boxes; ++i) {
    if (is_candidate(scores[i], least)) candidates[count++] = i;
  }
  std::sort(candidates, candidates + count,
            [&](int64_t i, int64_t j) { return scores[i] > scores[j] || (scores[i] == scores[j] && i < j); });
  for (int64_t c = 0; c < count && taken < most; ++c) {
    const CandidateBox<T> box(s, boxes + 4 * candidates[c]);
    const bool is_free = std::none_of(order, order + taken, [&](int64_t other) {
      return CandidateBox<T>(s, boxes + 4 * other).overlaps(box, overlap);
    });
    if (is_free) order[taken++] = candidates[c];
  }
  std::fill(order + taken, order + s.boxes, int64_t{-1});
}

template <typename T>
Prepared prepare(const NodeSpec& spec) {
  const BoxSelection s = find_box_selection(spec);
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(spec.out_size()) * sizeof(int64_t);
  prepared.run = [s](const Launch& launch) {
    parallel_for(s.lines(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        select_boxes(s, launch.in<T>(0) + line / s.classes * s.boxes * 4, launch.in<T>(1) + line * s.boxes,
                     *launch.in<int64_t>(2), *launch.in<T>(3), *launch.in<T>(4),
                     launch.scratch<int64_t>() + line * s.boxes, launch.out<int64_t>() + line * s.boxes);
      }
    });
  };
  return prepared;
}

Prepared prepare_select_boxes(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(0), [&]<typename T>(T) { return prepare<T>(spec); });
}

}  // namespace

std::vector<Kernel> suppression_kernels() {
  return {{"SelectBoxes", supports_box_selection, prepare_select_boxes, kDomain}};
}

}  // namespace onnx_train::cpu
