// Conv, ConvTranspose and the gradients ConvGradInput and ConvGradWeight (functions/convolutions.cc), and their
// variants on channels-last images and on bfloat16 operands (kernels/functions): kernel rows and shape checks.
#include "kernels/cpu/convolution/convolutions.h"

#include <algorithm>

#include "kernels/cost.h"
#include "kernels/cpu/products/products.h"
#include "kernels/cpu/support/choices.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/onednn.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/registry.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// ---- Rows

// What computes most convolutions.
const char* name_of_library() { return has_onednn() ? "oneDNN" : "BLAS"; }

template <typename Direction>
Prepared prepare(const NodeSpec& spec, const Convolution& c, const Direction& direction) {
  const bool empty = num_elements(c.x) == 0 || num_elements(c.w) == 0 || num_elements(c.y) == 0;
  if (spec.out_type() == DType::kDouble || empty) return prepare_reference(spec, c, direction);
  if (has_onednn()) return prepare_onednn(spec, c, direction);
  return c.channels_last ? prepare_blas(spec, c, direction) : prepare_reference(spec, c, direction);
}

// What is timed in the place of a convolution: its first images.
Convolution sample_of(Convolution c) {
  constexpr int64_t kImages = 64;
  c.x[0] = c.y[0] = std::min(c.batch(), kImages);
  return c;
}

// A way to compute a convolution. `prepare` makes a Prepared of it or of its sample.
struct ConvolutionWay {
  const char* name;
  bool is_supported, is_preferred;
  std::function<Prepared(const Convolution&)> prepare;
};

Prepared fastest_of(const NodeSpec& spec, const Convolution& c, const std::vector<ConvolutionWay>& ways) {
  const Convolution sample = sample_of(c);
  std::vector<Way> all;
  for (const ConvolutionWay& way : ways) {
    all.push_back({way.name, way.is_supported, way.is_preferred, [&] { return way.prepare(c); },
                   [&] { return way.prepare(sample); }});
  }
  const Windows& w = c.windows;
  std::string text = concat(spec.node().op(), c.channels_last ? ", channels last" : "", ", group ", c.group);
  for (const Shape* shape : {&sample.x, &c.w, &sample.y, &w.kernel, &w.strides, &w.dilations, &w.pads_begin})
    text += " " + to_string(*shape);
  for (int i = 0; i < spec.num_outputs(); ++i) text += concat(" ", spec.has_output(i) ? name(spec.out_type(i)) : "-");
  const int64_t most = std::max({num_elements(sample.x), num_elements(c.w), num_elements(sample.y)});
  return fastest(spec, {concat(text, " of ", name(c.operands)), static_cast<size_t>(most) * sizeof(float)},
                 cost_of(spec.node()).total_flops(), std::move(all));
}

// Forward and the gradient of the input.
template <typename Direction>
Prepared prepare_fastest(const NodeSpec& spec, const Convolution& c, const Direction& direction) {
  constexpr bool kGradient = std::is_same_v<Direction, InputGradient>;
  return fastest_of(
      spec, c,
      {{"AMX", supports_amx(c), prefers_amx(c),
        [&](const Convolution& part) { return prepare_amx(spec, part, direction); }},
       {"direct", supports_direct(c, kGradient), prefers_direct(c, kGradient),
        [&](const Convolution& part) { return prepare_direct(spec, part, direction); }},
       {name_of_library(), true, true, [&](const Convolution& part) { return prepare(spec, part, direction); }}});
}

Prepared prepare_conv(const NodeSpec& spec) {
  return prepare_fastest(spec, conv(spec), Forward{0, 1, spec.has_input(2) ? 2 : -1});
}

// y += bias, for y[batch, channels, spatial_size].
template <typename T>
void add_bias(const T* bias, T* y, const Shape& shape) {
  const int64_t channels = shape[1], spatial_size = num_elements({shape.begin() + 2, shape.end()});
  parallel_for(shape[0] * channels, std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, spatial_size)),
               [=](int64_t i, int64_t end) {
                 for (; i < end; ++i) {
                   const T b = bias[i % channels];
                   for (int64_t p = 0; p < spatial_size; ++p) y[i * spatial_size + p] += b;
                 }
               });
}

// ConvTranspose is the input gradient of the convolution from the shape of y to the shape of x, plus the bias.
Prepared prepare_conv_transpose(const NodeSpec& spec) {
  const Convolution c = conv_transpose(spec);
  Prepared product = prepare(spec, c, InputGradient{0, 1});
  if (!spec.has_input(2)) return product;
  const auto add = [y = c.x, single = spec.in_type() == DType::kFloat](const Launch& launch) {
    single ? add_bias(launch.in<float>(2), launch.out<float>(), y)
           : add_bias(launch.in<double>(2), launch.out<double>(), y);
  };
  return {[add, run = product.run](const Launch& launch) {
            run(launch);
            add(launch);
          },
          product.workspace,
          {}};
}

