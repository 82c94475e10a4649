// Weight gradient of a convolution with channels-last images by im2col, as one matrix product:
//
//   dw[o, (c, tap)] = Σ over windows of dy[window, o] patches[window, (c, tap)].
//
// A row of `patches` holds the inputs of one window, with zeros for padding. Where every window reads exactly one
// position (1x1, stride 1), x itself is that matrix and nothing is copied. Otherwise a block of images is processed at
// a time, to bound the memory for patches.
//
// On machines with AMX, oneDNN's matrix product is several times as fast as its weight gradient for small images.
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cpu/convolution/channel_sums.h"
#include "kernels/cpu/convolution/convolutions.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/geometry/windows.h"
#include "kernels/place.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kElementsAtOnce = 1 << 23;  // elements of patches in a block of images

// 1x1 windows with stride 1 and no padding: the windows are the rows of x.
bool reads_rows(const WindowGeometry& g) {
  return taps(g) == 1 && std::all_of(g.begin(), g.end(), [](const WindowAxis& axis) {
           return axis.in == axis.out && axis.stride == 1 && axis.begin == 0;
         });
}

class WgradIm2col {
 public:
  WgradIm2col(const Convolution& c, const WeightGradient& f)
      : f_(f),
        geometry_(make_geometry(c.windows, c.x, c.y)),
        in_channels_(c.in_channels()),
        out_channels_(c.out_channels()),
        batch_(c.batch()),
        images_(c.batch()),
        copies_(!reads_rows(geometry_)) {
    for (int64_t p = 0; copies_ && p < out_spatial_size(geometry_); ++p) {
      for (int64_t tap = 0; tap < taps(geometry_); ++tap) elements_.push_back(element_of(geometry_, p, tap));
    }
    if (copies_) images_ = std::min(batch_, kElementsAtOnce / (out_spatial_size(geometry_) * columns()));
    size_t scratch = 0;
    for (int64_t image = 0; image < batch_; image += images_) {
      products_.emplace_back(GemmShape{.m = out_channels_,
                                       .n = columns(),
                                       .k = std::min(images_, batch_ - image) * out_spatial_size(geometry_),
                                       .a_row = 1,
                                       .a_column = out_channels_,
                                       .b_row = columns(),
                                       .y_row = columns(),
                                       .accumulate = image > 0});
      scratch = std::max(scratch, products_.back().scratch_bytes());
    }
    scratch_ = workspace_.reserve(scratch);
    const int64_t copied = copies_ ? images_ * out_spatial_size(geometry_) * columns() : 0;
    patches_ = workspace_.reserve(static_cast<size_t>(copied) * sizeof(BFloat16));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    const BFloat16 *x = launch.in<BFloat16>(f_.x), *dy = launch.in<BFloat16>(f_.dy);
    BFloat16* patches = static_cast<BFloat16*>(address(patches_, launch));
    int64_t image = 0;
    for (Gemm<BFloat16>& product : products_) {
      const BFloat16* first = x + image * in_spatial_size(geometry_) * in_channels_;
      if (copies_) copy(first, std::min(images_, batch_ - image), patches);
      product.run(dy + image * out_spatial_size(geometry_) * out_channels_, copies_ ? patches : first,
                  launch.out<float>(), address(scratch_, launch));
      image += images_;
    }
    if (f_.bias) add_up_channels(dy, batch_ * out_spatial_size(geometry_), out_channels_, launch.out<float>(1));
  }

 private:
  int64_t columns() const { return in_channels_ * taps(geometry_); }

  void copy(const BFloat16* x, int64_t images, BFloat16* patches) const {
    const int64_t spatial_size = out_spatial_size(geometry_), num_taps = taps(geometry_);
    parallel_for(images * spatial_size, std::max<int64_t>(1, kElementGrain / columns()), [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        const BFloat16* image = x + row / spatial_size * in_spatial_size(geometry_) * in_channels_;
        const int64_t* element = elements_.data() + row % spatial_size * num_taps;
        for (int64_t tap = 0; tap < num_taps; ++tap) {
          const BFloat16* from = element[tap] < 0 ? nullptr : image + element[tap] * in_channels_;
          BFloat16* to = patches + row * columns() + tap;
          for (int64_t c = 0; c < in_channels_; ++c) to[c * num_taps] = from ? from[c] : BFloat16();
        }
      }
    });
  }

  WeightGradient f_;
  WindowGeometry geometry_;
  int64_t in_channels_, out_channels_, batch_;
  int64_t images_;  // images in a block
  bool copies_;
  std::vector<int64_t> elements_;  // input position of each window and tap; -1 in the padding
  std::vector<Gemm<BFloat16>> products_;
  Workspace workspace_;
  OperandPlace scratch_, patches_;
};

}  // namespace

bool supports_wgrad_im2col(const Convolution& c) {
  if (isa() < Isa::kAmx || c.operands != DType::kBFloat16 || !c.channels_last || c.group > 1) return false;
  const WindowGeometry geometry = make_geometry(c.windows, c.x, c.y);
  return reads_rows(geometry) || out_spatial_size(geometry) * c.in_channels() * taps(geometry) <= kElementsAtOnce;
}

bool prefers_wgrad_im2col(const Convolution& c) {
  if (!supports_wgrad_im2col(c)) return false;
  constexpr int64_t kFewWindows = 64;  // windows of an image: with more, oneDNN's weight gradient is as fast
  const WindowGeometry geometry = make_geometry(c.windows, c.x, c.y);
  return reads_rows(geometry) || out_spatial_size(geometry) <= kFewWindows;
}

Prepared prepare_wgrad_im2col(const Convolution& c, const WeightGradient& f) {
  const auto patches = std::make_shared<WgradIm2col>(c, f);
  return {[patches](const Launch& launch) { patches->run(launch); }, patches->workspace(), {}};
}

}  // namespace onnx_train::cpu
