// The values of the names in one alternative of a contract, for one node; filled during the check. The check owns it
// and uses it from one thread. Throws Error when an attribute has another type.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/operators/contract_terms.h"

namespace onnx_train {

class ContractNames {
 public:
  ContractNames(const ShapeContract::Alternative& wanted, const Node& node)
      : wanted_(wanted), node_(node), sizes_(wanted.sizes.size()), lists_(wanted.lists.size()) {}

  // Empty until known.
  std::optional<int64_t>& size(int64_t name) { return sizes_[static_cast<size_t>(name)]; }
  std::optional<Dims>& list(int name) { return lists_[static_cast<size_t>(name)]; }

  // Nothing if an operand is unknown; sets `broken` if a division has a remainder or a number overflows.
  std::optional<int64_t> value_of(const Expression& expression, bool* broken) const;
  // As far as its sides are known.
  bool holds(const Condition& condition) const;
  // Appends "H = 4, hidden_size = 5", except names that the text already contains.
  void describe(const Expression& expression, std::string* text) const;
  void describe_list(int list, std::string* text) const;

 private:
  std::optional<int64_t> attribute(const Expression::Step& step) const;

  const ShapeContract::Alternative& wanted_;
  const Node& node_;
  std::vector<std::optional<int64_t>> sizes_;
  std::vector<std::optional<Dims>> lists_;
};

// "[2,3]"
std::string sizes_text(const Dims& dims);
// "0 <= @axis:0 < #S" in the form used in messages: "0 <= axis < #S".
std::string readable(const std::string& text);

}  // namespace onnx_train
