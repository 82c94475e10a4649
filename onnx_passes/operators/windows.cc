// Convolutions and pools, with channels after the batch or last. N images, C channels in, M out, S... sizes of the
// image that windows read, O... how many windows there are, K... taps.
#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/windows.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr auto kOne = ElementTypes::kOneFloat;
constexpr auto kNarrow = ElementTypes::kNarrow;
constexpr auto kSchema = ElementTypes::kOfSchema;

#define RANK "#O = #S, 1 <= #S <= 3"
#define WEIGHT "w[M, C / @group:1, K...]"
constexpr const char* kConv =
    "x[N, C, S...] " WEIGHT " bias?[M] -> y[N, M, O...] where " RANK ", #K = #S, 0 <= M / @group:1";
constexpr const char* kConvLast =
    "x[N, S..., C] " WEIGHT " bias?[M] -> y[N, O..., M] where " RANK ", #K = #S, 0 <= M / @group:1";
constexpr const char* kGradInput =
    "dy[N, M, O...] " WEIGHT " x_shape:int64[#S + 2] -> dx[N, C, S...] where " RANK ", #K = #S, 0 <= M / @group:1";
constexpr const char* kGradInputLast =
    "dy[N, O..., M] " WEIGHT " x_shape:int64[#S + 2] -> dx[N, S..., C] where " RANK ", #K = #S, 0 <= M / @group:1";
constexpr const char* kGradWeight = "x[N, C, S...] dy[N, M, O...] w_shape:int64[#S + 2] -> d" WEIGHT
                                    " db?[M] where " RANK ", #K = #S, 0 <= M / @group:1";
constexpr const char* kGradWeightLast = "x[N, S..., C] dy[N, O..., M] w_shape:int64[#S + 2] -> d" WEIGHT
                                        " db?[M] where " RANK ", #K = #S, 0 <= M / @group:1";
constexpr const char* kConvTranspose =
    "x[N, C, O...] w[C, M, K...] bias?[M * @group:1] -> y[N, M * @group:1, S...] where " RANK
    ", #K = #S, 0 <= C / @group:1";

constexpr const char* kPool = "x[N, C, S...] -> y[N, C, O...] indices?:int64[N, C, O...] where " RANK;
constexpr const char* kPoolLast = "x[N, S..., C] -> y[N, O..., C] where " RANK;
constexpr const char* kGlobal = "x[N, C, S...] -> y[N, C, O...] where " RANK;
constexpr const char* kMaxGrad = "dy[N, C, O...] x[N, C, S...] -> dx[N, C, S...] where " RANK;
constexpr const char* kMaxGradLast = "dy[N, O..., C] x[N, S..., C] -> dx[N, S..., C] where " RANK;
constexpr const char* kAverageGrad = "dy[N, C, O...] x_shape:int64[#S + 2] -> dx[N, C, S...] where " RANK;
constexpr const char* kAverageGradLast = "dy[N, O..., C] x_shape:int64[#S + 2] -> dx[N, S..., C] where " RANK;
#undef RANK
#undef WEIGHT

// Which input or output of a node is the image that windows read, which has one element for each window, which holds
// the taps. Outputs are counted from -1 down.
struct Roles {
  int image, windows, taps;
  bool channels_last = false;
};

constexpr int kNoTaps = 99;  // a pool: the attribute kernel_shape

const Value* at(const Node& node, int place) { return place < 0 ? node.output(-1 - place) : node.input(place); }

// The spatial sizes; empty when they are not all known.
Shape sizes_of(const Value* value, bool channels_last) {
  if (!value || !value->type().is_static() || value->rank() < 3) return {};
  const Shape shape = value->type().shape();
  return channels_last ? Shape(shape.begin() + 1, shape.end() - 1) : Shape(shape.begin() + 2, shape.end());
}

// Kernels count taps and the elements between them in 64 bits; no image is as large as this.
constexpr int64_t kMostTaps = int64_t{1} << 31;

int64_t taps_of(const Node& node, const Shape& kernel) {
  int64_t taps = 1;
  for (int64_t size : kernel) {
    if (__builtin_mul_overflow(taps, size, &taps) || taps > kMostTaps)
      fail(node.label(), ": a window of ", to_string(kernel), " elements is too large");
  }
  return taps;
}

