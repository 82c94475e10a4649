// Convolutions and their gradients by oneDNN (kernels/cpu/convolution/convolutions.h).
#include "kernels/cpu/convolution/convolutions.h"
#include "kernels/cpu/onednn/primitives/chain.h"

namespace onnx_train::cpu {
namespace {

using Desc = dnnl::memory::desc;
using dnnl::algorithm;
using dnnl::prop_kind;

// Lets oneDNN choose the layout.
Desc any_layout(const Desc& desc) { return {desc.get_dims(), desc.get_data_type(), dnnl::memory::format_tag::any}; }

// The memory layout of the node's tensor x or y.
Desc image_layout(const Convolution& c, const Shape& image, DType dtype = DType::kFloat) {
  if (!c.channels_last) return row_major(image, dtype);
  using Tag = dnnl::memory::format_tag;
  const Tag tag = image.size() == 3 ? Tag::nwc : image.size() == 4 ? Tag::nhwc : Tag::ndhwc;
  return {image, data_type(dtype), tag};
}

// The layout that the primitive is asked for: channels-last tensors keep theirs; for others oneDNN chooses.
Desc wanted_layout(const Convolution& c, const Shape& image, DType dtype = DType::kFloat) {
  const Desc given = image_layout(c, image, dtype);
  return c.channels_last ? given : any_layout(given);
}

Desc weight_layout(const Convolution& c, DType dtype = DType::kFloat) {
  if (c.group == 1) return row_major(c.w, dtype);
  Shape grouped = c.w;
  grouped[0] = c.out_channels();
  grouped.insert(grouped.begin(), c.group);
  return row_major(grouped, dtype);
}

// oneDNN's dilation is the number of elements between two taps: our dilation minus 1.
Shape gaps(const Convolution& c) {
  Shape between = c.windows.dilations;
  for (int64_t& d : between) --d;
  return between;
}

// Padding after the input such that the last window ends exactly there; negative when the last window ends earlier.
Shape exact_end(const Convolution& c) {
  const Windows& w = c.windows;
  Shape end;
  for (size_t i = 0; i < w.kernel.size(); ++i) {
    const int64_t reached = (c.y[i + 2] - 1) * w.strides[i] + (w.kernel[i] - 1) * w.dilations[i] + 1;
    end.push_back(reached - c.x[i + 2] - w.pads_begin[i]);
  }
  return end;
}

using ForwardDesc = dnnl::convolution_forward::primitive_desc;

// `result` is the element type of y.
ForwardDesc forward_desc(const Chain& chain, const Convolution& c, const Desc& bias, DType result) {
  return {chain.engine(),
          prop_kind::forward_training,
          algorithm::convolution_direct,
          wanted_layout(c, c.x, c.operands),
          any_layout(weight_layout(c, c.operands)),
          bias,
          wanted_layout(c, c.y, result),
          c.windows.strides,
          gaps(c),
          c.windows.pads_begin,
          exact_end(c),
          Chain::attributes()};
}

}  // namespace

Prepared prepare_onednn(const NodeSpec& spec, const Convolution& c, const Forward& f) {
  return prepare_chain(spec, [&](Chain& chain) {
    const Desc bias_layout = f.bias >= 0 ? row_major({c.w[0]}) : Desc();
    const ForwardDesc desc = forward_desc(chain, c, bias_layout, spec.out_type());
    const OneDnnOperand x = chain.in_layout(input(f.x, image_layout(c, c.x, c.operands)), desc.src_desc());
    const OneDnnOperand w = chain.in_layout(input(f.w, weight_layout(c, c.operands)), desc.weights_desc());
    const OneDnnOperand y = output(0, image_layout(c, c.y, spec.out_type())), made = chain.staged(y, desc.dst_desc());
    std::vector<std::pair<int, OneDnnOperand>> operands = {
        {DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, made}};
    if (f.bias >= 0) operands.push_back({DNNL_ARG_BIAS, input(f.bias, bias_layout)});
    chain.add(desc, operands);
    chain.reorder(made, y);
  });
}

Prepared prepare_onednn(const NodeSpec& spec, const Convolution& c, const InputGradient& f) {
  return prepare_chain(spec, [&](Chain& chain) {
    const dnnl::convolution_backward_data::primitive_desc desc(
        chain.engine(), algorithm::convolution_direct, wanted_layout(c, c.x, spec.out_type()),
        any_layout(weight_layout(c, c.operands)), wanted_layout(c, c.y, c.operands), c.windows.strides, gaps(c),
        c.windows.pads_begin, exact_end(c), forward_desc(chain, c, Desc(), c.operands), Chain::attributes());
    const OneDnnOperand dy = chain.in_layout(input(f.dy, image_layout(c, c.y, c.operands)), desc.diff_dst_desc());
    const OneDnnOperand w = chain.in_layout(input(f.w, weight_layout(c, c.operands)), desc.weights_desc());
    const OneDnnOperand dx = output(0, image_layout(c, c.x, spec.out_type())),
                        made = chain.staged(dx, desc.diff_src_desc());
    chain.add(desc, {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, made}});
    chain.reorder(made, dx);
  });
}

Prepared prepare_onednn(const NodeSpec& spec, const Convolution& c, const WeightGradient& f) {
  return prepare_chain(spec, [&](Chain& chain) {
    const Desc bias_layout = f.bias ? row_major({c.w[0]}) : Desc();
    const dnnl::convolution_backward_weights::primitive_desc desc(
        chain.engine(), algorithm::convolution_direct, wanted_layout(c, c.x, c.operands), any_layout(weight_layout(c)),
        bias_layout, wanted_layout(c, c.y, c.operands), c.windows.strides, gaps(c), c.windows.pads_begin, exact_end(c),
        forward_desc(chain, c, bias_layout, c.operands), Chain::attributes());
    const OneDnnOperand x = chain.in_layout(input(f.x, image_layout(c, c.x, c.operands)), desc.src_desc());
    const OneDnnOperand dy = chain.in_layout(input(f.dy, image_layout(c, c.y, c.operands)), desc.diff_dst_desc());
    const OneDnnOperand dw = output(0, weight_layout(c)), made = chain.staged(dw, desc.diff_weights_desc());
    std::vector<std::pair<int, OneDnnOperand>> operands = {
        {DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_WEIGHTS, made}};
    if (f.bias) operands.push_back({DNNL_ARG_DIFF_BIAS, output(1, bias_layout)});
    chain.add(desc, operands);
    chain.reorder(made, dw);
  });
}

}  // namespace onnx_train::cpu