Prepared prepare_grad_input(const NodeSpec& spec) {
  return prepare_fastest(spec, conv_grad_input(spec), InputGradient{0, 1});
}

Prepared prepare_grad_weight(const NodeSpec& spec) {
  const Convolution c = conv_grad_weight(spec);
  const WeightGradient gradient{0, 1, spec.has_output(1)};
  return fastest_of(
      spec, c,
      {{"AMX", supports_amx(c), prefers_amx(c),
        [&](const Convolution& part) { return prepare_amx(spec, part, gradient); }},
       {"im2col", supports_wgrad_im2col(c), prefers_wgrad_im2col(c),
        [&](const Convolution& part) { return prepare_wgrad_im2col(part, gradient); }},
       {"direct", supports_wgrad_direct(c), prefers_wgrad_direct(c),
        [&](const Convolution& part) { return prepare_wgrad_direct(part, gradient, spec.threads()); }},
       {name_of_library(), true, true, [&](const Convolution& part) { return prepare(spec, part, gradient); }}});
}

// Whether a kernel supports this channels-last convolution; otherwise the node runs as its function body. The first
// `tensors` inputs are images, weights and the bias.
bool supports_channels_last(const NodeSpec& spec, int tensors) {
  if (spec.in_type() != DType::kFloat || !has_image_axes(spec) || !spec.has_output(0) || !spec.one_type(tensors) ||
      !has_one_output_type(spec))
    return false;
  for (int i = 0; i < 2; ++i) {
    if (spec.in_size(i) == 0) return false;
  }
  return spec.out_size() > 0;
}

bool supports_bfloat16(const NodeSpec& spec) {
  const bool empty = spec.in_size(0) == 0 || spec.in_size(1) == 0;
  return is_bfloat16_product(spec) && has_image_axes(spec) && !empty && spec.out_size() > 0;
}

// oneDNN has only reference loops for bfloat16 input gradients of strided grouped convolutions; float32 is many times
// faster.
bool supports_bfloat16_grad_input(const NodeSpec& spec) {
  const Shape strides = spec.node().attr("strides", Shape{});
  const bool strided = std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride > 1; });
  return supports_bfloat16(spec) && !(strided && spec.node().attr("group", 1) > 1);
}

// When the width is below a stride of three or more, oneDNN reads scratch memory that it has not written. Such
// convolutions stay in float32.
bool reads_unwritten_scratch(const NodeSpec& spec) {
  const auto windows = find_windows(spec.node());
  if (!windows || windows->strides.empty()) return false;
  const int64_t stride = windows->strides.back(), width = channels_first(spec, spec.in_shape(0)).back();
  return stride > 2 && width < stride;
}

// The weight gradient must be stored as float32.
bool supports_bfloat16_grad_weight(const NodeSpec& spec) {
  return supports_bfloat16(spec) && spec.out_type() == DType::kFloat && has_one_output_type(spec) &&
         !reads_unwritten_scratch(spec);
}

}  // namespace

std::vector<Kernel> convolution_kernels() {
  const auto supports = [](int tensors) {
    return [tensors](const NodeSpec& spec) {
      return is_float_or_double(spec.in_type()) && has_image_axes(spec) && spec.has_output(0) &&
             spec.one_type(tensors) && has_one_output_type(spec);
    };
  };
  const auto channels_first = [&](const char* op, Prepared (*prepare)(const NodeSpec&)) {
    return Kernel{op, supports(2), prepare, kDomain}.on_images(ImageLayout::kChannelsFirst);
  };
  const auto channels_last = [](const char* op, int tensors, Prepared (*prepare)(const NodeSpec&)) {
    const auto takes = [tensors](const NodeSpec& spec) { return supports_channels_last(spec, tensors); };
    return Kernel{op, takes, prepare, kDomain}.on_images(ImageLayout::kChannelsLast);
  };
  return {
      {"Conv", supports(3), prepare_conv},
      {"ConvTranspose", supports(3), prepare_conv_transpose},
      channels_first("ConvGradInput", prepare_grad_input),
      channels_first("ConvGradWeight", prepare_grad_weight),
      channels_last("Conv", 3, prepare_conv),
      channels_last("ConvGradInput", 2, prepare_grad_input),
      channels_last("ConvGradWeight", 2, prepare_grad_weight),
      {"Conv", supports_bfloat16, prepare_conv, kDomain},
      {"ConvGradInput", supports_bfloat16_grad_input, prepare_grad_input, kDomain},
      {"ConvGradWeight", supports_bfloat16_grad_weight, prepare_grad_weight, kDomain},
  };
}

}  // namespace onnx_train::cpu
