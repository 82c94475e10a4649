// Formulas to look for in a graph, written as mathematics:
//
//     const Pattern x = any("x");
//     const Pattern gelu = 0.5 * x * (1.0 + op("Erf", {x / std::sqrt(2.0)}));
//
// finds every spelling of the same formula: operands of sums and products in any order and grouping; a quotient or a
// Reciprocal as a power of -1, Sqrt as one of ½, Pow with a constant as that power; constants wherever they stand in a
// product, multiplied into one, and compared to the precision of the element type. Identity and casts to the type at
// hand are looked through.
//
// A Pattern is a value, immutable and cheap to copy.
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
  Pattern(double number);  // NOLINT: numbers stand in formulas as they are
  explicit Pattern(std::shared_ptr<const Formula> formula) : formula_(std::move(formula)) {}
  const Formula& operator*() const { return *formula_; }
  const Formula* operator->() const { return formula_.get(); }

 private:
  std::shared_ptr<const Formula> formula_;
};

Pattern any(const std::string& name);     // any value; the same one wherever the name stands in a formula
Pattern number(const std::string& name);  // any constant of one element, as a term of a sum or a factor of a product
Pattern op(const std::string& op, const std::vector<Pattern>& inputs);
Pattern operator+(const Pattern& a, const Pattern& b);
Pattern operator-(const Pattern& a, const Pattern& b);
Pattern operator*(const Pattern& a, const Pattern& b);
Pattern operator/(const Pattern& a, const Pattern& b);
Pattern operator-(const Pattern& a);
Pattern pow(const Pattern& a, double exponent);
Pattern sqrt(const Pattern& a);
// ReduceMean, ... that keeps its axes. They are constant, the same throughout a formula, and Match::axis is the first:
// the last axes of x (mean), or one (reduce).
Pattern mean(const Pattern& x);
Pattern reduce(const std::string& op, const Pattern& x);

// What was found.
struct Match {
  std::map<std::string, Value*> values;   // any
  std::map<std::string, double> numbers;  // number
  std::vector<int64_t> axes;              // of mean and reduce, from 0
  // What computes the formula from `values`, the last node included; without nodes that only hand on (hands_on), or
  // compute constants.
  std::unordered_set<const Node*> nodes;
  int64_t axis() const { return axes.front(); }
};

// The operators without which the formula cannot be there.
std::vector<std::string> operators_of(const Pattern& pattern);

// Constants that are weights to train are no constants.
using ValueSet = std::unordered_set<const Value*>;

// An Identity, or a cast to the type at hand.
bool hands_on(const Node& node);

// Whether `value` is computed by the formula. `match` is meaningless when it is not.
bool find_match(const Pattern& pattern, Value* value, const ValueSet& weights, Match* match);

}  // namespace onnx_train
