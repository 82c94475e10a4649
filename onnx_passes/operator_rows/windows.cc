// Convolutions and pools, with channels after the batch or last. N images, C channels in, M out, S... sizes of the
// image that windows read, O... how many windows there are, K... taps.
#include "onnx_passes/operators/windows.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/multiply_adds.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

using enum ElementTypes;
constexpr auto kProduct = OperatorKind::kProduct;

#define RANK "#O = #S, 1 <= #S <= 3"
#define WEIGHT "w[M, C / @group:1, K...]"
#define GROUPS ", #K = #S, 0 <= M / @group:1"
// The two layouts of an operator in our domain.
#define FIRST ", @channels_last:0 = 0 | "
#define LAST ", @channels_last:0 = 1"
#define CONV "x[N, C, S...] " WEIGHT " bias?[M] -> y[N, M, O...] where " RANK GROUPS
constexpr const char* kConv = CONV;
constexpr const char* kOurConv =
    CONV FIRST "x[N, S..., C] " WEIGHT " bias?[M] -> y[N, O..., M] where " RANK GROUPS LAST;
constexpr const char* kGradInput =
    "dy[N, M, O...] " WEIGHT " x_shape:int64[#S + 2] -> dx[N, C, S...] where " RANK GROUPS FIRST
    "dy[N, O..., M] " WEIGHT " x_shape:int64[#S + 2] -> dx[N, S..., C] where " RANK GROUPS LAST;
constexpr const char* kGradWeight =
    "x[N, C, S...] dy[N, M, O...] w_shape:int64[#S + 2] -> d" WEIGHT " db?[M] where " RANK GROUPS FIRST
    "x[N, S..., C] dy[N, O..., M] w_shape:int64[#S + 2] -> d" WEIGHT " db?[M] where " RANK GROUPS LAST;
constexpr const char* kConvTranspose =
    "x[N, C, O...] w[C, M, K...] bias?[M * @group:1] -> y[N, M * @group:1, S...] where " RANK
    ", #K = #S, 0 <= C / @group:1";

constexpr const char* kDeformable =
    "x[N, C, S...] " WEIGHT " offset[N, _, O...] bias?[M] mask?[N, _, O...] -> y[N, M, O...] where " RANK GROUPS
    ", 1 <= @offset_group:1, 0 <= C / @offset_group:1";

#define POOL "x[N, C, S...] -> y[N, C, O...] indices?:int64[N, C, O...] where " RANK
constexpr const char* kPool = POOL;
constexpr const char* kOurPool = POOL FIRST "x[N, S..., C] -> y[N, O..., C] where " RANK LAST;
constexpr const char* kUnpool =
    "x[N, C, O...] indices:int64[N, C, O...] output_shape?:int64[#O + 2] -> y[_, _, S...] where " RANK;
constexpr const char* kColumns =
    "x[N, _, _] image_shape:int64[#S] block_shape:int64[#S] -> y[N, _, S...] where 1 <= #S <= 3";
constexpr const char* kGlobal = "x[N, C, S...] -> y[N, C, O...] where " RANK;
constexpr const char* kMaxGrad = "dy[N, C, O...] x[N, C, S...] -> dx[N, C, S...] where " RANK FIRST
                                 "dy[N, O..., C] x[N, S..., C] -> dx[N, S..., C] where " RANK LAST;
constexpr const char* kAverageGrad = "dy[N, C, O...] x_shape:int64[#S + 2] -> dx[N, C, S...] where " RANK FIRST
                                     "dy[N, O..., C] x_shape:int64[#S + 2] -> dx[N, S..., C] where " RANK LAST;
#undef RANK
#undef WEIGHT
#undef GROUPS
#undef FIRST
#undef LAST
#undef CONV
#undef POOL

// The input or output of a node that is the image read by windows, the one with an element per window, and the one with
// the taps. Outputs are counted down from -1.
struct Roles {
  int image, windows, taps;
};