// As many windows as padding, strides and dilations make of the image; one more on an axis with ceil_mode.
void check_counts(const Node& node, const Windows& w, const Shape& image, const Shape& windows) {
  const int64_t more = node.attr("ceil_mode", int64_t{0}) != 0 ? 1 : 0;
  for (size_t i = 0; i < windows.size(); ++i) {
    const int64_t extent = (w.kernel[i] - 1) * w.dilations[i] + 1;
    const int64_t room = image[i] + w.pads_begin[i] + w.pads_end[i] - extent;
    const int64_t count = room < 0 ? 0 : room / w.strides[i] + 1;
    if (windows[i] < count || windows[i] > count + more)
      fail(node.label(), ": ", windows[i], " windows on spatial axis ", i, " of size ", image[i],
           ", where a kernel of ", w.kernel[i], " with dilation ", w.dilations[i], ", stride ", w.strides[i],
           " and padding ", w.pads_begin[i], " and ", w.pads_end[i], " makes ", count);
  }
}

void check_windows(const Node& node, const Roles& roles) {
  const Shape image = sizes_of(at(node, roles.image), roles.channels_last);
  const Shape windows = sizes_of(at(node, roles.windows), roles.channels_last);
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

template <int image, int windows, int taps, bool channels_last = false>
void check(const Node& node) {
  check_windows(node, {image, windows, taps, channels_last});
}

}  // namespace

std::vector<Operator> window_operators() {
  return {
      {"Conv", kConv, "", kSchema, check<0, -1, 1>},
      {"ConvGradInput", kGradInput, kDomain, kOne, check<-1, 0, 1>},
      {"ConvGradWeight", kGradWeight, kDomain, kOne, check<0, 1, -1>},
      {"ConvTranspose", kConvTranspose, "", kSchema, check_attributes},
      {"ChannelsLastConv", kConvLast, kDomain, kOne, check<0, -1, 1, true>},
      {"ChannelsLastConvGradInput", kGradInputLast, kDomain, kOne, check<-1, 0, 1, true>},
      {"ChannelsLastConvGradWeight", kGradWeightLast, kDomain, kOne, check<0, 1, -1, true>},
      {"Bfloat16Conv", kConv, kDomain, kNarrow, check<0, -1, 1>},
      {"Bfloat16ConvGradInput", kGradInput, kDomain, kNarrow, check<-1, 0, 1>},
      {"Bfloat16ConvGradWeight", kGradWeight, kDomain, kNarrow, check<0, 1, -1>},
      {"Bfloat16ChannelsLastConv", kConvLast, kDomain, kNarrow, check<0, -1, 1, true>},
      {"Bfloat16ChannelsLastConvGradInput", kGradInputLast, kDomain, kNarrow, check<-1, 0, 1, true>},
      {"Bfloat16ChannelsLastConvGradWeight", kGradWeightLast, kDomain, kNarrow, check<0, 1, -1, true>},

      {"MaxPool", kPool, "", kSchema, check<0, -1, kNoTaps>},
      {"AveragePool", kPool, "", kSchema, check<0, -1, kNoTaps>},
      {"LpPool", kPool, "", kSchema, check<0, -1, kNoTaps>},
      {"GlobalAveragePool", kGlobal},
      {"GlobalMaxPool", kGlobal},
      {"MaxPoolGrad", kMaxGrad, kDomain, kOne, check<1, 0, kNoTaps>},
      {"AveragePoolGrad", kAverageGrad, kDomain, kOne},
      {"ChannelsLastMaxPool", kPoolLast, kDomain, kOne},
      {"ChannelsLastMaxPoolGrad", kMaxGradLast, kDomain, kOne},
      {"ChannelsLastAveragePool", kPoolLast, kDomain, kOne},
      {"ChannelsLastAveragePoolGrad", kAverageGradLast, kDomain, kOne},
      {"Bfloat16MaxPool", kPool, kDomain, kNarrow, check<0, -1, kNoTaps>},
      {"Bfloat16MaxPoolGrad", kMaxGrad, kDomain, kNarrow, check<1, 0, kNoTaps>},
      {"Bfloat16AveragePool", kPool, kDomain, kNarrow, check<0, -1, kNoTaps>},
      {"Bfloat16AveragePoolGrad", kAverageGrad, kDomain, kNarrow},
      {"Bfloat16GlobalAveragePool", kGlobal, kDomain, kNarrow},
      {"Bfloat16GlobalMaxPool", kGlobal, kDomain, kNarrow},
      {"Bfloat16ChannelsLastMaxPool", kPoolLast, kDomain, kNarrow},
      {"Bfloat16ChannelsLastMaxPoolGrad", kMaxGradLast, kDomain, kNarrow},
      {"Bfloat16ChannelsLastAveragePool", kPoolLast, kDomain, kNarrow},
      {"Bfloat16ChannelsLastAveragePoolGrad", kAverageGradLast, kDomain, kNarrow},
  };
}

}  // namespace onnx_train
