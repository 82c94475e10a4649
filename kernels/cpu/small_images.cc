// A convolution, or its input gradient, of small images that lie channels last, where much of what the windows cover is
// padding: that part is left out. A tile is one element of kRows images at kColumns channels of the output,
//
//   to[image, p, o] = bias[o] + Σ over the taps that meet an element q of `from`, Σ over c of from[image, q, c] w[o,
//   c],
//
// so that the same taps meet something in all of its rows. Weights are packed into panels of kColumns output channels;
// one stays in the L2 cache while all tiles run over it. Threads share the tiles, so that no sum depends on their
// number.
#include <algorithm>
#include <vector>

#include "kernels/cpu/convolutions.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/windows.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kPackedAtOnce = 16;  // input channels: their taps stay in the L1 cache

// A tap that meets an element: where the element's channels start in its image, and the tap's weights in the panel.
struct Meeting {
  int64_t from, weights;
};

// kRows images to read from, and the places to write to; `images` of them are real.
struct Rows {
  const float* from[kRows];
  float* to[kRows];
  int64_t images;
};

ONNX_TRAIN_WIDE_VECTORS void compute_tile(const Meeting* meeting, const Meeting* end, const Rows& rows,
                                          const float* panel, int64_t ins, const float* bias, int64_t columns) {
  Vector sums[kRows][2];
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t v = 0; v < 2; ++v) sums[r][v] = *reinterpret_cast<const Vector*>(bias + v * kLanes);
  }
  for (; meeting < end; ++meeting) {
    const float* from[kRows];
    for (int64_t r = 0; r < kRows; ++r) from[r] = rows.from[r] + meeting->from;
    const float* weights = panel + meeting->weights;
    for (int64_t c = 0; c < ins; ++c, weights += kColumns) {
      const Vector first = *reinterpret_cast<const Vector*>(weights);
      const Vector second = *reinterpret_cast<const Vector*>(weights + kLanes);
      for (int64_t r = 0; r < kRows; ++r) {
        sums[r][0] += first * from[r][c];
        sums[r][1] += second * from[r][c];
      }
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    if (r < rows.images) std::copy_n(reinterpret_cast<const float*>(sums[r]), columns, rows.to[r]);
  }
}

// Which taps meet elements, for each element of the output.
struct Meetings {
  std::vector<Meeting> all;
  std::vector<size_t> starts = {0};

  Meetings(const Grid& g, int64_t ins, bool gradient) {
    const int64_t points = gradient ? points_in(g) : points_out(g);
    for (int64_t p = 0; p < points; ++p) {
      for (int64_t tap = 0; tap < taps(g); ++tap) {
        const int64_t q = gradient ? window_of(g, p, tap) : element_of(g, p, tap);
        if (q >= 0) all.push_back({q * ins, tap * ins * kColumns});
      }
      starts.push_back(all.size());
    }
  }

 private:
  // The element that window p reads with `tap`; -1 in the padding.
  static int64_t element_of(const Grid& g, int64_t p, int64_t tap) {
    int64_t element = 0, size = 1;
    for (size_t i = g.size(); i-- > 0;) {
      const int64_t at = g[i].at(p % g[i].out, tap % g[i].kernel);
      if (at < 0 || at >= g[i].in) return -1;
      element += at * size;
      size *= g[i].in;
      p /= g[i].out;
      tap /= g[i].kernel;
    }
    return element;
  }

  // The window that reads element q with `tap`; -1 when there is none.
  static int64_t window_of(const Grid& g, int64_t q, int64_t tap) {
    int64_t window = 0, size = 1;
    for (size_t i = g.size(); i-- > 0;) {
      const int64_t way = q % g[i].in - g[i].at(0, tap % g[i].kernel);
      if (way < 0 || way % g[i].stride != 0 || way / g[i].stride >= g[i].out) return -1;
      window += way / g[i].stride * size;
      size *= g[i].out;
      q /= g[i].in;
      tap /= g[i].kernel;
    }
    return window;
  }
};

// w[o, c, tap] as panels[output channels / kColumns][tap][input channels][kColumns], zeros behind the last channel.
struct Weights {
  int64_t ins, outs, taps;
  int64_t in_step, out_step;  // elements between neighbouring channels

  Weights(const Convolution& c, bool gradient)
      : ins(gradient ? c.w[0] : c.w[1]), outs(gradient ? c.w[1] : c.w[0]), taps(num_elements(c.windows.kernel)) {
    in_step = gradient ? c.w[1] * taps : taps;
    out_step = gradient ? taps : c.w[1] * taps;
  }
  int64_t panel() const { return taps * ins * kColumns; }

