// Rows of Conv, ConvTranspose and the gradients ConvGradInput and ConvGradWeight (functions/convolutions.cc).
#include "kernels/cuda/convolution/convolutions.h"

#include <algorithm>

#include "kernels/cuda/convolution/cudnn.h"
#include "kernels/cuda/reduction/reductions.h"
#include "kernels/cuda/support/cudnn_library.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/stored.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/windows.h"

namespace onnx_train::cuda {
namespace {

Prepared prepare_conv(const NodeSpec& spec) { return prepare_direct(spec, conv(spec), Direction::kForward); }

// ConvTranspose is the input gradient of the convolution from the shape of y to the shape of x, plus the bias.
Prepared prepare_conv_transpose(const NodeSpec& spec) {
  return prepare_direct(spec, conv_transpose(spec), Direction::kInputGradient);
}

Prepared prepare_grad_input(const NodeSpec& spec) {
  return prepare_direct(spec, conv_grad_input(spec), Direction::kInputGradient);
}

// Runs the bias gradient, if the node has this output, after the weight gradient: the sum of dy over all axes but
// channels.
Prepared with_bias_gradient(const NodeSpec& spec, Prepared weight) {
  if (!spec.has_output(1)) return weight;
  std::vector<bool> reduced(spec.in_shape(1).size(), true);
  reduced[is_channels_last(spec.node()) ? reduced.size() - 1 : 1] = false;
  const Prepared bias = prepare_sum_of(spec.in_type(1), spec.in_shape(1), reduced, 1, 1);
  weight.run = [weight = weight.run, bias = bias.run](const Launch& launch) {
    weight(launch);
    bias(launch);  // one after the other, so that they can share the workspace
  };
  weight.workspace = std::max(weight.workspace, bias.workspace);
  return weight;
}

Prepared prepare_grad_weight(const NodeSpec& spec) {
  return with_bias_gradient(spec, prepare_direct(spec, conv_grad_weight(spec), Direction::kWeightGradient));
}

std::function<bool(const NodeSpec&)> is_wide(int tensors) {
  return [tensors](const NodeSpec& spec) {
    return is_float_or_double(spec.in_type()) && has_image_axes(spec) && spec.has_output(0) && spec.one_type(tensors) &&
           has_one_output_type(spec);
  };
}

// Whether operands have 16 bits; a bias, or its gradient, must be float32.
bool is_narrow(const NodeSpec& spec, Direction direction) {
  if (!is_half(spec.in_type()) || spec.in_type(1) != spec.in_type() || !has_image_axes(spec) || !spec.has_output(0) ||
      !is_stored_pair(spec.in_type(), spec.out_type()))
    return false;
  const bool is_float_bias = !has_bias(spec, direction) || spec.in_type(2) == DType::kFloat;
  const bool is_float_sum = spec.num_outputs() < 2 || !spec.has_output(1) || spec.out_type(1) == DType::kFloat;
  return is_float_bias && is_float_sum;
}

// Where cuDNN is and has no plan for 16 bits, casts and a plan for float32 are faster.
template <Direction kDirection>
bool supports_narrow(const NodeSpec& spec) {
  return !cudnn_library().is_loaded() && is_narrow(spec, kDirection);
}

// The cuDNN row, which precedes ours.
template <Convolution (*kGeometry)(const NodeSpec&), Direction kDirection>
Kernel cudnn_row(const char* op, const char* domain, const char* name) {
  return {op,
          [](const NodeSpec& spec) {
            const bool is_float = spec.in_type() == DType::kFloat && is_wide(has_bias(spec, kDirection) ? 3 : 2)(spec);
            return (is_float || is_narrow(spec, kDirection)) && has_cudnn_plan(spec, kGeometry(spec), kDirection);
          },
          [](const NodeSpec& spec) {
            const Prepared prepared = prepare_cudnn(spec, kGeometry(spec), kDirection);
            return kDirection == Direction::kWeightGradient ? with_bias_gradient(spec, prepared) : prepared;
          },
          domain, name};
}

}  // namespace

bool supports_channels_last(const Node& node, DType dtype) {
  const bool is_forward = node.is("Conv"), of_weight = node.is("ConvGradWeight", kDomain);
  const NodeSpec spec(node, std::vector<Tensor>(node.inputs().size()), 1);
  Convolution c = is_forward ? conv(spec) : of_weight ? conv_grad_weight(spec) : conv_grad_input(spec);
  c.channels_last = true;
  const auto direction = is_forward  ? Direction::kForward
                         : of_weight ? Direction::kWeightGradient
                                     : Direction::kInputGradient;
  return has_tensor_core_plans(c, direction, dtype);
}

bool has_bias(const NodeSpec& spec, Direction direction) {
  const bool may_have =
      direction == Direction::kForward || (direction == Direction::kInputGradient && spec.node().domain().empty());
  return may_have && spec.num_inputs() > 2 && spec.has_input(2);
}

std::vector<Kernel> convolution_kernels() {
  constexpr auto kForward = Direction::kForward, kInputGradient = Direction::kInputGradient,
                 kWeightGradient = Direction::kWeightGradient;
  constexpr auto kChannelsFirst = ImageLayout::kChannelsFirst;
  const auto ours = [](const char* op, const std::function<bool(const NodeSpec&)>& supports,
                       Prepared (*prepare)(const NodeSpec&), const char* domain = "") {
    return Kernel{op, supports, prepare, domain}.on_images(kChannelsFirst);
  };
  return {
      cudnn_row<conv, kForward>("Conv", "", "cuDNN Conv"),
      cudnn_row<conv, kForward>("Conv", kDomain, "cuDNN Conv"),
      cudnn_row<conv_transpose, kInputGradient>("ConvTranspose", "", "cuDNN ConvTranspose").on_images(kChannelsFirst),
      cudnn_row<conv_grad_input, kInputGradient>("ConvGradInput", kDomain, "cuDNN ConvGradInput"),
      cudnn_row<conv_grad_weight, kWeightGradient>("ConvGradWeight", kDomain, "cuDNN ConvGradWeight"),
      ours("Conv", is_wide(3), prepare_conv),
      ours("ConvTranspose", is_wide(3), prepare_conv_transpose),
      ours("ConvGradInput", is_wide(2), prepare_grad_input, kDomain),
      ours("ConvGradWeight", is_wide(2), prepare_grad_weight, kDomain),
      ours("Conv", supports_narrow<kForward>, prepare_conv, kDomain),
      ours("ConvGradInput", supports_narrow<kInputGradient>, prepare_grad_input, kDomain),
      ours("ConvGradWeight", supports_narrow<kWeightGradient>, prepare_grad_weight, kDomain),
  };
}

}  // namespace onnx_train::cuda
