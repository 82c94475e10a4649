// Convolutions, pools and group normalization whose images lie channels last, [batch, sizes.., channels]: their bodies
// transpose, do what the operator of the same name does, and transpose back. Weights and their gradients keep ONNX's
// order. Lowering emits them (kernels/cpu/lowering/channels_last.cc). The permutations depend on the rank, hence an
// overload for each.
#include <string>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// "0, 2, 3, 1": from batch, channels, sizes.. to batch, sizes.., channels.
std::string to_channels_last(int64_t rank) {
  std::string permutation = "0";
  for (int64_t axis = 2; axis < rank; ++axis) permutation += concat(", ", axis);
  return permutation + ", 1";
}

// "0, 3, 1, 2": the way back.
std::string to_channels_first(int64_t rank) {
  std::string permutation = concat("0, ", rank - 1);
  for (int64_t axis = 1; axis < rank - 1; ++axis) permutation += concat(", ", axis);
  return permutation;
}

// The text with the permutations of the first input's rank in place of LAST and FIRST. `inner` is the function of ours
// that the body calls, if it calls one.
FunctionRow channels_last(const char* op, const char* text, const char* inner = "") {
  return {op, [text = std::string(text), inner](const FunctionCall& call) {
            const int64_t rank = call.inputs.at(0).rank();
            std::string body = text;
            const auto put = [&body](const std::string& word, const std::string& permutation) {
              for (size_t at; (at = body.find(word)) != std::string::npos;) body.replace(at, word.size(), permutation);
            };
            put("LAST", to_channels_last(rank));
            put("FIRST", to_channels_first(rank));
            return FunctionText{body, concat("rank", rank), inner};
          }};
}

constexpr const char* kConv = R"(
ChannelsLastConv <group: int = 1, strides: ints, dilations: ints, pads: ints> (x, w, bias) => (y)
{
  x_first = Transpose <perm = [FIRST]> (x)
  y_first = Conv <group: int = @group, strides: ints = @strides, dilations: ints = @dilations, pads: ints = @pads>
            (x_first, w, bias)
  y = Transpose <perm = [LAST]> (y_first)
})";

constexpr const char* kConvGradInput = R"(
ChannelsLastConvGradInput <group: int = 1, strides: ints, dilations: ints, pads: ints> (dy, w, x_shape) => (dx)
{
  dy_first = Transpose <perm = [FIRST]> (dy)
  order = Constant <value_ints = [FIRST]> ()
  x_shape_first = Gather (x_shape, order)
  dx_first = onnx_train.ConvGradInput <group: int = @group, strides: ints = @strides, dilations: ints = @dilations,
                                       pads: ints = @pads> (dy_first, w, x_shape_first)
  dx = Transpose <perm = [LAST]> (dx_first)
})";

constexpr const char* kConvGradWeight = R"(
ChannelsLastConvGradWeight <group: int = 1, strides: ints, dilations: ints, pads: ints> (x, dy, w_shape) => (dw, db)
{
  x_first = Transpose <perm = [FIRST]> (x)
  dy_first = Transpose <perm = [FIRST]> (dy)
  dw, db = onnx_train.ConvGradWeight <group: int = @group, strides: ints = @strides, dilations: ints = @dilations,
                                      pads: ints = @pads> (x_first, dy_first, w_shape)
})";

constexpr const char* kMaxPool = R"(
ChannelsLastMaxPool <kernel_shape: ints, strides: ints, dilations: ints, pads: ints, ceil_mode: int = 0> (x) => (y)
{
  x_first = Transpose <perm = [FIRST]> (x)
  y_first = MaxPool <kernel_shape: ints = @kernel_shape, strides: ints = @strides, dilations: ints = @dilations,
                     pads: ints = @pads, ceil_mode: int = @ceil_mode> (x_first)
  y = Transpose <perm = [LAST]> (y_first)
})";

constexpr const char* kMaxPoolGrad = R"(
ChannelsLastMaxPoolGrad <kernel_shape: ints, strides: ints, dilations: ints, pads: ints, ceil_mode: int = 0>
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
ChannelsLastAveragePool <kernel_shape: ints, strides: ints, dilations: ints, pads: ints, ceil_mode: int = 0,
                         count_include_pad: int = 0> (x) => (y)
{
  x_first = Transpose <perm = [FIRST]> (x)
  y_first = AveragePool <kernel_shape: ints = @kernel_shape, strides: ints = @strides, dilations: ints = @dilations,
                         pads: ints = @pads, ceil_mode: int = @ceil_mode, count_include_pad: int = @count_include_pad>
            (x_first)
  y = Transpose <perm = [LAST]> (y_first)
})";

constexpr const char* kAveragePoolGrad = R"(
ChannelsLastAveragePoolGrad <kernel_shape: ints, strides: ints, dilations: ints, pads: ints,
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
ChannelsLastGroupNormalization <num_groups, epsilon: float = 1e-5> (x, scale, bias) => (y)
{
  x_first = Transpose <perm = [FIRST]> (x)
  y_first = GroupNormalization <num_groups: int = @num_groups, epsilon: float = @epsilon> (x_first, scale, bias)
  y = Transpose <perm = [LAST]> (y_first)
})";

constexpr const char* kGroupNormalizationGrad = R"(
ChannelsLastGroupNormalizationGrad <num_groups, epsilon: float = 1e-5> (x, scale, dy) => (dx, dscale, dbias)
{
  x_first = Transpose <perm = [FIRST]> (x)
  dy_first = Transpose <perm = [FIRST]> (dy)
  dx_first, dscale, dbias = onnx_train.GroupNormalizationGrad <num_groups: int = @num_groups, epsilon: float = @epsilon>
                            (x_first, scale, dy_first)
  dx = Transpose <perm = [LAST]> (dx_first)
})";

}  // namespace

std::vector<FunctionRow> channels_last_functions() {
  return {
      channels_last("ChannelsLastConv", kConv),
      channels_last("ChannelsLastConvGradInput", kConvGradInput, "ConvGradInput"),
      channels_last("ChannelsLastConvGradWeight", kConvGradWeight, "ConvGradWeight"),
      channels_last("ChannelsLastMaxPool", kMaxPool),
      channels_last("ChannelsLastMaxPoolGrad", kMaxPoolGrad, "MaxPoolGrad"),
      channels_last("ChannelsLastAveragePool", kAveragePool),
      channels_last("ChannelsLastAveragePoolGrad", kAveragePoolGrad, "AveragePoolGrad"),
      channels_last("ChannelsLastGroupNormalization", kGroupNormalization),
      channels_last("ChannelsLastGroupNormalizationGrad", kGroupNormalizationGrad, "GroupNormalizationGrad"),
  };
}

}  // namespace onnx_train
