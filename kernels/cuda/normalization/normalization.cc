// Rows of batch, group, instance and local normalization (functions/normalization.cc).
#include "kernels/cuda/normalization/normalization.h"

#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/channels.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train::cuda {
namespace {

// Whether the images have one type and per-channel values the type of the computation.
bool supports_channels(const NodeSpec& spec, int images) {
  const DType stored = spec.in_type(0), computed = is_half(stored) ? DType::kFloat : stored;
  return is_stored(stored) && has_channel_values(spec, images, stored, computed) &&
         (!spec.has_output(0) || is_stored_pair(stored, spec.out_type(0)));
}

// Whether results are not rounded, or are float32 results before Relu.
bool supports_rounding(const NodeSpec& spec) {
  if (!spec.node().has_attr("round_to")) return true;
  return has_step(spec.node(), EpilogueStep::kRelu) && spec.in_type(0) != DType::kDouble &&
         is_half(static_cast<DType>(spec.node().attr("round_to", 0)));
}

bool supports_inference(const NodeSpec& spec) {
  return supports_channels(spec, 5) && supports_rounding(spec) && spec.num_outputs() == 1 &&
         spec.node().attr("training_mode", 0) == 0;
}

bool supports_train(const NodeSpec& spec) { return supports_channels(spec, 3) && supports_rounding(spec); }
bool supports_frozen_gradient(const NodeSpec& spec) { return supports_channels(spec, 4); }

bool supports_gradient(const NodeSpec& spec) {
  const int dz = output_at(spec.node(), "dz");
  return supports_channels(spec, 4) && (dz < 0 || spec.out_type(dz) == spec.in_type(0));
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
  return is_stored(stored) && has_groups(spec) && (!spec.has_output(0) || is_stored_pair(stored, spec.out_type(0)));
}

bool supports_lines(const NodeSpec& spec) { return is_float_or_double(spec.in_type()); }
bool supports_neighbours(const NodeSpec& spec) { return supports_lines(spec) && spec.in_shape().size() > 1; }

}  // namespace

std::vector<Kernel> normalization_kernels() {
  const std::vector<const char*> forward = {"", "relu", "residual, relu"}, backward = {"", "relu"};
  const auto of_groups = [](const char* op, const char* domain, Prepared (*prepare)(const NodeSpec&)) {
    return Kernel{op, supports_groups, prepare, domain}.on_images(ImageLayout::kChannelsFirst);
  };
  return {
      {"BatchNormalization", supports_inference, prepare_batch_inference},
      Kernel{"BatchNormalization", supports_inference, prepare_batch_inference, kDomain}.with_epilogues(forward),
      Kernel{"BatchNormalizationTrain", supports_train, prepare_batch_train, kDomain}.with_epilogues(forward),
      Kernel{"BatchNormalizationGrad", supports_gradient, prepare_batch_gradient, kDomain}.with_epilogues(backward),
      {"BatchNormalizationFrozenGrad", supports_frozen_gradient, prepare_batch_frozen_gradient, kDomain},
      of_groups("GroupNormalization", "", prepare_groups),
      of_groups("InstanceNormalization", "", prepare_groups),
      of_groups("GroupNormalization", kDomain, prepare_groups),
      of_groups("InstanceNormalization", kDomain, prepare_groups),
      of_groups("GroupNormalizationGrad", kDomain, prepare_groups_gradient),
      {"LpNormalization", supports_lines, prepare_line_norm},
      {"LRN", supports_neighbours, prepare_local_response},
  };
}

}  // namespace onnx_train::cuda
