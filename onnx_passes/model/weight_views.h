// How one tensor's numbers are another's, its base: what is left to be found where an exporter has folded a view of a
// weight (a slice, a transpose, a squeeze, an expansion) into an initializer of its own. Pure functions and a rewrite
// of a graph that one caller owns; any thread. They throw Error if contents cannot be read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// The base's elements from `begin` to before `end` along `axis`, with the axes in the order `perm`, in another shape,
// and repeated.
struct WeightView {
  int64_t axis = -1, begin = 0, end = 0;  // -1: all elements
  std::vector<int64_t> perm;              // empty: the base's order
  Shape once;                             // the view's shape before it is repeated: sizes of 1 for repeated axes
  bool repeats = false;
};

// The view of `base` that `x` is, bit for bit; none if there is none, or several may be: all elements are equal, or x
// has a single element of many. Reads both tensors.
std::optional<WeightView> find_view(const Tensor& base, const Tensor& x);

// x without its repetitions: axes along which all elements are equal have the size 1.
Shape shape_once(const Tensor& x);
// The elements of `x` where `once` has sizes of 1.
Tensor taken_once(const Tensor& x, const Shape& once);

// The numbers that a view takes from a base, in the view's whole shape.
Tensor viewed(const Tensor& base, const WeightView& view, const Shape& shape);
// The opposite: puts the elements of `part` where a view that does not repeat takes them from the base. One type.
void put_view(const Tensor& part, const WeightView& view, Tensor* base);

// "transposed", "elements 0 to 3 of axis 0", "repeated".
std::string describe(const WeightView& view);

// Computes the initializer `x` from `base` instead: a few nodes take over its name and its readers.
void read_as_view(Graph* graph, Value* x, Value* base, const WeightView& view);

}  // namespace onnx_train
