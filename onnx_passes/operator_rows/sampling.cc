// Operators that interpolate images at points, or take regions of them. N images, C channels, S... sizes of the image,
// P... points, whose coordinates are the last axis, the innermost axis of the image first.
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

namespace {

using enum ElementTypes;

#define AXES " where 1 <= #S <= 3"
constexpr const char* kGridSample = "x[N, C, S...] grid[N, P..., #S] -> y[N, C, P...]" AXES;
constexpr const char* kSample = "x[N, C, S...] points[N, P..., #S] -> y[N, C, P...]" AXES;
constexpr const char* kSampleGradInput =
    "dy[N, C, P...] points[N, P..., #S] x_shape:int64[#S + 2] -> dx[N, C, S...]" AXES;
constexpr const char* kSampleGradPoints =
    "dy[N, C, P...] x[N, C, S...] points[N, P..., #S] -> dpoints[N, P..., #S]" AXES;
constexpr const char* kAffineGrid =
    "theta[N, R, R + 1] size:int64[R + 2] -> grid[N, O..., R] where 2 <= R <= 3, #O = R";
#define SIZES ", 1 <= @output_height:1 <= 4096, 1 <= @output_width:1 <= 4096, @sampling_ratio:0 <= 4096"
constexpr const char* kRoiAlign =
    "x[N, C, H, W] rois[R, 4] batch_indices:int64[R] -> y[R, C, P, Q] where P = @output_height:1, Q = "
    "@output_width:1" SIZES;
constexpr const char* kRoiAlignGrad =
    "dy[R, C, P, Q] rois[R, 4] batch_indices:int64[R] x_shape:int64[4] -> dx[N, C, H, W] where @sampling_ratio:0 <= "
    "4096";
constexpr const char* kRoiAlignMaxGrad =
    "dy[R, C, P, Q] x[N, C, H, W] rois[R, 4] batch_indices:int64[R] -> dx[N, C, H, W] where @sampling_ratio:0 <= 4096";
constexpr const char* kMaxRoiPool = "x[N, C, H, W] rois[R, 5] @pooled_shape[2] -> y[R, C, P, Q]";
constexpr const char* kMaxRoiPoolGrad = "dy[R, C, P, Q] x[N, C, H, W] rois[R, 5] -> dx[N, C, H, W]";
constexpr const char* kNonMaxSuppression =
    "boxes[B, N, 4] scores[B, C, N] most?:int64[] overlap?[] least?[] -> selected:int64[_, 3]";
constexpr const char* kSelectBoxes =
    "boxes[B, N, 4] scores[B, C, N] most:int64[] overlap[] least[] -> order:int64[B, C, N]";
#undef SIZES
#undef AXES

void check_word(const Node& node, const char* name, const char* otherwise, std::initializer_list<const char*> words) {
  const std::string found = node.attr(name, otherwise);
  std::string list;
  for (const char* word : words) {
    if (found == word) return;
    list += concat(list.empty() ? "" : ", ", word);
  }
  fail(node.label(), ": ", name, " is '", found, "'; it must be one of ", list);
}

void check_sampling(const Node& node) {
  check_word(node, "mode", "linear", {"linear", "nearest", "cubic"});
  check_word(node, "padding_mode", "zeros", {"zeros", "border", "reflection"});
}

void check_regions(const Node& node) {
  check_word(node, "mode", "avg", {"avg", "max"});
  check_word(node, "coordinate_transformation_mode", "half_pixel", {"half_pixel", "output_half_pixel"});
}

void check_pooled_shape(const Node& node) {
  const Shape bins = node.attr("pooled_shape", Shape{1, 1});
  for (size_t i = 0; i < 2; ++i) {
    if (bins[i] < 1 || bins[i] > 4096)
      fail(node.label(), ": its pooled_shape is ", to_string(bins), "; sizes are 1 to 4096");
    const Value* y = node.output();
    if (!y || !y->has_rank() || y->rank() != 4) continue;
    const Dim found = (*y->type().dims)[i + 2];
    if (found.known() && found.value() != bins[i])
      fail(node.label(), ": its output is ", to_string(y->type()), "; its pooled_shape is ", to_string(bins));
  }
}

}  // namespace

std::vector<Operator> sampling_operators() {
  return {
      {"AffineGrid", kAffineGrid},
      Operator{"GridSample", kGridSample, "", kOfSchema, check_sampling},
      Operator{"SampleImage", kSample, kDomain, kOneFloat, check_sampling},
      Operator{"SampleImageGradInput", kSampleGradInput, kDomain, kOneFloat, check_sampling},
      Operator{"SampleImageGradPoints", kSampleGradPoints, kDomain, kOneFloat, check_sampling},
      Operator{"RoiAlign", kRoiAlign, "", kOfSchema, check_regions},
      Operator{"RoiAlignGrad", kRoiAlignGrad, kDomain, kOneFloat},
      Operator{"RoiAlignMaxGrad", kRoiAlignMaxGrad, kDomain, kOneFloat},
      {"NonMaxSuppression", kNonMaxSuppression},
      Operator{"SelectBoxes", kSelectBoxes, kDomain, kOneFloat},
      Operator{"MaxRoiPool", kMaxRoiPool, "", kOfSchema, check_pooled_shape},
      Operator{"MaxRoiPoolGrad", kMaxRoiPoolGrad, kDomain, kOneFloat},
  };
}

}  // namespace onnx_train