constexpr int kNoTaps = 99;  // a pool: the kernel size is the attribute kernel_shape

const Value* at(const Node& node, int place) { return place < 0 ? node.output(-1 - place) : node.input(place); }

// The spatial sizes; empty if they are not all known.
Shape sizes_of(const Value* value, bool channels_last) {
  if (!value || !value->type().is_static() || value->rank() < 3) return {};
  const Shape shape = value->type().shape();
  return channels_last ? Shape(shape.begin() + 1, shape.end() - 1) : Shape(shape.begin() + 2, shape.end());
}

// Upper bound: kernels count taps and the distances between them in 64 bits, and no image is this large.
constexpr int64_t kMostTaps = int64_t{1} << 31;

int64_t taps_of(const Node& node, const Shape& kernel) {
  int64_t taps = 1;
  for (int64_t size : kernel) {
    if (__builtin_mul_overflow(taps, size, &taps) || taps > kMostTaps)
      fail(node.label(), ": a window of ", to_string(kernel), " elements is too large");
  }
  return taps;
}

// The number of windows that fit; with ceil_mode possibly one more along an axis.
void check_counts(const Node& node, const Windows& w, const Shape& image, const Shape& windows) {
  const int64_t more = node.attr("ceil_mode", int64_t{0}) != 0 ? 1 : 0;
  const Shape counts = w.counts(image);
  for (size_t i = 0; i < windows.size(); ++i) {
    if (windows[i] < counts[i] || windows[i] > counts[i] + more)
      fail(node.label(), ": ", windows[i], " windows on spatial axis ", i, " of size ", image[i],
           ", where a kernel of ", w.kernel[i], " with dilation ", w.dilations[i], ", stride ", w.strides[i],
           " and padding ", w.pads_begin[i], " and ", w.pads_end[i], " makes ", counts[i]);
  }
}

void check_windows(const Node& node, const Roles& roles) {
  const Shape image = sizes_of(at(node, roles.image), is_channels_last(node));
  const Shape windows = sizes_of(at(node, roles.windows), is_channels_last(node));
  auto w = find_windows(node);
  if (!w || image.empty() || windows.size() != image.size() || w->kernel.size() != image.size()) return;
  if (roles.taps != kNoTaps) {
    const Shape taps = sizes_of(at(node, roles.taps), false);
    if (taps.size() != image.size()) return;
    w->kernel = taps;
  }
  if (taps_of(node, w->kernel) == 0) return;
  check_counts(node, *w, image, windows);
}

void check_attributes(const Node& node) { find_windows(node); }

template <int image, int windows, int taps>
void check(const Node& node) {
  check_windows(node, {image, windows, taps});
}

// Offsets are [N, groups taps axes, O...], the mask is [N, groups taps, O...].
void check_deformable(const Node& node) {
  const Value *x = node.input(0), *offset = node.input(2);
  if (offset && offset->type().is_static() && x->has_rank()) check_windows(node, {0, 2, 1});
  const auto w = find_windows(node);
  if (!w) return;
  const int64_t taps = taps_of(node, w->kernel), groups = node.attr("offset_group", 1);
  for (const auto& [place, per_tap] : {std::pair(2, static_cast<int64_t>(w->kernel.size())), {4, int64_t{1}}}) {
    const Value* input = node.input(place);
    if (!input || !input->has_rank() || input->rank() < 2) continue;
    const Dim found = (*input->type().dims)[1];
    int64_t wanted = 0;
    if (__builtin_mul_overflow(taps * per_tap, groups, &wanted) || (found.known() && found.value() != wanted))
      fail(node.label(), ": ", place == 2 ? "offset" : "mask", " has ", found.value(), " channels; ", groups,
           " groups of ", taps, " taps", place == 2 ? ", with an offset along each axis," : "", " need another number");
  }
}

}  // namespace

