// Normalization, softmax, and their gradients.
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

using enum ElementTypes;

constexpr const char* kAlongAxis = "x[S...] -> y[S...] where -#S <= @axis:-1 < #S";
constexpr const char* kAlongAxisGrad = "dy[S...] y[S...] -> dx[S...] where -#S <= @axis:-1 < #S";

constexpr const char* kLayer =
    "x[S...] scale[~S...] bias?[~S...] -> y[S...] mean?:float inverse_deviation?:float where -#S <= @axis:-1 < #S";
constexpr const char* kLayerGrad =
    "x[S...] scale[P...] dy[S...] residual?[S...] -> dx?[S...] dscale?[P...] dbias?[P...] where -#S <= @axis:-1 < #S";
constexpr const char* kRms = "x[S...] scale[~S...] -> y[S...] where -#S <= @axis:-1 < #S";
constexpr const char* kRmsGrad =
    "x[S...] scale[P...] dy[S...] residual?[S...] -> dx?[S...] dscale?[P...] where -#S <= @axis:-1 < #S";

constexpr const char* kBatch =
    "x[N, C, S...] scale[C] bias[C] mean[C] var[C] -> y[N, C, S...] next_mean?[C] next_var?[C]";
// In our domain: batch normalization, perhaps with an epilogue (kernels/functions/batch_normalization.cc).
constexpr const char* kOurBatch =
    "x[N, C, S...] scale[C] bias[C] mean[C] var[C] residual?[N, C, S...] -> y[N, C, S...]";
constexpr const char* kBatchTrain =
    "x[N, C, S...] scale[C] bias[C] residual?[N, C, S...] -> y?[N, C, S...] mean?[C] var?[C]";
constexpr const char* kBatchGrad =
    "x[N, C, S...] scale[C] mean[C] var[C] dy[N, C, S...] y?[N, C, S...] -> "
    "dx?[N, C, S...] dscale?[C] dbias?[C] dz?[N, C, S...]";
constexpr const char* kBatchFrozenGrad =
    "x[N, C, S...] scale[C] mean[C] var[C] dy[N, C, S...] -> dx?[N, C, S...] dscale?[C] dbias?[C]";

// In our domain the images may be channels first or last.
constexpr const char* kGroup =
    "x[N, C, S...] scale[C] bias[C] -> y[N, C, S...] where 1 <= @num_groups, 0 <= C / @num_groups";
constexpr const char* kOurGroup =
    "x[N, C, S...] scale[C] bias[C] -> y[N, C, S...] where @channels_last:0 = 0, 0 <= C / @num_groups | "
    "x[N, S..., C] scale[C] bias[C] -> y[N, S..., C] where @channels_last:0 = 1, 0 <= C / @num_groups:1";
constexpr const char* kGroupGrad =
    "x[N, C, S...] scale[C] dy[N, C, S...] -> dx?[N, C, S...] dscale?[C] dbias?[C] "
    "where @channels_last:0 = 0, 0 <= C / @num_groups | "
    "x[N, S..., C] scale[C] dy[N, S..., C] -> dx?[N, S..., C] dscale?[C] dbias?[C] "
    "where @channels_last:0 = 1, 0 <= C / @num_groups:1";

// The gradient of a normalization whose epilogue is Relu reads Relu's result, and may write the gradient of its
// operand.
void check_gradient_of_relu(const Node& node) {
  const bool is_rectified = has_step(node, EpilogueStep::kRelu);
  if (is_rectified != (input_at(node, "y") >= 0) || (!is_rectified && output_at(node, "dz") >= 0))
    fail(node.label(), ": it has 'y' and 'dz' if, and only if, its epilogue is relu");
}

// The variance of a single value is 0, so normalization replaces the value by the bias; no values have neither.
void check_values_per_channel(const Node& node) {
  const TensorType& x = node.input(0)->type();
  if (!x.is_static() || x.rank() < 2) return;
  const Shape shape = x.shape();
  if (num_elements(shape) > shape[1] || shape[1] == 0) return;
  fail_as(
      ErrorCode::kOneValueToNormalize, node.label(), ": its input '", node.input(0)->name(), "' is ", to_string(x),
      ", and batch normalization needs more than 1 value per channel in training; train with larger batches, or keep "
      "its statistics: --freeze its weights, or --mode frozen");
}

}  // namespace

