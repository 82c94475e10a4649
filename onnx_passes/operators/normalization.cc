// Normalization, softmax, and their gradients.
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr auto kOne = ElementTypes::kOneFloat;
constexpr auto kNarrow = ElementTypes::kNarrow;

constexpr const char* kAlongAxis = "x[S...] -> y[S...] where -#S <= @axis:-1 < #S";
constexpr const char* kAlongAxisGrad = "dy[S...] y[S...] -> dx[S...] where -#S <= @axis:-1 < #S";

constexpr const char* kLayer =
    "x[S...] scale[~S...] bias?[~S...] -> y[S...] mean?:float inverse_deviation?:float where -#S <= @axis:-1 < #S";
constexpr const char* kLayerGrad =
    "x[S...] scale[P...] dy[S...] -> dx?[S...] dscale?[P...] dbias?[P...] where -#S <= @axis:-1 < #S";
constexpr const char* kRms = "x[S...] scale[~S...] -> y[S...] where -#S <= @axis:-1 < #S";
constexpr const char* kRmsGrad = "x[S...] scale[P...] dy[S...] -> dx?[S...] dscale?[P...] where -#S <= @axis:-1 < #S";

constexpr const char* kBatch =
    "x[N, C, S...] scale[C] bias[C] mean[C] var[C] -> y[N, C, S...] next_mean?[C] next_var?[C]";
constexpr const char* kBatchTrain = "x[N, C, S...] scale[C] bias[C] -> y?[N, C, S...] mean?[C] var?[C]";
constexpr const char* kBatchAdd = "x[N, C, S...] scale[C] bias[C] mean[C] var[C] residual[N, C, S...] -> y[N, C, S...]";
constexpr const char* kBatchAddTrain =
    "x[N, C, S...] scale[C] bias[C] residual[N, C, S...] -> y?[N, C, S...] mean?[C] var?[C]";
constexpr const char* kBatchGrad =
    "x[N, C, S...] scale[C] mean[C] var[C] dy[N, C, S...] -> dx?[N, C, S...] dscale?[C] dbias?[C]";
constexpr const char* kBatchReluGrad =
    "x[N, C, S...] scale[C] mean[C] var[C] dy[N, C, S...] y[N, C, S...] -> "
    "dx?[N, C, S...] dscale?[C] dbias?[C] dz?[N, C, S...]";

constexpr const char* kGroupLastGrad =
    "x[N, S..., C] scale[C] dy[N, S..., C] -> dx?[N, S..., C] dscale?[C] dbias?[C] where 0 <= C / @num_groups:1";
constexpr const char* kGroupLast = "x[N, S..., C] scale[C] bias[C] -> y[N, S..., C] where 0 <= C / @num_groups:1";

}  // namespace

std::vector<Operator> normalization_operators() {
  return {
      {"Softmax", kAlongAxis},
      {"LogSoftmax", kAlongAxis},
      {"Hardmax", kAlongAxis},
      {"SoftmaxGrad", kAlongAxisGrad, kDomain, kOne},
      {"LogSoftmaxGrad", kAlongAxisGrad, kDomain, kOne},
      {"Bfloat16Softmax", kAlongAxis, kDomain, kNarrow},
      {"Bfloat16LogSoftmax", kAlongAxis, kDomain, kNarrow},
      {"Bfloat16SoftmaxGrad", kAlongAxisGrad, kDomain, kNarrow},
      {"Bfloat16LogSoftmaxGrad", kAlongAxisGrad, kDomain, kNarrow},

      {"LayerNormalization", kLayer, "", kOne},
      {"RMSNormalization", kRms, "", kOne},
      {"RMSNormalization", kRms, kDomain, kOne},
      {"LayerNormalizationGrad", kLayerGrad, kDomain, kOne},
      {"RMSNormalizationGrad", kRmsGrad, kDomain, kOne},
      {"Bfloat16LayerNormalization", kLayer, kDomain, kNarrow},
      {"Bfloat16RMSNormalization", kRms, kDomain, kNarrow},
      {"Bfloat16LayerNormalizationGrad", kLayerGrad, kDomain, kNarrow},
      {"Bfloat16RMSNormalizationGrad", kRmsGrad, kDomain, kNarrow},

      {"BatchNormalization", kBatch},
      {"BatchNormalizationRelu", kBatch, kDomain, kOne},
      {"BatchNormalizationAddRelu", kBatchAdd, kDomain, kOne},
      {"RoundedBatchNormalizationRelu", kBatch, kDomain, kOne},
      {"RoundedBatchNormalizationAddRelu", kBatchAdd, kDomain, kOne},
      {"BatchNormalizationTrain", kBatchTrain, kDomain, kOne},
      {"BatchNormalizationReluTrain", kBatchTrain, kDomain, kOne},
      {"BatchNormalizationAddReluTrain", kBatchAddTrain, kDomain, kOne},
      {"RoundedBatchNormalizationReluTrain", kBatchTrain, kDomain, kOne},
      {"RoundedBatchNormalizationAddReluTrain", kBatchAddTrain, kDomain, kOne},
      {"BatchNormalizationGrad", kBatchGrad, kDomain, kOne},
      {"BatchNormalizationFrozenGrad", kBatchGrad, kDomain, kOne},
      {"BatchNormalizationReluGrad", kBatchReluGrad, kDomain, kOne},
      {"Bfloat16BatchNormalization", kBatch, kDomain, kNarrow},
      {"Bfloat16RoundedBatchNormalizationRelu", kBatch, kDomain, kNarrow},
      {"Bfloat16RoundedBatchNormalizationAddRelu", kBatchAdd, kDomain, kNarrow},
      {"Bfloat16BatchNormalizationTrain", kBatchTrain, kDomain, kNarrow},
      {"Bfloat16RoundedBatchNormalizationReluTrain", kBatchTrain, kDomain, kNarrow},
      {"Bfloat16RoundedBatchNormalizationAddReluTrain", kBatchAddTrain, kDomain, kNarrow},
      {"Bfloat16BatchNormalizationGrad", kBatchGrad, kDomain, kNarrow},
      {"Bfloat16BatchNormalizationFrozenGrad", kBatchGrad, kDomain, kNarrow},
      {"Bfloat16BatchNormalizationReluGrad", kBatchReluGrad, kDomain, kNarrow},

      {"GroupNormalization",
       "x[N, C, S...] scale[C] bias[C] -> y[N, C, S...] where 1 <= @num_groups, 0 <= C / @num_groups", "", kOne},
      {"InstanceNormalization", "x[N, C, S...] scale[C] bias[C] -> y[N, C, S...]", "", kOne},
      {"GroupNormalizationGrad",
       "x[N, C, S...] scale[C] dy[N, C, S...] -> dx?[N, C, S...] dscale?[C] dbias?[C] where 0 <= C / @num_groups",
       kDomain, kOne},
      {"ChannelsLastGroupNormalization", kGroupLast, kDomain, kOne},
      {"ChannelsLastGroupNormalizationGrad", kGroupLastGrad, kDomain, kOne},
      {"Bfloat16ChannelsLastGroupNormalization", kGroupLast, kDomain, kNarrow},
      {"Bfloat16ChannelsLastGroupNormalizationGrad", kGroupLastGrad, kDomain, kNarrow},

      {"LRN", "x[N, C, S...] -> y[N, C, S...] where 1 <= @size"},
      {"LpNormalization", "x[S...] -> y[S...] where -#S <= @axis:-1 < #S"},
  };
}

}  // namespace onnx_train
