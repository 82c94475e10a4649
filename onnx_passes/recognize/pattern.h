// Formulas to look for in a graph, written as mathematics:
//
//     const Pattern x = any("x");
//     const Pattern gelu = 0.5 * x * (1.0 + op("Erf", {x / std::sqrt(2.0)}));
//
// matches every spelling of the same formula: operands of sums and products in any order and grouping; a quotient or a
// Reciprocal as a power of -1, Sqrt as a power of ½, Pow with a constant exponent as that power; constants anywhere in
// a product, multiplied into one, compared with the precision of the element type. Identity and casts to the element
// type are skipped.
//
// A Pattern is an immutable value that is cheap to copy; any thread may match.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

class Pattern {
 public:
  struct Formula;
  Pattern(double number);  // NOLINT: formulas contain plain numbers
  explicit Pattern(std::shared_ptr<const Formula> formula) : formula_(std::move(formula)) {}
  const Formula& operator*() const { return *formula_; }
  const Formula* operator->() const { return formula_.get(); }

 private:
  std::shared_ptr<const Formula> formula_;
};

Pattern any(const std::string& name);     // any value; equal names in a formula match the same value
Pattern number(const std::string& name);  // any constant with one element, as a term of a sum or a factor of a product
Pattern op(const std::string& op, const std::vector<Pattern>& inputs);
Pattern operator+(const Pattern& a, const Pattern& b);
Pattern operator-(const Pattern& a, const Pattern& b);
Pattern operator*(const Pattern& a, const Pattern& b);
Pattern operator/(const Pattern& a, const Pattern& b);
Pattern operator-(const Pattern& a);
Pattern pow(const Pattern& a, double exponent);
Pattern sqrt(const Pattern& a);
// A reduction such as ReduceMean that keeps its axes. The axes are constant and the same throughout a formula, and
// Match::axis is the first of them: the last axes of x (mean), or one axis (reduce).
Pattern mean(const Pattern& x);
Pattern reduce(const std::string& op, const Pattern& x);

// The result of a match.
struct Match {
  std::map<std::string, Value*> values;   // any
  std::map<std::string, double> numbers;  // number
  std::vector<int64_t> axes;              // of mean and reduce, from 0
  // The nodes that compute the formula from `values`, the last one included, except nodes that only pass values on
  // (hands_on) or compute constants.
  std::unordered_set<const Node*> nodes;
  int64_t axis() const { return axes.front(); }
};

// The operators without which the formula cannot match.
std::vector<std::string> operators_of(const Pattern& pattern);

// Trained weights do not count as constants.
using ValueSet = std::unordered_set<const Value*>;

// An Identity, or a cast to the element type that the value already has.
bool hands_on(const Node& node);

// Whether the formula computes `value`. If not, `match` is unspecified.
bool find_match(const Pattern& pattern, Value* value, const ValueSet& weights, Match* match);

}  // namespace onnx_train
