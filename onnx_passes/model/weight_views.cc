#include "onnx_passes/model/weight_views.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

Shape without_ones(Shape shape) {
  std::erase(shape, 1);
  return shape;
}

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

// Calls f(number of the element, offset in elements) for the elements of a block of `shape` in row-major order until it
// returns false; returns whether it never did.
template <typename F>
bool for_each_offset(const Shape& shape, const std::vector<int64_t>& strides, const F& f) {
  std::vector<int64_t> at(shape.size(), 0);
  const int64_t count = num_elements(shape);
  int64_t offset = 0;
  for (int64_t n = 0; n < count; ++n) {
    if (!f(n, offset)) return false;
    for (size_t d = shape.size(); d-- > 0;) {
      offset += strides[d];
      if (++at[d] < shape[d]) break;
      offset -= strides[d] * shape[d];
      at[d] = 0;
    }
  }
  return true;
}

// Where the elements of a view are in its base, in the view's order.
struct ViewedElements {
  Shape sizes;
  std::vector<int64_t> steps;
  int64_t first = 0;
};

ViewedElements elements_of(const Shape& base, const WeightView& view) {
  Shape shape = base;
  const std::vector<int64_t> strides = strides_of(shape);
  ViewedElements elements;
  if (view.axis >= 0) {
    const auto axis = static_cast<size_t>(view.axis);
    shape[axis] = view.end - view.begin;
    elements.first = view.begin * strides[axis];
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    const size_t axis = view.perm.empty() ? i : static_cast<size_t>(view.perm[i]);
    elements.sizes.push_back(shape[axis]);
    elements.steps.push_back(strides[axis]);
  }
  return elements;
}

// Whether x holds, in order, the elements of the base's slice whose axes `perm` orders.
bool holds(const Tensor& base, const WeightView& view, const Tensor& x) {
  const ViewedElements elements = elements_of(base.shape(), view);
  const size_t element = size_of(x.dtype());
  const auto* from = base.data<char>() + static_cast<size_t>(elements.first) * element;
  const auto* to = x.data<char>();
  return for_each_offset(elements.sizes, elements.steps, [&](int64_t n, int64_t offset) {
    return std::memcmp(to + static_cast<size_t>(n) * element, from + static_cast<size_t>(offset) * element, element) ==
           0;
  });
}

// Orders of the axes to try: as they are, and those whose sizes other than 1 are x's.
std::vector<std::vector<int64_t>> orders(const Shape& shape, const Shape& x) {
  constexpr size_t kMaxAxes = 4;
  std::vector<int64_t> perm(shape.size());
  std::iota(perm.begin(), perm.end(), 0);
  std::vector<std::vector<int64_t>> found = {perm};
  if (without_ones(shape).size() < 2 || shape.size() > kMaxAxes) return found;
  const Shape wanted = without_ones(x);
  while (std::next_permutation(perm.begin(), perm.end())) {
    Shape permuted;
    for (const int64_t axis : perm) permuted.push_back(shape[static_cast<size_t>(axis)]);
    if (without_ones(permuted) == wanted) found.push_back(perm);
  }
  return found;
}

std::optional<WeightView> find_order(const Tensor& base, WeightView view, const Tensor& x) {
  Shape shape = base.shape();
  if (view.axis >= 0) shape[static_cast<size_t>(view.axis)] = view.end - view.begin;
  for (const std::vector<int64_t>& perm : orders(shape, x.shape())) {
    view.perm = perm;
    if (!holds(base, view, x)) continue;
    if (std::is_sorted(perm.begin(), perm.end())) view.perm.clear();
    return view;
  }
  return std::nullopt;
}

// A view that does not repeat.
std::optional<WeightView> find_part(const Tensor& base, const Tensor& x) {
  const Shape& shape = base.shape();
  const bool one_axis = without_ones(shape).size() < 2;
  if (is_uniform(x) && !(one_axis && x.size() == base.size())) return std::nullopt;
  WeightView view;
  view.once = x.shape();
  if (x.size() == base.size()) return find_order(base, view, x);
  if (x.size() < 2) return std::nullopt;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const int64_t rest = base.size() / shape[axis], length = x.size() / rest;
    if (x.size() % rest != 0 || length >= shape[axis]) continue;
    view.axis = static_cast<int64_t>(axis);
    for (view.begin = 0; view.begin + length <= shape[axis]; ++view.begin) {
      view.end = view.begin + length;
      if (auto found = find_order(base, view, x)) return found;
    }
  }
  return std::nullopt;
}

}  // namespace