std::vector<Operator> normalization_operators() {
  return {
      Operator{"Softmax", kAlongAxis}
          .narrow({0}, {0})
          .in_precision(PrecisionRole::kActivation)
          .on_images(ImageRole::kAxis),
      Operator{"LogSoftmax", kAlongAxis}.narrow({0}, {0}).on_images(ImageRole::kAxis),
      {"Hardmax", kAlongAxis},
      Operator{"SoftmaxGrad", kAlongAxisGrad, kDomain, kOneFloat}.narrow({0, 1}, {0}),
      Operator{"LogSoftmaxGrad", kAlongAxisGrad, kDomain, kOneFloat}.narrow({0, 1}, {0}),

      Operator{"LayerNormalization", kLayer, "", kOneFloat}
          .narrow({0}, {0})
          .in_precision(PrecisionRole::kActivation)
          .weights_at({1, 2}),
      Operator{"RMSNormalization", kRms, "", kOneFloat}
          .narrow({0}, {0})
          .in_precision(PrecisionRole::kActivation)
          .weights_at({1}),
      Operator{"RMSNormalization", kRms, kDomain, kOneFloat}.narrow({0}, {0}).in_precision(PrecisionRole::kActivation),
      Operator{"LayerNormalizationGrad", kLayerGrad, kDomain, kOneFloat}
          .narrow({0, 2, 3}, {0})
          .with_epilogue({EpilogueStep::kResidual}),
      Operator{"RMSNormalizationGrad", kRmsGrad, kDomain, kOneFloat}
          .narrow({0, 2, 3}, {0})
          .with_epilogue({EpilogueStep::kResidual}),

      Operator{"BatchNormalization", kBatch}
          .shared_along("C")
          .narrow({0}, {0})
          .in_precision(PrecisionRole::kActivation)
          .weights_at({1, 2, 3, 4})
          .on_images(ImageRole::kPerChannel),
      Operator{"BatchNormalization", kOurBatch, kDomain, kOneFloat}
          .with_epilogue({EpilogueStep::kResidual, EpilogueStep::kRelu})
          .narrow({0, 5}, {0})
          .on_images(ImageRole::kPerChannel, {0, 5}),
      Operator{"BatchNormalizationTrain", kBatchTrain, kDomain, kOneFloat, check_values_per_channel}
          .shared_along("C")
          .with_epilogue({EpilogueStep::kResidual, EpilogueStep::kRelu})
          .narrow({0, 3}, {0})
          .in_precision(PrecisionRole::kActivation)
          .weights_at({1, 2})
          .on_images(ImageRole::kPerChannel, {0, 3}),
      Operator{"BatchNormalizationGrad", kBatchGrad, kDomain, kOneFloat, check_gradient_of_relu}
          .shared_along("C")
          .with_epilogue({EpilogueStep::kRelu})
          .narrow({0, 4, 5}, {0, 3})
          .on_images(ImageRole::kPerChannel, {0, 4, 5}, {0, 3}),
      Operator{"BatchNormalizationFrozenGrad", kBatchFrozenGrad, kDomain, kOneFloat}
          .shared_along("C")
          .narrow({0, 4}, {0})
          .on_images(ImageRole::kPerChannel, {0, 4}),

      Operator{"GroupNormalization", kGroup, "", kOneFloat}
          .narrow({0}, {0})
          .in_precision(PrecisionRole::kActivation)
          .weights_at({1, 2})
          .on_images(ImageRole::kGroups),
      Operator{"InstanceNormalization", "x[N, C, S...] scale[C] bias[C] -> y[N, C, S...]", "", kOneFloat}
          .shared_along("NC")
          .narrow({0}, {0})
          .in_precision(PrecisionRole::kActivation)
          .weights_at({1, 2})
          .on_images(ImageRole::kGroups),
      Operator{"GroupNormalization", kOurGroup, kDomain, kOneFloat}.narrow({0}, {0}).on_images(ImageRole::kGroups),
      Operator{"GroupNormalizationGrad", kGroupGrad, kDomain, kOneFloat}
          .narrow({0, 2}, {0})
          .on_images(ImageRole::kGroups, {0, 2}),

      {"LRN", "x[N, C, S...] -> y[N, C, S...] where 1 <= @size"},
      {"LpNormalization", "x[S...] -> y[S...] where -#S <= @axis:-1 < #S"},
  };
}

}  // namespace onnx_train
