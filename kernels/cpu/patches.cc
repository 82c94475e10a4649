// The weight gradient of a convolution whose images lie channels last as a product of matrices,
//
//   dw[o, (c, tap)] = sum over the windows of dy[window, o] patches[window, (c, tap)],
//
// where a row of patches is what one window reads, and zeros where that is padding. Windows of one element read rows of
// x: nothing is copied. Else the images are taken some at a time, so that their patches need little memory.
//
// Where there is AMX, oneDNN multiplies matrices several times as fast as it makes these gradients of small images.
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cpu/channel_sums.h"
#include "kernels/cpu/convolutions.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/windows.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kElementsAtOnce = 1 << 23;  // of patches

// Windows of one element each that together are the image.
bool reads_rows(const Grid& g) {
  return taps(g) == 1 && std::all_of(g.begin(), g.end(), [](const WindowAxis& axis) {
           return axis.in == axis.out && axis.stride == 1 && axis.begin == 0;
         });
}

class Patches {
 public:
  Patches(const Convolution& c, const WeightGradient& f)
      : f_(f),
        grid_(make_grid(c.windows, c.x, c.y)),
        ins_(c.ins()),
        outs_(c.outs()),
        batch_(c.batch()),
        images_(c.batch()),
        copies_(!reads_rows(grid_)) {
    for (int64_t p = 0; copies_ && p < points_out(grid_); ++p) {
      for (int64_t tap = 0; tap < taps(grid_); ++tap) elements_.push_back(element_of(grid_, p, tap));
    }
    if (copies_) images_ = std::min(batch_, kElementsAtOnce / (points_out(grid_) * columns()));
    size_t scratch = 0;
    for (int64_t image = 0; image < batch_; image += images_) {
      products_.emplace_back(GemmShape{.m = outs_,
                                       .n = columns(),
                                       .k = std::min(images_, batch_ - image) * points_out(grid_),
                                       .a_row = 1,
                                       .a_column = outs_,
                                       .b_row = columns(),
                                       .y_row = columns(),
                                       .accumulate = image > 0});
      scratch = std::max(scratch, products_.back().scratch_bytes());
    }
    scratch_ = workspace_.reserve(scratch);
    const int64_t copied = copies_ ? images_ * points_out(grid_) * columns() : 0;
    patches_ = workspace_.reserve(static_cast<size_t>(copied) * sizeof(BFloat16));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    const BFloat16 *x = launch.in<BFloat16>(f_.x), *dy = launch.in<BFloat16>(f_.dy);
    BFloat16* patches = static_cast<BFloat16*>(address(patches_, launch));
    int64_t image = 0;
    for (Gemm<BFloat16>& product : products_) {
      const BFloat16* first = x + image * points_in(grid_) * ins_;
      if (copies_) copy(first, std::min(images_, batch_ - image), patches);
      product.run(dy + image * points_out(grid_) * outs_, copies_ ? patches : first, launch.out<float>(),
                  address(scratch_, launch));
      image += images_;
    }
    if (f_.bias) add_up_channels(dy, batch_ * points_out(grid_), outs_, launch.out<float>(1));
  }

 private:
  int64_t columns() const { return ins_ * taps(grid_); }

  void copy(const BFloat16* x, int64_t images, BFloat16* patches) const {
    const int64_t points = points_out(grid_), num_taps = taps(grid_);
    parallel_for(images * points, std::max<int64_t>(1, kElementGrain / columns()), [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        const BFloat16* image = x + row / points * points_in(grid_) * ins_;
        const int64_t* element = elements_.data() + row % points * num_taps;
        for (int64_t tap = 0; tap < num_taps; ++tap) {
          const BFloat16* from = element[tap] < 0 ? nullptr : image + element[tap] * ins_;
          BFloat16* to = patches + row * columns() + tap;
          for (int64_t c = 0; c < ins_; ++c) to[c * num_taps] = from ? from[c] : BFloat16();
        }
      }
    });
  }

  WeightGradient f_;
  Grid grid_;
  int64_t ins_, outs_, batch_;
  int64_t images_;  // taken at a time
  bool copies_;
  std::vector<int64_t> elements_;  // which each window reads with each tap
  std::vector<Gemm<BFloat16>> products_;
  Workspace workspace_;
  Place scratch_, patches_;
};

}  // namespace

bool takes_patches(const Convolution& c) {
  if (isa() < Isa::kAmx || c.operands != DType::kBFloat16 || !c.channels_last || c.group > 1) return false;
  constexpr int64_t kFewWindows = 64;  // of an image: oneDNN is as fast where there are more
  const Grid grid = make_grid(c.windows, c.x, c.y);
  const int64_t windows = points_out(grid);
  return reads_rows(grid) || (windows <= kFewWindows && windows * c.ins() * taps(grid) <= kElementsAtOnce);
}

Prepared prepare_patches(const Convolution& c, const WeightGradient& f) {
  const auto patches = std::make_shared<Patches>(c, f);
  return {[patches](const Launch& launch) { patches->run(launch); }, patches->workspace(), {}};
}

}  // namespace onnx_train::cpu
