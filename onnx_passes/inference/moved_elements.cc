#include "onnx_passes/inference/moved_elements.h"

#include <algorithm>

#include "onnx_passes/inference/elements.h"
#include "onnx_passes/ir/inputs.h"

namespace onnx_train {
namespace {

// The output element at [i0, i1, ..] is the input element at `first` + Σ i_k step_k of its row-major order.
struct Walk {
  int64_t first = 0;
  std::vector<int64_t> steps;
};

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

std::optional<Walk> walk_transpose(const Node& node, const Shape& shape) {
  std::vector<int64_t> perm = node.attr("perm", std::vector<int64_t>{});
  if (perm.empty()) {
    for (size_t i = shape.size(); i-- > 0;) perm.push_back(static_cast<int64_t>(i));
  }
  const std::vector<int64_t> strides = strides_of(shape);
  Walk walk;
  for (const int64_t axis : perm) {
    if (axis < 0 || axis >= static_cast<int64_t>(shape.size())) return std::nullopt;
    walk.steps.push_back(strides[static_cast<size_t>(axis)]);
  }
  return walk;
}

// Numbers of input `i`; nothing if one of them is not known.
std::optional<std::vector<int64_t>> numbers_of(const Node& node, int i) {
  const auto elements = elements_of(node.input(i));
  if (!elements) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Dim& d : *elements) {
    if (!d.known()) return std::nullopt;
    numbers.push_back(d.value());
  }
  return numbers;
}

std::optional<Walk> walk_slice(const Node& node, const Shape& shape) {
  const auto starts = numbers_of(node, 1);
  const auto axes = node.input(3) ? numbers_of(node, 3) : std::nullopt;
  const auto steps = node.input(4) ? numbers_of(node, 4) : std::nullopt;
  if (!starts || (node.input(3) && !axes) || (node.input(4) && !steps)) return std::nullopt;
  const auto rank = static_cast<int64_t>(shape.size());
  const std::vector<int64_t> strides = strides_of(shape);
  Walk walk{0, strides};
  for (size_t i = 0; i < starts->size(); ++i) {
    if ((axes && i >= axes->size()) || (steps && i >= steps->size())) return std::nullopt;
    int64_t axis = axes ? (*axes)[i] : static_cast<int64_t>(i);
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) return std::nullopt;
    const auto at = static_cast<size_t>(axis);
    const int64_t size = shape[at], step = steps ? (*steps)[i] : 1;
    if (step == 0 || step > size || step < -size) return std::nullopt;
    int64_t start = (*starts)[i];
    if (start < 0) start = start < -size ? -1 : start + size;
    start = std::clamp<int64_t>(start, 0, step < 0 ? size - 1 : size);
    walk.first += start * strides[at];
    walk.steps[at] = step * strides[at];
  }
  return walk;
}

}  // namespace

std::optional<Dims> moved_elements(const Node& node) {
  const Value* x = node.input(0);
  const Value* y = node.output();
  if (!x || !y || !x->type().is_static() || !y->type().is_static()) return std::nullopt;
  const auto elements = elements_of(x);
  if (!elements) return std::nullopt;
  const Shape from = x->type().shape(), to = y->type().shape();
  const std::optional<Walk> walk = node.is("Transpose") ? walk_transpose(node, from)
                                   : node.is("Slice")   ? walk_slice(node, from)
                                                        : std::nullopt;
  if (!walk || walk->steps.size() != to.size() || num_elements(to) > kMaxElements) return std::nullopt;
  Dims result;
  std::vector<int64_t> index(to.size(), 0);
  for (int64_t n = num_elements(to); n > 0; --n) {
    int64_t at = walk->first;
    for (size_t k = 0; k < to.size(); ++k) at += index[k] * walk->steps[k];
    if (at < 0 || at >= static_cast<int64_t>(elements->size())) return std::nullopt;
    result.push_back((*elements)[static_cast<size_t>(at)]);
    for (size_t k = to.size(); k-- > 0 && ++index[k] == to[k];) index[k] = 0;
  }
  return result;
}

}  // namespace onnx_train
