// How the ranks of a tensor-parallel group have a tensor (tensor_parallel.h): each all of it, each a part along an
// axis, or each one term of a sum. Plain values and pure functions; any thread. They throw nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "onnx_passes/ir/tensor.h"
#include "onnx_passes/ir/types.h"

namespace onnx_train {

// A cut along an axis, for any number of parts. The axis consists of runs of `period` elements, and each rank has the
// same share of each run: rank r of n has the elements whose number in their run is in [r, r + 1) · period / n. One run
// for rows or columns of a matrix; three for the columns of queries, keys and values in one matrix; one for each text
// where texts and heads are one axis.
struct Cut {
  int64_t axis = 0, period = 0;
  bool operator==(const Cut&) const = default;
};

// Cuts of states, by name. All ranks have the other states whole.
using StateCuts = std::map<std::string, Cut>;

struct Layout {
  enum Kind { kWhole, kPart, kTerm };
  Kind kind = kWhole;
  Cut cut = {};  // of kPart

  static Layout part(int64_t axis, int64_t period) { return {kPart, {axis, period}}; }
  static Layout term() { return {kTerm, {}}; }
  bool is_whole() const { return kind == kWhole; }
  bool is_part() const { return kind == kPart; }
  bool is_term() const { return kind == kTerm; }
  bool operator==(const Layout&) const = default;
};

// Whether `parts` ranks can have equal shares of an axis of this size.
bool divides(const Cut& cut, int64_t size, int64_t parts);

// The shape of what one rank has.
Shape shape_of_part(Shape whole, const Cut& cut, int64_t parts);
// The same of a type, whose size along the axis may be unknown.
TensorType type_of_part(TensorType whole, const Cut& cut, int64_t parts);

// Rank `part`'s elements of `whole`.
Tensor take_part(const Tensor& whole, const Cut& cut, int64_t parts, int64_t part);
// Writes these elements to their places in a tensor of shape `whole` at `to`.
void put_part(const Tensor& own, const Shape& whole, const Cut& cut, int64_t parts, int64_t part, void* to);

}  // namespace onnx_train
