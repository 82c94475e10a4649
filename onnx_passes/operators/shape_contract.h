// The shape contract of an operator: its inputs and outputs, and the relations between their sizes. A plain value,
// built once from its text; any thread may check nodes with it.
//
//   "X[T, B, I] W[D, 4 * H, I] R[D, 4 * H, H] B?[D, 8 * H] -> Y?[T, D, B, H] where H = @hidden_size"
//
//   name[dims]       an input, or after -> an output, in the node's order; without brackets: of any shape
//   name?            optional
//   name!            must be absent
//   name*            any number of them, including none; only at the end of its list
//   name/other?      one place with two names: attributes say which of them it is
//   name:type        its element type: int32, int64, index (one of the two), bool, uint64, float (any), any;
//                    without one, the operator's own (operators.h). After the mark: lengths?:int32[B]
//   @name[dims]      an attribute that is a list (one size: its length) or a tensor; @name?[..] is optional
//   []               one element, of any rank
//   T, H             a named size: the same wherever the name occurs. A condition H = @hidden_size defines it, else the
//                    first term in which it is known
//   S...             zero or more named sizes; _... of any size; at most one such list per shape
//   ~S...            sizes that broadcast to S; with two or more such terms, S is what they broadcast to together
//   _                any size
//   3, 4 * H, C / @group:1, #S - 1
//                    integers, names, integer attributes (with a default after the colon), the number of sizes in S;
//                    + - * /, where / must leave no remainder
//   where a < b <= c, d = e
//                    conditions on such expressions. Conditions on attributes alone select between alternatives
//   first | second   alternatives
//
// Unknown quantities (a symbolic size, an absent attribute without a default) are ignored.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_passes/operators/operators.h"

namespace onnx_train {

class ShapeContract {
 public:
  // Throws Error with the position if the text is not a valid contract.
  explicit ShapeContract(std::string_view text);
  // Throws Error like check_shapes. Reads from the row only which element types are allowed.
  void check(const Node& node, const Operator& row) const;
  // The place of the input or output of this name; -1 if there is none. All alternatives that have it agree.
  int input(std::string_view name) const;
  int output(std::string_view name) const;
  // Of each input, and of each output: the letter of each axis before a list of sizes, '.' where the axis has no size
  // named by one letter alone. C / @group:1 is C in a node of one group. The first alternative's.
  std::vector<std::string> axes_of_inputs(const Node& node) const;
  std::vector<std::string> axes_of_outputs(const Node& node) const;

  struct Alternative;

 private:
  std::vector<std::shared_ptr<const Alternative>> alternatives_;
};

// The contract of an operator's row; null if there is no row.
const ShapeContract* find_contract(std::string_view domain, std::string_view op);

}  // namespace onnx_train
