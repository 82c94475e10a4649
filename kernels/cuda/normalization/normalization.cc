// Rows of batch, group, instance and local normalization (functions/normalization.cc).
#include "kernels/cuda/normalization/normalization.h"

#include "kernels/cuda/kernels.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/channels.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/windows.h"

namespace onnx_train::cuda {
namespace {

// Images and channel values of one type, and no operation after the normalization.
bool supports_channels(const NodeSpec& spec, int inputs, int images) {
  return is_float_or_double(spec.in_type(0)) && spec.num_inputs() == inputs && spec.node().attr("relu", 0) == 0 &&
         has_channel_values(spec, images, spec.in_type(0), spec.in_type(0)) &&
         (!spec.has_output(0) || spec.out_type(0) == spec.in_type(0));
}

bool supports_inference(const NodeSpec& spec) {
  return supports_channels(spec, 5, 5) && spec.num_outputs() == 1 && spec.node().attr("training_mode", 0) == 0;
}

bool supports_train(const NodeSpec& spec) { return supports_channels(spec, 3, 3); }
bool supports_gradient(const NodeSpec& spec) { return supports_channels(spec, 5, 4) && !spec.has_output(3); }

bool supports_groups(const NodeSpec& spec) {
  for (int i = 0; i < 3; ++i) {
    if (!spec.has_input(i) || spec.in_type(i) != spec.in_type(0)) return false;
  }
  for (int o = 0; o < spec.num_outputs(); ++o) {
    if (spec.has_output(o) && spec.out_type(o) != spec.in_type(0)) return false;
  }
  return !is_channels_last(spec.node()) && is_float_or_double(spec.in_type(0)) && has_groups(spec);
}

bool supports_lines(const NodeSpec& spec) { return is_float_or_double(spec.in_type()); }
bool supports_neighbours(const NodeSpec& spec) { return supports_lines(spec) && spec.in_shape().size() > 1; }

}  // namespace

std::vector<Kernel> normalization_kernels() {
  return {
      {"BatchNormalization", supports_inference, prepare_batch_inference},
      {"BatchNormalizationTrain", supports_train, prepare_batch_train, kDomain},
      {"BatchNormalizationGrad", supports_gradient, prepare_batch_gradient, kDomain},
      {"BatchNormalizationFrozenGrad", supports_gradient, prepare_batch_frozen_gradient, kDomain},
      {"GroupNormalization", supports_groups, prepare_groups},
      {"InstanceNormalization", supports_groups, prepare_groups},
      {"GroupNormalizationGrad", supports_groups, prepare_groups_gradient, kDomain},
      {"LpNormalization", supports_lines, prepare_line_norm},
      {"LRN", supports_neighbours, prepare_local_response},
  };
}

}  // namespace onnx_train::cuda