  void pack(const float* w, float* panels) const {
    const int64_t chunks = blocks(ins, kPackedAtOnce);
    parallel_for(blocks(outs, kColumns) * chunks, 1, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) pack_chunk(w, i / chunks, i % chunks * kPackedAtOnce, panels);
    });
  }

 private:
  void pack_chunk(const float* w, int64_t column, int64_t first, float* panels) const {
    const int64_t last = std::min(first + kPackedAtOnce, ins);
    for (int64_t o = 0; o < kColumns; ++o) {
      float* to = panels + column * panel() + o;
      const int64_t out = column * kColumns + o;
      for (int64_t in = first; in < last; ++in) {
        const float* from = w + out * out_step + in * in_step;
        for (int64_t tap = 0; tap < taps; ++tap) to[(tap * ins + in) * kColumns] = out < outs ? from[tap] : 0.0f;
      }
    }
  }
};

class SmallImages {
 public:
  // Inputs of the node: images, weights and, or -1, the bias.
  SmallImages(const Convolution& c, bool gradient, int images, int weights, int bias)
      : images_(images),
        weights_input_(weights),
        bias_(bias),
        batch_(c.batch()),
        weights_(c, gradient),
        meetings_(make_grid(c.windows, c.x, c.y), weights_.ins, gradient) {
    const Shape& from = gradient ? c.y : c.x;
    from_image_ = num_elements(from) / batch_;
    points_ = static_cast<int64_t>(meetings_.starts.size()) - 1;
    columns_ = blocks(weights_.outs, kColumns);
    panels_ = workspace_.reserve(sizeof(float) * static_cast<size_t>(columns_ * weights_.panel()));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Args& args) const {
    float* panels = static_cast<float*>(address(panels_, args));
    weights_.pack(args.in<float>(weights_input_), panels);
    const int64_t groups = blocks(batch_, kRows);
    parallel_for(columns_ * groups, 1, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) compute_group(args, panels, i / groups, i % groups * kRows);
    });
  }

 private:
  // All elements of kRows images, from image `first` on, at one block of output channels.
  void compute_group(const Args& args, const float* panels, int64_t column, int64_t first) const {
    const int64_t out = column * kColumns, columns = std::min(kColumns, weights_.outs - out);
    alignas(64) float bias[kColumns] = {};
    if (bias_ >= 0) std::copy_n(args.in<float>(bias_) + out, columns, bias);
    Rows rows;
    rows.images = std::min(kRows, batch_ - first);
    for (int64_t r = 0; r < kRows; ++r) {
      const int64_t image = std::min(first + r, batch_ - 1);
      rows.from[r] = args.in<float>(images_) + image * from_image_;
      rows.to[r] = args.out<float>() + image * points_ * weights_.outs + out;
    }
    for (int64_t p = 0; p < points_; ++p) {
      const auto start = meetings_.starts.begin() + p;
      compute_tile(meetings_.all.data() + start[0], meetings_.all.data() + start[1], rows,
                   panels + column * weights_.panel(), weights_.ins, bias, columns);
      for (float*& to : rows.to) to += weights_.outs;
    }
  }

  int images_, weights_input_, bias_;
  int64_t batch_;
  Weights weights_;
  Meetings meetings_;
  int64_t from_image_, points_, columns_;  // elements of an input image; of a channel of the output; blocks of channels
  Workspace workspace_;
  Place panels_;
};

// The part of kernel elements times windows that meets an element, along all axes.
double useful_part(const Grid& g) {
  double part = 1;
  for (const Axis& axis : g) {
    int64_t useful = 0;
    for (int64_t o = 0; o < axis.out; ++o)
      useful += std::max<int64_t>(0, axis.last_tap(o, axis.in) - axis.first_tap(o));
    part *= static_cast<double>(useful) / static_cast<double>(axis.out * axis.kernel);
  }
  return part;
}

bool is_nearly_full(int64_t n, int64_t size) { return blocks(n, size) * size * 4 <= n * 5; }

Prepared prepared(const SmallImages& images) {
  return {[images](const Args& args) { images.run(args); }, images.workspace(), {}};
}

}  // namespace

bool is_small_images(const Convolution& c, bool gradient) {
  constexpr double kMostlyUseful = 0.87;  // oneDNN is as fast where less is padding
  constexpr int64_t kFewChannels = 16;
  const int64_t outs = gradient ? c.ins() : c.outs(), ins = gradient ? c.outs() : c.ins();
  return has_wide_vectors() && c.operands == DType::kFloat && c.channels_last && c.group == 1 && ins >= kFewChannels &&
         is_nearly_full(outs, kColumns) && is_nearly_full(c.batch(), kRows) &&
         useful_part(make_grid(c.windows, c.x, c.y)) < kMostlyUseful;
}

Prepared prepare_small_images(const Convolution& c, const Forward& f) {
  return prepared(SmallImages(c, /*gradient=*/false, f.x, f.w, f.bias));
}

Prepared prepare_small_images(const Convolution& c, const InputGradient& f) {
  return prepared(SmallImages(c, /*gradient=*/true, f.dy, f.w, -1));
}

}  // namespace onnx_train::cpu
