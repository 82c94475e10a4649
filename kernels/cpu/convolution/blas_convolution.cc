// Convolutions of channels-last float32 images by im2col and BLAS. The rows of a matrix of patches are windows: the
// inputs of a window, tap after tap, with zeros for padding. With the weights as w[(tap, c), o], for each group
//
//   y = patches w,    patches = dy wᵀ added up in dx,    dw = patchesᵀ dy.
//
// A block of windows is processed at a time, to bound the memory for patches: whole images, or a part of one.
#include <algorithm>
#include <memory>

#include "kernels/cpu/convolution/channel_sums.h"
#include "kernels/cpu/convolution/convolutions.h"
#include "kernels/cpu/products/blas.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/geometry/windows.h"
#include "kernels/place.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kElementsAtOnce = 1 << 18;  // of patches in a block, which a cache holds

class BlasConvolution {
 public:
  BlasConvolution(const NodeSpec& spec, const Convolution& c)
      : geometry_(make_geometry(c.windows, c.x, c.y)),
        batch_(c.batch()),
        groups_(c.group),
        in_channels_(c.in_channels()),
        out_channels_(c.out_channels()),
        taps_(taps(geometry_)),
        windows_(out_spatial_size(geometry_)) {
    const int64_t at_once = std::max<int64_t>(1, kElementsAtOnce / columns());
    images_ = std::clamp<int64_t>(at_once / windows_, 1, batch_);
    windows_at_once_ = std::min(windows_, at_once);
    if (std::max({columns(), out_channels_ * groups_, images_ * windows_}) > kMostOfBlas)
      fail(spec.node().label(), ": a dimension is larger than BLAS can count");
    patches_ = workspace_.reserve(static_cast<size_t>(images_ * windows_at_once_ * columns()) * sizeof(float));
    weights_ = workspace_.reserve(static_cast<size_t>(groups_ * columns() * out_channels_) * sizeof(float));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch, const Forward& f) const {
    const float* const bias = f.bias < 0 ? nullptr : launch.in<float>(f.bias);
    float *const patches = in_workspace(patches_, launch), *const w = in_workspace(weights_, launch);
    read_weights(launch.in<float>(f.w), w);
    for_each_block([&](const Block& b) {
      float* const y = launch.out<float>() + b.first * y_row();
      if (bias) fill(b.windows, bias, y);
      for (int64_t g = 0; g < groups_; ++g) {
        gather(b, launch.in<float>(f.x) + g * in_channels_, patches);
        multiply_by_blas({.m = b.windows,
                          .n = out_channels_,
                          .k = columns(),
                          .a_row = columns(),
                          .b_row = out_channels_,
                          .y_row = y_row(),
                          .accumulate = bias != nullptr},
                         1, patches, w + g * columns() * out_channels_, y + g * out_channels_);
      }
    });
  }

  void run(const Launch& launch, const InputGradient& f) const {
    float *const patches = in_workspace(patches_, launch), *const w = in_workspace(weights_, launch);
    read_weights(launch.in<float>(f.w), w);
    const int64_t elements = batch_ * in_spatial_size(geometry_) * x_row();
    parallel_for(elements, kElementGrain,
                 [&](int64_t i, int64_t end) { std::fill(launch.out<float>() + i, launch.out<float>() + end, 0.0F); });
    for_each_block([&](const Block& b) {
      for (int64_t g = 0; g < groups_; ++g) {
        multiply_by_blas({.m = b.windows,
                          .n = columns(),
                          .k = out_channels_,
                          .a_row = y_row(),
                          .b_row = 1,
                          .b_column = out_channels_,
                          .y_row = columns()},
                         1, launch.in<float>(f.dy) + b.first * y_row() + g * out_channels_,
                         w + g * columns() * out_channels_, patches);
        scatter(b, patches, launch.out<float>() + g * in_channels_);
      }
    });
  }

  void run(const Launch& launch, const WeightGradient& f) const {
    float *const patches = in_workspace(patches_, launch), *const dw = in_workspace(weights_, launch);
    const auto* const dy = launch.in<float>(f.dy);
    for_each_block([&](const Block& b) {
      for (int64_t g = 0; g < groups_; ++g) {
        gather(b, launch.in<float>(f.x) + g * in_channels_, patches);
        multiply_by_blas({.m = columns(),
                          .n = out_channels_,
                          .k = b.windows,
                          .a_row = 1,
                          .a_column = columns(),
                          .b_row = y_row(),
                          .y_row = out_channels_,
                          .accumulate = b.first > 0},
                         1, patches, dy + b.first * y_row() + g * out_channels_, dw + g * columns() * out_channels_);
      }
    });
    write_weights(dw, launch.out<float>());
    if (f.bias) add_up_channels(dy, batch_ * windows_, y_row(), launch.out<float>(1));
  }

 private:
  // Windows [first, first + windows) of all that the batch has: of images that are whole, or of one.
  struct Block {
    int64_t first, windows;
  };

  int64_t columns() const { return taps_ * in_channels_; }
  int64_t x_row() const { return groups_ * in_channels_; }
  int64_t y_row() const { return groups_ * out_channels_; }
  static float* in_workspace(const OperandPlace& place, const Launch& launch) {
    return static_cast<float*>(address(place, launch));
  }