Shape shape_once(const Tensor& x) {
  if (x.narrow()) return shape_once(*x.narrow());
  Shape once = x.shape();
  const std::vector<int64_t> strides = strides_of(once);
  const size_t element = size_of(x.dtype());
  const auto* data = x.data<char>();
  for (size_t axis = 0; axis < once.size(); ++axis) {
    const auto step = static_cast<size_t>(strides[axis]) * element;
    Shape others = x.shape();
    const int64_t size = others[axis];
    others[axis] = 1;
    const bool repeats = size > 1 && for_each_offset(others, strides, [&](int64_t, int64_t offset) {
                           const char* const first = data + static_cast<size_t>(offset) * element;
                           for (int64_t i = 1; i < size; ++i) {
                             if (std::memcmp(first, first + static_cast<size_t>(i) * step, element) != 0) return false;
                           }
                           return true;
                         });
    if (repeats) once[axis] = 1;
  }
  return once;
}

Tensor taken_once(const Tensor& x, const Shape& once) {
  if (x.narrow()) return Tensor::widened(taken_once(*x.narrow(), once));
  Tensor y(x.dtype(), once);
  const size_t element = size_of(x.dtype());
  auto* to = y.data<char>();
  for_each_offset(once, strides_of(x.shape()), [&](int64_t n, int64_t offset) {
    std::memcpy(to + static_cast<size_t>(n) * element, x.data<char>() + static_cast<size_t>(offset) * element, element);
    return true;
  });
  return y;
}

std::optional<WeightView> find_view(const Tensor& base, const Tensor& x) {
  if (base.narrow() && x.narrow()) return find_view(*base.narrow(), *x.narrow());
  if (base.dtype() != x.dtype() || x.size() == 0 || base.size() == 0 || base.shape().empty()) return std::nullopt;
  std::optional<WeightView> view = find_part(base, x);
  if (!view) {
    const Shape once = shape_once(x);
    if (once != x.shape()) view = find_part(base, taken_once(x, once));
    if (view) view->repeats = true;
  }
  release_pages(base);
  release_pages(x);
  return view;
}

Tensor viewed(const Tensor& base, const WeightView& view, const Shape& shape) {
  const ViewedElements elements = elements_of(base.shape(), view);
  const size_t element = size_of(base.dtype());
  const auto copy_all = [&](const Shape& sizes, const std::vector<int64_t>& steps, const char* from, char* to) {
    for_each_offset(sizes, steps, [&](int64_t n, int64_t offset) {
      std::memcpy(to + static_cast<size_t>(n) * element, from + static_cast<size_t>(offset) * element, element);
      return true;
    });
  };
  Tensor once(base.dtype(), view.once);
  copy_all(elements.sizes, elements.steps, base.data<char>() + static_cast<size_t>(elements.first) * element,
           once.data<char>());
  if (!view.repeats) return once.reshaped(shape);
  std::vector<int64_t> steps = strides_of(view.once);
  for (size_t i = 0; i < steps.size(); ++i) steps[i] = view.once[i] == 1 ? 0 : steps[i];
  Tensor repeated(base.dtype(), shape);
  copy_all(shape, steps, std::as_const(once).data<char>(), repeated.data<char>());
  return repeated;
}

void put_view(const Tensor& part, const WeightView& view, Tensor* base) {
  const ViewedElements elements = elements_of(base->shape(), view);
  const size_t element = size_of(part.dtype());
  auto* to = base->data<char>() + static_cast<size_t>(elements.first) * element;
  for_each_offset(elements.sizes, elements.steps, [&](int64_t n, int64_t offset) {
    std::memcpy(to + static_cast<size_t>(offset) * element, part.data<char>() + static_cast<size_t>(n) * element,
                element);
    return true;
  });
}

std::string describe(const WeightView& view) {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (view.axis >= 0) add(concat("elements ", view.begin, " to ", view.end - 1, " of axis ", view.axis));
  if (!view.perm.empty()) add("transposed");
  if (view.repeats) add("repeated");
  return text.empty() ? "in another shape" : text;
}

void read_as_view(Graph* graph, Value* x, Value* base, const WeightView& view) {
  const std::string name = x->name();
  const TensorType type = x->type();
  if (view.axis < 0 && view.perm.empty() && type.shape() == base->type().shape()) {
    graph->replace(x, base);
    graph->remove_initializer(x);
    return;
  }
  graph->rename(x, graph->unique_name(name + "/folded"));
  Builder b(graph, graph->first());
  b.set_name(name);
  Var y = b.var(base);
  if (view.axis >= 0) y = slice(y, view.begin, view.end, view.axis);
  if (!view.perm.empty()) y = transpose(y, view.perm);
  if (y.type().shape() != view.once) y = reshape(y, b.ints(view.once));
  if (view.repeats) y = expand(y, b.ints(type.shape()));
  if (y.value()->name() != name) {
    if (Value* inner = graph->find(name)) graph->rename(inner, graph->unique_name(name + "/part"));
    graph->rename(y.value(), name);
  }
  graph->replace(x, y.value());
  graph->remove_initializer(x);
}

}  // namespace onnx_train
