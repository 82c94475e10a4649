// The shape contract of an operator: which inputs and outputs it has, and how their sizes hang together. A plain value
// made from its text once; any thread may check nodes with it.
//
//   "X[T, B, I] W[D, 4 * H, I] R[D, 4 * H, H] B?[D, 8 * H] -> Y?[T, D, B, H] where H = @hidden_size"
//
//   name[dims]       an input, or after -> an output, in the node's order; without brackets of any shape
//   name?            may be left out
//   name!            must be left out
//   name*            any number of them, none included; the last of its list
//   name:type        its element type: int32, int64, index (one of the two), bool, uint64, float (any), any, or none of
//                    these, for the operator's own (operators.h). After the mark: lengths?:int32[B]
//   @name[dims]      an attribute that is a list (one size: its length) or a tensor; @name?[..] may be left out
//   []               one element, of whatever rank
//   T, H             a size that has a name: the same wherever the name stands. A condition H = @hidden_size sets it,
//   or
//                    else the first place where it is known
//   S...             none, one or more sizes with a name; _... of any size; one such per shape
//   ~S...            sizes that broadcast to S; where two terms or more say so, S is what they broadcast to together
//   _                any size
//   3, 4 * H, C / @group:1, #S - 1
//                    whole numbers, names, integer attributes (with their default after a colon), the number of sizes
//                    in S; + - * /, where / must leave no rest
//   where a < b <= c, d = e
//                    conditions of such expressions. Those of attributes alone choose between alternatives
//   first | second   alternatives
//
// What is not known (a symbolic size, an attribute that is not there and has no default) is passed over.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "onnx_passes/operators/operators.h"

namespace onnx_train {

class ShapeContract {
 public:
  // Throws Error when the text is not one of a contract, and says where.
  explicit ShapeContract(std::string_view text);
  // Throws Error as check_shapes does.
  void check(const Node& node, ElementTypes types) const;

  struct Alternative;

 private:
  std::vector<std::shared_ptr<const Alternative>> alternatives_;
};

}  // namespace onnx_train
