// The parsed form of a shape contract (shape_contract.h has the grammar). Plain values, owned by their ShapeContract
// and immutable; any thread may read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/operators/shape_contract.h"

namespace onnx_train {

// An expression in postfix order.
struct Expression {
  enum Kind { kNumber, kSize, kCount, kAttribute, kAdd, kSubtract, kMultiply, kDivide, kNegate };
  struct Step {
    Kind kind;
    int64_t number = 0;     // the number, or the index of a name
    std::string name = {};  // name of the attribute
    std::optional<int64_t> otherwise = {};
  };
  std::vector<Step> steps;
  std::string text;

  bool is_name() const { return steps.size() == 1 && steps[0].kind == kSize; }
};

struct DimTerm {
  enum Kind { kAny, kExpression, kList };
  Kind kind = kAny;
  Expression expression = {};
  int list = -1;  // index of the list; -1 without a name
  bool broadcasts = false;
};

enum class TermType { kDefault, kAny, kFloat, kInt32, kInt64, kIndex, kBool, kUint64 };

struct ContractTerm {
  std::string name;
  bool optional = false, variadic = false, left_out = false, attribute = false;
  bool has_shape = false, one_element = false;
  TermType type = TermType::kDefault;
  std::vector<DimTerm> dims = {};
  std::string text = {};  // "W[D, 4 * H, I]"

  std::optional<size_t> list_at() const {
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i].kind == DimTerm::kList) return i;
    }
    return std::nullopt;
  }
};

struct Condition {
  enum Comparison { kEqual, kLess, kLessOrEqual };
  std::vector<Expression> sides;
  std::vector<Comparison> comparisons;  // between side i and side i + 1
  std::string text;

  bool of_attributes_alone() const;
};

struct ShapeContract::Alternative {
  std::vector<ContractTerm> inputs, outputs, attributes;
  std::vector<Condition> conditions;
  std::vector<std::string> sizes, lists;  // names of sizes and lists
  bool tells_outputs = false;
};

}  // namespace onnx_train
