// Convolutions, pools and group normalization on channels-last images, [batch, sizes.., channels], selected by the
// attribute channels_last = 1. Their bodies transpose, call the operator of the same name, and transpose back. Weights
// and their gradients keep ONNX's order. The pass channels_last emits these functions. The permutations depend on the
// rank, so there is one overload per rank.
#include <algorithm>
#include <string>

#include "kernels/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// Returns the permutation from batch, channels, sizes.. to batch, sizes.., channels, such as "0, 2, 3, 1".
std::string to_channels_last(int64_t rank) {
  std::string permutation = "0";
  for (int64_t axis = 2; axis < rank; ++axis) permutation += concat(", ", axis);
  return permutation + ", 1";
}

// Returns the inverse permutation, such as "0, 3, 1, 2".
std::string to_channels_first(int64_t rank) {
  std::string permutation = concat("0, ", rank - 1);
  for (int64_t axis = 1; axis < rank - 1; ++axis) permutation += concat(", ", axis);
  return permutation;
}

// Returns a row whose text is `text` with LAST and FIRST replaced by the permutations of the first input's rank.
// `inner` is the function in our domain that the body calls, if any. Row `first`, if given, handles channels-first
// images.
FunctionRow channels_last(const char* op, const char* text, const char* inner = "", const FunctionRow& first = {}) {
  return {op, [text = std::string(text), inner, first](const FunctionCall& call) {
            if (first.text && !is_set(call.attrs, "channels_last")) return first.text(call);
            const int64_t rank = call.inputs.at(0).rank();
            std::string body = text;
            const auto put = [&body](const std::string& word, const std::string& permutation) {
              for (size_t at; (at = body.find(word)) != std::string::npos;) body.replace(at, word.size(), permutation);
            };
            put("LAST", to_channels_last(rank));
            put("FIRST", to_channels_first(rank));
            return FunctionText{body, concat("channels_last_rank", rank), inner};
          }};
}

constexpr const char* kConv = R"(
Conv <group: int = 1, strides: ints, dilations: ints, pads: ints> (x, w, bias) => (y)
{
  y = Conv <group: int = @group, strides: ints = @strides, dilations: ints = @dilations, pads: ints = @pads>
      (x, w, bias)
})";

constexpr const char* kConvLast = R"(
Conv <channels_last: int, group: int = 1, strides: ints, dilations: ints, pads: ints> (x, w, bias) => (y)
{
  x_first = Transpose <perm = [FIRST]> (x)
  y_first = Conv <group: int = @group, strides: ints = @strides, dilations: ints = @dilations, pads: ints = @pads>
            (x_first, w, bias)
  y = Transpose <perm = [LAST]> (y_first)
})";

constexpr const char* kConvGradInput = R"(
ConvGradInput <channels_last: int, group: int = 1, strides: ints, dilations: ints, pads: ints> (dy, w, x_shape) => (dx)
{
  dy_first = Transpose <perm = [FIRST]> (dy)
  order = Constant <value_ints = [FIRST]> ()
  x_shape_first = Gather (x_shape, order)
  dx_first = onnx_train.ConvGradInput <group: int = @group, strides: ints = @strides, dilations: ints = @dilations,
                                       pads: ints = @pads> (dy_first, w, x_shape_first)
  dx = Transpose <perm = [LAST]> (dx_first)
})";

constexpr const char* kConvGradWeight = R"(
ConvGradWeight <channels_last: int, group: int = 1, strides: ints, dilations: ints, pads: ints> (x, dy, w_shape) => (dw, db)
{
  x_first = Transpose <perm = [FIRST]> (x)
  dy_first = Transpose <perm = [FIRST]> (dy)
  dw, db = onnx_train.ConvGradWeight <group: int = @group, strides: ints = @strides, dilations: ints = @dilations,
                                      pads: ints = @pads> (x_first, dy_first, w_shape)
})";

constexpr const char* kMaxPool = R"(
MaxPool <channels_last: int, kernel_shape: ints, strides: ints, dilations: ints, pads: ints, ceil_mode: int = 0> (x) => (y)
{
  x_first = Transpose <perm = [FIRST]> (x)
  y_first = MaxPool <kernel_shape: ints = @kernel_shape, strides: ints = @strides, dilations: ints = @dilations,
                     pads: ints = @pads, ceil_mode: int = @ceil_mode> (x_first)
  y = Transpose <perm = [LAST]> (y_first)
})";