  template <typename F>
  void for_each_block(const F& f) const {
    for (int64_t image = 0; image < batch_; image += images_) {
      const int64_t first = image * windows_, end = std::min(image + images_, batch_) * windows_,
                    step = images_ > 1 ? end - first : windows_at_once_;
      for (int64_t window = first; window < end; window += step) f(Block{window, std::min(step, end - window)});
    }
  }

  // Calls f(row of patches, the input it stands for) for each tap of windows [begin, end) of the block, in their order.
  // An input is the offset of its channels in x, -1 in the padding.
  template <typename F>
  void for_each_tap(const Block& b, int64_t begin, int64_t end, const F& f) const {
    const WindowGeometry& g = geometry_;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t window = (b.first + row) % windows_, image = (b.first + row) / windows_;
      const int64_t o[3] = {window / (g[1].out * g[2].out), window / g[2].out % g[1].out, window % g[2].out};
      int64_t at = row * taps_;
      for (int64_t i = 0; i < g[0].kernel; ++i) {
        const int64_t z = g[0].at(o[0], i);
        for (int64_t j = 0; j < g[1].kernel; ++j) {
          const int64_t y = g[1].at(o[1], j), line = ((image * g[0].in + z) * g[1].in + y) * g[2].in;
          const bool is_there = z >= 0 && z < g[0].in && y >= 0 && y < g[1].in;
          for (int64_t k = 0; k < g[2].kernel; ++k, ++at) {
            const int64_t x = g[2].at(o[2], k);
            f(at, is_there && x >= 0 && x < g[2].in ? (line + x) * x_row() : -1);
          }
        }
      }
    }
  }

  void gather(const Block& b, const float* x, float* patches) const {
    parallel_for(b.windows, std::max<int64_t>(1, kElementGrain / columns()), [&](int64_t begin, int64_t end) {
      for_each_tap(b, begin, end, [&](int64_t at, int64_t input) {
        float* const to = patches + at * in_channels_;
        if (input < 0) {
          std::fill_n(to, in_channels_, 0.0F);
        } else {
          std::copy_n(x + input, in_channels_, to);
        }
      });
    });
  }

  // Each image is added up by one thread; a part of one by ranges of channels. So the order of sums is the windows'.
  void scatter(const Block& b, const float* patches, float* dx) const {
    const auto add = [&](int64_t begin, int64_t end, int64_t channel, int64_t last) {
      for_each_tap(b, begin, end, [&](int64_t at, int64_t input) {
        if (input < 0) return;
        const float* const from = patches + at * in_channels_;
        float* const to = dx + input;
        for (int64_t c = channel; c < last; ++c) to[c] += from[c];
      });
    };
    if (images_ > 1) {
      parallel_for(b.windows / windows_, 1,
                   [&](int64_t image, int64_t end) { add(image * windows_, end * windows_, 0, in_channels_); });
    } else {
      parallel_for(in_channels_, 16, [&](int64_t channel, int64_t end) { add(0, b.windows, channel, end); });
    }
  }

  void fill(int64_t windows, const float* bias, float* y) const {
    parallel_for(windows, std::max<int64_t>(1, kElementGrain / y_row()), [&](int64_t i, int64_t end) {
      for (; i < end; ++i) std::copy_n(bias, y_row(), y + i * y_row());
    });
  }

  // Calls f(element of ONNX's order [group o, c, tap], element of [group, (tap, c), o]).
  template <typename F>
  void for_each_weight(const F& f) const {
    parallel_for(groups_ * out_channels_, std::max<int64_t>(1, kElementGrain / columns()), [&](int64_t o, int64_t end) {
      for (; o < end; ++o) {
        const int64_t of_group = o / out_channels_ * columns() * out_channels_ + o % out_channels_;
        for (int64_t c = 0; c < in_channels_; ++c) {
          for (int64_t tap = 0; tap < taps_; ++tap)
            f(o * columns() + c * taps_ + tap, of_group + (tap * in_channels_ + c) * out_channels_);
        }
      }
    });
  }
  void read_weights(const float* given, float* w) const {
    for_each_weight([&](int64_t of_onnx, int64_t ours) { w[ours] = given[of_onnx]; });
  }
  void write_weights(const float* dw, float* result) const {
    for_each_weight([&](int64_t of_onnx, int64_t ours) { result[of_onnx] = dw[ours]; });
  }

  WindowGeometry geometry_;
  int64_t batch_, groups_, in_channels_, out_channels_;  // channels in one group
  int64_t taps_, windows_;                               // windows of an image
  int64_t images_, windows_at_once_;                     // in a block
  Workspace workspace_;
  OperandPlace patches_, weights_;
};

template <typename Direction>
Prepared prepare_direction(const NodeSpec& spec, const Convolution& c, const Direction& direction) {
  const auto convolution = std::make_shared<const BlasConvolution>(spec, c);
  return {[=](const Launch& launch) { convolution->run(launch, direction); }, convolution->workspace(), {}};
}

}  // namespace

Prepared prepare_blas(const NodeSpec& spec, const Convolution& c, const Forward& f) {
  return prepare_direction(spec, c, f);
}
Prepared prepare_blas(const NodeSpec& spec, const Convolution& c, const InputGradient& f) {
  return prepare_direction(spec, c, f);
}
Prepared prepare_blas(const NodeSpec& spec, const Convolution& c, const WeightGradient& f) {
  return prepare_direction(spec, c, f);
}

}  // namespace onnx_train::cpu