std::vector<Operator> window_operators() {
  return {
      Operator{"Conv", kConv, "", kOfSchema, check<0, -1, 1>, kProduct}
          .shared_along("NM", "C")
          .narrow({0, 1}, {0})
          .in_precision(PrecisionRole::kProduct)
          .weights_at({1, 2})
          .counting(multiply_adds_of_conv)
          .on_images(ImageRole::kConvolution),
      Operator{"Conv", kOurConv, kDomain, kOneFloat, check<0, -1, 1>, kProduct}
          .shared_along("NM", "C")
          .narrow({0, 1}, {0})
          .counting(multiply_adds_of_conv)
          .on_images(ImageRole::kConvolution),
      Operator{"ConvGradInput", kGradInput, kDomain, kOneFloat, check<-1, 0, 1>, kProduct}
          .shared_along("NC", "M")
          .narrow({0, 1}, {0})
          .counting(multiply_adds_of_transposed_conv)
          .on_images(ImageRole::kConvolution),
      Operator{"ConvGradWeight", kGradWeight, kDomain, kOneFloat, check<0, 1, -1>, kProduct}
          .shared_along("MC", "N")
          .narrow({0, 1}, {0})
          .counting(multiply_adds_of_weight_gradient)
          .on_images(ImageRole::kConvolution, {0, 1}, {}),
      Operator{"DeformConv", kDeformable, "", kOfSchema, check_deformable}.weights_at({1, 3}),
      Operator{"CausalConvWithState", "x w bias? past_state? -> y present_state?"}.weights_at({1, 2}),
      Operator{"ConvTranspose", kConvTranspose, "", kOfSchema, check_attributes}
          .shared_along("NM", "C")
          .in_precision(PrecisionRole::kProduct)
          .weights_at({1, 2})
          .counting(multiply_adds_of_transposed_conv)
          .on_images(ImageRole::kTransposed),

      Operator{"MaxPool", kPool, "", kOfSchema, check<0, -1, kNoTaps>}
          .shared_along("NC")
          .narrow({0}, {0})
          .in_precision(PrecisionRole::kActivation)
          .on_images(ImageRole::kPool),
      Operator{"MaxPool", kOurPool, kDomain, kOneFloat, check<0, -1, kNoTaps>}
          .shared_along("NC")
          .narrow({0}, {0})
          .on_images(ImageRole::kPool),
      Operator{"MaxPoolGrad", kMaxGrad, kDomain, kOneFloat, check<1, 0, kNoTaps>}
          .shared_along("NC")
          .narrow({0, 1}, {0})
          .on_images(ImageRole::kPool, {0, 1}),
      Operator{"AveragePool", kPool, "", kOfSchema, check<0, -1, kNoTaps>}
          .shared_along("NC")
          .narrow({0}, {0})
          .in_precision(PrecisionRole::kActivation)
          .on_images(ImageRole::kPool),
      Operator{"AveragePool", kOurPool, kDomain, kOneFloat, check<0, -1, kNoTaps>}
          .shared_along("NC")
          .narrow({0}, {0})
          .on_images(ImageRole::kPool),
      Operator{"AveragePoolGrad", kAverageGrad, kDomain, kOneFloat}
          .shared_along("NC")
          .narrow({0}, {0})
          .counting(no_multiply_adds)
          .on_images(ImageRole::kPool),
      {"MaxUnpool", kUnpool},
      {"Col2Im", kColumns},
      Operator{"LpPool", kPool, "", kOfSchema, check<0, -1, kNoTaps>}.shared_along("NC"),
      Operator{"GlobalAveragePool", kGlobal}
          .shared_along("NC")
          .narrow({0}, {0})
          .in_precision(PrecisionRole::kActivation)
          .on_images(ImageRole::kGlobalPool),
      {"GlobalLpPool", kGlobal},
      Operator{"GlobalMaxPool", kGlobal}
          .shared_along("NC")
          .narrow({0}, {0})
          .in_precision(PrecisionRole::kActivation)
          .on_images(ImageRole::kGlobalPool),
  };
}

}  // namespace onnx_train