constexpr const char* kMaxPoolGrad = R"(
MaxPoolGrad <channels_last: int, kernel_shape: ints, strides: ints, dilations: ints, pads: ints, ceil_mode: int = 0>
                        (dy, x) => (dx)
{
  dy_first = Transpose <perm = [FIRST]> (dy)
  x_first = Transpose <perm = [FIRST]> (x)
  dx_first = onnx_train.MaxPoolGrad <kernel_shape: ints = @kernel_shape, strides: ints = @strides,
                                     dilations: ints = @dilations, pads: ints = @pads, ceil_mode: int = @ceil_mode>
             (dy_first, x_first)
  dx = Transpose <perm = [LAST]> (dx_first)
})";

constexpr const char* kAveragePool = R"(
AveragePool <channels_last: int, kernel_shape: ints, strides: ints, dilations: ints, pads: ints, ceil_mode: int = 0,
                         count_include_pad: int = 0> (x) => (y)
{
  x_first = Transpose <perm = [FIRST]> (x)
  y_first = AveragePool <kernel_shape: ints = @kernel_shape, strides: ints = @strides, dilations: ints = @dilations,
                         pads: ints = @pads, ceil_mode: int = @ceil_mode, count_include_pad: int = @count_include_pad>
            (x_first)
  y = Transpose <perm = [LAST]> (y_first)
})";

constexpr const char* kAveragePoolGrad = R"(
AveragePoolGrad <channels_last: int, kernel_shape: ints, strides: ints, dilations: ints, pads: ints,
                             count_include_pad: int = 0> (dy, x_shape) => (dx)
{
  dy_first = Transpose <perm = [FIRST]> (dy)
  order = Constant <value_ints = [FIRST]> ()
  x_shape_first = Gather (x_shape, order)
  dx_first = onnx_train.AveragePoolGrad <kernel_shape: ints = @kernel_shape, strides: ints = @strides,
                                         dilations: ints = @dilations, pads: ints = @pads,
                                         count_include_pad: int = @count_include_pad> (dy_first, x_shape_first)
  dx = Transpose <perm = [LAST]> (dx_first)
})";

constexpr const char* kGroupNormalization = R"(
GroupNormalization <channels_last: int, num_groups, epsilon: float = 1e-5> (x, scale, bias) => (y)
{
  x_first = Transpose <perm = [FIRST]> (x)
  y_first = GroupNormalization <num_groups: int = @num_groups, epsilon: float = @epsilon> (x_first, scale, bias)
  y = Transpose <perm = [LAST]> (y_first)
})";

constexpr const char* kGroupNormalizationGrad = R"(
GroupNormalizationGrad <channels_last: int, num_groups, epsilon: float = 1e-5> (x, scale, dy) => (dx, dscale, dbias)
{
  x_first = Transpose <perm = [FIRST]> (x)
  dy_first = Transpose <perm = [FIRST]> (dy)
  dx_first, dscale, dbias = onnx_train.GroupNormalizationGrad <num_groups: int = @num_groups, epsilon: float = @epsilon>
                            (x_first, scale, dy_first)
  dx = Transpose <perm = [LAST]> (dx_first)
})";

}  // namespace

std::vector<FunctionRow> convolution_layouts() {
  return {
      channels_last("Conv", kConvLast, "", function("Conv", kConv)),
      channels_last("ConvGradInput", kConvGradInput, "ConvGradInput", find_function("ConvGradInput")),
      channels_last("ConvGradWeight", kConvGradWeight, "ConvGradWeight", find_function("ConvGradWeight")),
  };
}

std::vector<FunctionRow> channels_last_functions() {
  const auto gradient = [](const char* op, const char* text) { return channels_last(op, text, op, find_function(op)); };
  return {
      channels_last("MaxPool", kMaxPool),
      gradient("MaxPoolGrad", kMaxPoolGrad),
      channels_last("AveragePool", kAveragePool),
      gradient("AveragePoolGrad", kAveragePoolGrad),
      channels_last("GroupNormalization", kGroupNormalization),
      gradient("GroupNormalizationGrad", kGroupNormalizationGrad),
  };
}

}  // namespace onnx_train
