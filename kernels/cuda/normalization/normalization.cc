// Rows of batch, group, instance and local normalization (functions/normalization.cc).
#include "kernels/cuda/normalization/normalization.h"

#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/channels.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/windows.h"

namespace onnx_train::cuda {
namespace {

// Whether the images have one type and per-channel values the type of the computation.
bool supports_channels(const NodeSpec& spec, int images) {
  const DType stored = spec.in_type(0), computed = is_half(stored) ? DType::kFloat : stored;
  return is_stored(stored) && has_channel_values(spec, images, stored, computed) &&
         (!spec.has_output(0) || is_stored_pair(stored, spec.out_type(0)));
}

// Whether the epilogue is supported: nothing, or Relu, perhaps after adding the input after the first `inputs`. float32
// results may be rounded before Relu.
bool supports_epilogue(const NodeSpec& spec, int inputs) {
  const bool relu = spec.node().attr("relu", 0) != 0;
  const auto round_to = static_cast<DType>(spec.node().attr("round_to", 0));
  const bool may_round = relu && is_half(round_to) && spec.in_type(0) != DType::kDouble;
  return (spec.num_inputs() == inputs || (relu && spec.num_inputs() == inputs + 1)) &&
         (!spec.node().has_attr("round_to") || may_round);
}

bool supports_inference(const NodeSpec& spec) {
  return supports_channels(spec, 5) && supports_epilogue(spec, 5) && spec.num_outputs() == 1 &&
         spec.node().attr("training_mode", 0) == 0;
}

bool supports_train(const NodeSpec& spec) { return supports_channels(spec, 3) && supports_epilogue(spec, 3); }
bool supports_frozen_gradient(const NodeSpec& spec) { return supports_channels(spec, 4) && spec.num_inputs() == 5; }

// With Relu, input 5 is its result; output 3, if present, is its operand's gradient.
bool supports_gradient(const NodeSpec& spec) {
  const bool relu = spec.node().attr("relu", 0) != 0;
  return supports_channels(spec, 4) && spec.num_inputs() == (relu ? 6 : 5) &&
         (!spec.has_output(3) || (relu && spec.out_type(3) == spec.in_type(0)));
}

// In the gradient, input 2 is dy.
bool supports_groups(const NodeSpec& spec) {
  const DType stored = spec.in_type(0), computed = is_half(stored) ? DType::kFloat : stored;
  const bool is_gradient = spec.node().op() == "GroupNormalizationGrad";
  for (int i = 1; i < 3; ++i) {
    if (!spec.has_input(i) || spec.in_type(i) != (is_gradient && i == 2 ? stored : computed)) return false;
  }
  for (int o = 1; o < spec.num_outputs(); ++o) {
    if (spec.has_output(o) && spec.out_type(o) != computed) return false;
  }
  return !is_channels_last(spec.node()) && is_stored(stored) && has_groups(spec) &&
         (!spec.has_output(0) || is_stored_pair(stored, spec.out_type(0)));
}

bool supports_lines(const NodeSpec& spec) { return is_float_or_double(spec.in_type()); }
bool supports_neighbours(const NodeSpec& spec) { return supports_lines(spec) && spec.in_shape().size() > 1; }

}  // namespace

std::vector<Kernel> normalization_kernels() {
  return {
      {"BatchNormalization", supports_inference, prepare_batch_inference},
      {"BatchNormalization", supports_inference, prepare_batch_inference, kDomain},
      {"BatchNormalizationTrain", supports_train, prepare_batch_train, kDomain},
      {"BatchNormalizationGrad", supports_gradient, prepare_batch_gradient, kDomain},
      {"BatchNormalizationFrozenGrad", supports_frozen_gradient, prepare_batch_frozen_gradient, kDomain},
      {"GroupNormalization", supports_groups, prepare_groups},
      {"InstanceNormalization", supports_groups, prepare_groups},
      {"GroupNormalization", supports_groups, prepare_groups, kDomain},
      {"InstanceNormalization", supports_groups, prepare_groups, kDomain},
      {"GroupNormalizationGrad", supports_groups, prepare_groups_gradient, kDomain},
      {"LpNormalization", supports_lines, prepare_line_norm},
      {"LRN", supports_neighbours, prepare_local_response},
  };
}

}  // namespace onnx_train::cuda
