// Operators that lay elements out anew, and those that make tensors from nothing.
#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/multiply_adds.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

using enum ElementTypes;

// `perm` names each axis once.
void check_permutation(const Node& node) {
  Shape permutation = node.attr("perm", Shape{});
  std::sort(permutation.begin(), permutation.end());
  for (size_t i = 0; i < permutation.size(); ++i) {
    if (permutation[i] != static_cast<int64_t>(i))
      fail(node.label(), ": its perm is ", to_string(node.attr("perm", Shape{})), "; it must name each of ",
           permutation.size(), " axes once");
  }
}

// All inputs agree but along the axis.
void check_pieces(const Node& node) {
  const Value* first = node.input(0);
  if (!first->has_rank()) return;
  const int64_t rank = first->rank();
  const auto axis = static_cast<size_t>((node.attr("axis", int64_t{0}) + rank) % std::max<int64_t>(rank, 1));
  for (const Value* x : node.inputs()) {
    if (!x->has_rank()) continue;
    bool fits = x->rank() == rank;
    for (size_t k = 0; fits && k < static_cast<size_t>(rank); ++k) {
      const Dim &a = (*first->type().dims)[k], &b = (*x->type().dims)[k];
      fits = k == axis || !a.known() || !b.known() || a.value() == b.value();
    }
    if (!fits)
      fail(node.label(), ": its input '", x->name(), "' is ", to_string(x->type()), "; it must agree with '",
           first->name(), "', ", to_string(first->type()), ", but along axis ", axis);
  }
}

}  // namespace

std::vector<Operator> movement_operators() {
  return {
      Operator{"Identity", "x -> y"}
          .of_kind(OperatorKind::kView)
          .selecting({0, 1})
          .in_precision(PrecisionRole::kMovement),
      Operator{"Reshape", "x shape:int64[#Y] -> y[Y...]"}
          .sized_by_inputs({1})
          .of_kind(OperatorKind::kView)
          .selecting({0, 1})
          .in_precision(PrecisionRole::kMovement),
      Operator{"Flatten", "x[S...] -> y[_, _] where -#S <= @axis:1 <= #S"}
          .of_kind(OperatorKind::kView)
          .selecting({0, 1})
          .in_precision(PrecisionRole::kMovement),
      Operator{"Squeeze", "x axes?:int64 -> y"}
          .sized_by_inputs({1})
          .of_kind(OperatorKind::kView)
          .selecting({0, 1})
          .in_precision(PrecisionRole::kMovement),
      Operator{"Unsqueeze", "x axes:int64 -> y"}
          .sized_by_inputs({1})
          .of_kind(OperatorKind::kView)
          .selecting({0, 1})
          .in_precision(PrecisionRole::kMovement),
      Operator{"Transpose", "x[S...] @perm?[#S] -> y[Y...] where #Y = #S", "", kOfSchema, check_permutation}
          .of_kind(OperatorKind::kRearrangement)
          .selecting({0, 1})
          .in_precision(PrecisionRole::kMovement),
      Operator{
          "DepthToSpace",
          "x[N, C, H, W] -> y[N, C / (@blocksize * @blocksize), H * @blocksize, W * @blocksize] where 1 <= @blocksize"}
          .of_kind(OperatorKind::kRearrangement),
      Operator{
          "SpaceToDepth",
          "x[N, C, H, W] -> y[N, C * @blocksize * @blocksize, H / @blocksize, W / @blocksize] where 1 <= @blocksize"}
          .of_kind(OperatorKind::kRearrangement),
      Operator{"Expand", "x[~S...] shape:int64[_] -> y[S...]"}
          .sized_by_inputs({1})
          .of_kind(OperatorKind::kRearrangement)
          .selecting({0, 1})
          .in_precision(PrecisionRole::kMovement)
          .on_images(ImageRole::kExpand),
      Operator{"Tile", "x[S...] repeats:int64[#S] -> y[Y...] where #Y = #S"}.sized_by_inputs({1}).of_kind(
          OperatorKind::kRearrangement),
      Operator{"Concat", "x[S...] more* -> y[Y...] where #Y = #S, -#S <= @axis < #S", "", kOfSchema, check_pieces}
          .of_kind(OperatorKind::kRearrangement)
          .selecting({0, InputRange::kAll})
          .on_images(ImageRole::kAxis),
      Operator{"Split", "x[S...] split?:int64[_] -> y* where -#S <= @axis:0 < #S, 1 <= @num_outputs:1"}
          .sized_by_inputs({1})
          .of_kind(OperatorKind::kExtraction)
          .selecting({0, 1})
          .in_precision(PrecisionRole::kMovement)
          .on_images(ImageRole::kAxis),
      Operator{"Slice",
               "x[S...] starts:index[A] ends:index[A] axes?:index[A] steps?:index[A] -> y[Y...] where #Y = #S, A <= #S"}
          .sized_by_inputs({1, 2, 3, 4})
          .of_kind(OperatorKind::kExtraction)
          .selecting({0, 1})
          .in_precision(PrecisionRole::kMovement)
          .moving(Traffic::kWritten)
          .on_images(ImageRole::kListedAxes),
      {"SliceGrad",
       "dy[Y...] shape:int64[#S] starts:index[A] ends:index[A] axes?:index[A] steps?:index[A] -> dx[S...] "
       "where #Y = #S, A <= #S",
       kDomain, ElementTypes::kOneFloat},
      Operator{"Pad",
               "x[S...] pads:int64[2 * #S] value?[] -> y[Y...] where #Y = #S | "
               "x[S...] pads:int64[2 * A] value?[] axes:index[A] -> y[Y...] where #Y = #S, A <= #S"}
          .sized_by_inputs({1, 3})
          .with_settings({1, InputRange::kAll})
          .on_images(ImageRole::kListedAxes),
      Operator{
          "Resize",
          "x[S...] roi?[R] scales?[A] sizes?:int64[B] @axes?[C] -> y[Y...] where #Y = #S, A <= #S, B <= #S, C <= #S"}
          .sized_by_inputs({2, 3})
          .with_settings({1, InputRange::kAll})
          .on_images(ImageRole::kResize),
      Operator{"ResizeGrad",
               "dy[Y...] shape:int64[#S] roi?:any[_] scales?:any[_] sizes?:int64[_] @axes[C] -> dx[S...] "
               "where #Y = #S, C <= #S",
               kDomain}
          .counting(no_multiply_adds)
          .on_images(ImageRole::kResize),
      {"Trilu", "x[S..., M, N] k?:int64[] -> y[S..., M, N]"},
      {"ReverseSequence", "x[S...] lengths:int64[_] -> y[S...] where 2 <= #S"},
      {"Constant", "-> y"},
      Operator{"ConstantOfShape", "shape:int64[#Y] @value?[] -> y[Y...]"}.sized_by_inputs({0}),
      {"EyeLike", "x[M, N] -> y[M, N]"},
      Operator{"Range", "start[] limit[] delta[] -> y[_]"}.sized_by_inputs({0, 1, 2}).with_settings(
          {0, InputRange::kAll}),
      Operator{"Shape", "x -> y:int64[_]"}.moving(Traffic::kNone),
      Operator{"Size", "x -> y:int64[]"}.moving(Traffic::kNone),
  };
}

}  // namespace onnx_train
