// Gradients of operators that interpolate images at points (functions/sampling.cc).
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/functions/standard_body.h"
#include "onnx_passes/gradients/gradient.h"

namespace onnx_train {

namespace {

// The attributes of SampleImage and its gradients.
Attrs sampling_attrs(const Node& node, bool normalized) {
  return {{"mode", node.attr("mode", "linear")},
          {"padding_mode", node.attr("padding_mode", "zeros")},
          {"align_corners", node.attr("align_corners", 0)},
          {"normalized", normalized ? 1 : 0}};
}

// y[p] = Σ weight(grid[p]) x[pixel]    dx: weight dy at the pixels;  dgrid: the weights' derivatives times dy x
Gradients grid_sample_gradient(Grad& g) {
  const Attrs attrs = sampling_attrs(g.node(), true);
  Gradients gradients(2);
  if (g.needs(0)) gradients[0] = call(g.b(), "SampleImageGradInput", {g.dy(), g.x(1), shape(g.x(0))}, attrs);
  if (g.needs(1)) gradients[1] = call(g.b(), "SampleImageGradPoints", {g.dy(), g.x(0), g.x(1)}, attrs);
  return gradients;
}

// y = W (mask columns), columns[c, k, p] = x[c, p stride + k dilation - pad + offset[k, p]]
//     dcolumns = Wᵀ dy mask, from which dx and the points' gradient are those of a sampled image;  dW = dy (mask
//     columns)ᵀ dmask = Σ over c of columns (Wᵀ dy);  doffset: the points' gradient;  dbias: sum of dy
Gradients deform_conv_gradient(Grad& g) {
  Builder& b = g.b();
  const Var x = g.x(0), w = g.x(1), offset = g.x(2);
  const int64_t axes = x.rank() - 2;
  Gradients gradients(5);
  std::vector<int64_t> batch_and_space(static_cast<size_t>(axes + 1));
  for (int64_t k = 1; k <= axes; ++k) batch_and_space[static_cast<size_t>(k)] = k + 1;
  if (g.needs(3)) gradients[3] = reduce_sum(g.dy(), batch_and_space, /*keepdims=*/false);

  const DeformedColumns d = deformed_columns(b, g.node());
  const Var rows = slice(shape_of(d.weight), 1, 2, 0), columns_shape = shape_of(d.columns);
  const Var dy = reshape(g.dy(), concat({slice(columns_shape, 0, 2, 0), rows, slice(columns_shape, 3, 4, 0)}, 0));
  if (g.needs(1)) gradients[1] = reshape_like(reduce_sum(matmul(dy, transpose_last(d.columns)), {0}, false), w);
  if (!g.needs(0) && !g.needs(2) && !g.needs(4)) return gradients;
  Var dsampled = reshape_like(matmul(transpose_last(d.weight), dy), d.sampled);
  if (g.needs(4)) gradients[4] = reshape_like(reduce_sum(dsampled * d.sampled, {1}), g.x(4));
  if (d.mask) dsampled = dsampled * d.mask;
  const Attrs attrs = deformed_sampling();
  if (g.needs(0)) {
    gradients[0] = reshape_like(call(b, "SampleImageGradInput", {dsampled, d.points, shape(d.x)}, attrs), x);
  }
  if (g.needs(2)) {
    const Var dpoints = call(b, "SampleImageGradPoints", {dsampled, d.x, d.points}, attrs);
    std::vector<Var> of_axes;  // the outermost first
    for (int64_t k = axes; k-- > 0;) of_axes.push_back(unsqueeze(slice(dpoints, k, k + 1, axes + 2), {2}));
    const Var joined = axes == 1 ? of_axes[0] : concat(of_axes, 2);
    gradients[2] = reshape_like(joined, offset);
  }
  return gradients;
}

std::string deform_conv_obstacle(const Node& node) {
  if (find_standard_body(node)) return "";
  return "its kernel or its padding depends on sizes that are not known; give the model's inputs fixed spatial sizes";
}

// y = A x Bᵀ of a region, or the largest product of a weight and a pixel    dx: Aᵀ dy B, or the weight dy at the pixel
// Regions have no gradient, as in torchvision.
Gradients roi_align_gradient(Grad& g) {
  const Node& node = g.node();
  const Attrs attrs = {
      {"spatial_scale", node.attr("spatial_scale", 1.0f)},
      {"sampling_ratio", node.attr("sampling_ratio", 0)},
      {"half_pixel", std::string(node.attr("coordinate_transformation_mode", "half_pixel")) == "half_pixel" ? 1 : 0},
  };
  if (std::string(node.attr("mode", "avg")) == "max")
    return g.to(call(g.b(), "RoiAlignMaxGrad", {g.dy(), g.x(0), g.x(1), g.x(2)}, attrs));
  return g.to(call(g.b(), "RoiAlignGrad", {g.dy(), g.x(1), g.x(2), shape(g.x(0))}, attrs));
}

// y = the largest pixel of each bin of a region    dx: dy at that pixel, the first one of several
Gradients max_roi_pool_gradient(Grad& g) {
  return g.to(call(g.b(), "MaxRoiPoolGrad", {g.dy(), g.x(0), g.x(1)},
                   {{"spatial_scale", g.node().attr("spatial_scale", 1.0f)}}));
}

}  // namespace

std::vector<GradientRule> sampling_rules() {
  return {
      {"MaxRoiPool", max_roi_pool_gradient},
      {"RoiAlign", roi_align_gradient},
      {"DeformConv", deform_conv_gradient, Trait::kNone, "", deform_conv_obstacle},
      {"GridSample", grid_sample_gradient, Trait::kNone, "", unknown_rank},
  };
}

}  // namespace onnx_train
