// A convolution, or its input gradient, of small images that lie channels last, where much of what the windows cover is
// padding: that part is left out. A tile is one element of kRows images at kColumns channels of the output,
//
//   to[image, p, o] = bias[o] + Σ over the taps that meet an element q of `from`, Σ over c of from[image, q, c] w[o,
//   c],
//
// so that the same taps meet something in all of its rows. The weights of kColumns output channels are packed into a
// panel, which stays in the L2 cache while all their tiles run over it. Threads share the tiles, so that no sum depends
// on their number. In bfloat16, two neighbouring input channels are what one instruction multiplies and adds up: an
// element of the sum over c is such a pair.
#include <algorithm>
#include <vector>

#include "kernels/cpu/convolutions.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/windows.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kPackedAtOnce = 16;  // elements of the sum over input channels: their taps stay in the L1 cache

// A tap that meets an element: where the element's channels start in its image, and the tap's weights in the panel.
struct Meeting {
  int64_t from, weights;
};

// kRows images to read from, and the places to write to; `images` of them are real.
template <typename Element, typename Result>
struct Rows {
  const Element* from[kRows];
  Result* to[kRows];
  int64_t images;
};

// The sums of a tile, in float32 or rounded to bfloat16.
template <typename Result>
ONNX_TRAIN_WIDE_VECTORS inline void store(const float* tile, int64_t images, int64_t columns, Result* const* to) {
  for (int64_t r = 0; r < images; ++r) {
    for (int64_t i = 0; i < columns; ++i) to[r][i] = Result(tile[r * kColumns + i]);
  }
}

// Operands in float32.
struct Singles {
  using Stored = float;
  using Element = float;
  static constexpr int64_t kChannels = 1;  // of an element

  static float element(const float* first, int64_t) { return *first; }

  template <typename Result>
  ONNX_TRAIN_WIDE_VECTORS static void compute_tile(const Meeting* meeting, const Meeting* end,
                                                   const Rows<float, Result>& rows, const float* panel, int64_t ins,
                                                   const float* bias, int64_t columns) {
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
    alignas(64) float tile[kRows * kColumns];
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v) *reinterpret_cast<Vector*>(tile + r * kColumns + v * kLanes) = sums[r][v];
    }
    store(tile, rows.images, columns, rows.to);
  }
};

// Operands in bfloat16.
struct Doubles {
  using Stored = uint16_t;
  using Element = Bfloat16Pair;
  static constexpr int64_t kChannels = 2;

  // `step` leads to the next channel.
  static Bfloat16Pair element(const uint16_t* first, int64_t step) { return pair_of(first[0], first[step]); }

  template <typename Result>
  ONNX_TRAIN_BFLOAT16_VECTORS static void compute_tile(const Meeting* meeting, const Meeting* end,
                                                       const Rows<Bfloat16Pair, Result>& rows,
                                                       const Bfloat16Pair* panel, int64_t ins, const float* bias,
                                                       int64_t columns) {
    Vector sums[kRows][2];
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v) sums[r][v] = *reinterpret_cast<const Vector*>(bias + v * kLanes);
    }
    for (; meeting < end; ++meeting) {
      const Bfloat16Pair* from[kRows];
      for (int64_t r = 0; r < kRows; ++r) from[r] = rows.from[r] + meeting->from;
      const Bfloat16Pair* weights = panel + meeting->weights;
      for (int64_t c = 0; c < ins; ++c, weights += kColumns) {
        for (int64_t r = 0; r < kRows; ++r) {
          add_product(sums[r][0], from[r][c], weights);
          add_product(sums[r][1], from[r][c], weights + kLanes);
        }
      }
    }
    alignas(64) float tile[kRows * kColumns];
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v) *reinterpret_cast<Vector*>(tile + r * kColumns + v * kLanes) = sums[r][v];
    }
    store(tile, rows.images, columns, rows.to);
  }
};

// Which taps meet elements, for each element of the output.
struct Meetings {
  std::vector<Meeting> all;
  std::vector<size_t> starts = {0};

  Meetings(const Grid& g, int64_t ins, bool gradient) {
    const int64_t points = gradient ? points_in(g) : points_out(g);
    for (int64_t p = 0; p < points; ++p) {
      for (int64_t tap = 0; tap < taps(g); ++tap) {
        const int64_t q = met_by(g, gradient, p, tap);
        if (q >= 0) all.push_back({q * ins, tap * ins * kColumns});
      }
      starts.push_back(all.size());
    }
  }
};

// w[o, c, tap] of kColumns output channels as panel[tap][elements of input channels][kColumns], zeros behind the last.
template <typename Operands>
struct Weights {
  using Stored = typename Operands::Stored;
  using Element = typename Operands::Element;

  int64_t ins, outs, taps;    // ins: elements
  int64_t in_step, out_step;  // between neighbouring channels, as they are stored

  Weights(const Convolution& c, bool gradient)
      : ins((gradient ? c.w[0] : c.w[1]) / Operands::kChannels),
        outs(gradient ? c.w[1] : c.w[0]),
        taps(num_elements(c.windows.kernel)) {
    in_step = gradient ? c.w[1] * taps : taps;
    out_step = gradient ? taps : c.w[1] * taps;
  }
  int64_t panel() const { return taps * ins * kColumns; }

  void pack(const Stored* w, int64_t column, Element* panel) const {
    for (int64_t first = 0; first < ins; first += kPackedAtOnce) {
      for (int64_t o = 0; o < kColumns; ++o) {
        const int64_t out = column * kColumns + o;
        for (int64_t in = first; in < std::min(first + kPackedAtOnce, ins); ++in) {
          const Stored* from = w + out * out_step + in * Operands::kChannels * in_step;
          Element* to = panel + in * kColumns + o;
          // Rows of weights are too short for the processor to see where the next ones lie.
          for (int64_t k = 0; k < Operands::kChannels; ++k)
            __builtin_prefetch(from + (kPackedAtOnce * Operands::kChannels + k) * in_step);
          for (int64_t tap = 0; tap < taps; ++tap)
            to[tap * ins * kColumns] = out < outs ? Operands::element(from + tap, in_step) : Element{};
        }
      }
    }
  }
};

template <typename Operands, typename Result>
class SmallImages {
  using Stored = typename Operands::Stored;
  using Element = typename Operands::Element;

 public:
  // Inputs of the node: images, weights and, or -1, the bias. `threads` run it at most.
  SmallImages(const Convolution& c, bool gradient, int images, int weights, int bias, int threads)
      : images_(images),
        weights_input_(weights),
        bias_(bias),
        batch_(c.batch()),
        weights_(c, gradient),
        meetings_(make_grid(c.windows, c.x, c.y), weights_.ins, gradient) {
    const Shape& from = gradient ? c.y : c.x;
    from_image_ = num_elements(from) / batch_ / Operands::kChannels;
    points_ = static_cast<int64_t>(meetings_.starts.size()) - 1;
    columns_ = blocks(weights_.outs, kColumns);
    groups_ = blocks(batch_, kRows);
    shares_ = std::min<int64_t>(threads, columns_ * groups_);
    panels_ = workspace_.reserve(sizeof(Element) * static_cast<size_t>(shares_ * weights_.panel()));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) const {
    parallel_for(shares_, 1, [&](int64_t share, int64_t end) {
      for (; share < end; ++share) compute_share(launch, share);
    });
  }

 private:
  // What one thread computes, with a panel of its own.
  void compute_share(const Launch& launch, int64_t share) const {
    Element* panel = static_cast<Element*>(address(panels_, launch)) + share * weights_.panel();
    const int64_t all = columns_ * groups_, begin = all * share / shares_;
    for (int64_t i = begin; i < all * (share + 1) / shares_; ++i) {
      if (i == begin || i % groups_ == 0) weights_.pack(launch.in<Stored>(weights_input_), i / groups_, panel);
      compute_group(launch, panel, i / groups_, i % groups_ * kRows);
    }
  }

  // All elements of kRows images, from image `first` on, at one block of output channels.
  void compute_group(const Launch& launch, const Element* panel, int64_t column, int64_t first) const {
    const int64_t out = column * kColumns, columns = std::min(kColumns, weights_.outs - out);
    alignas(64) float bias[kColumns] = {};
    if (bias_ >= 0) std::copy_n(launch.in<float>(bias_) + out, columns, bias);
    Rows<Element, Result> rows;
    rows.images = std::min(kRows, batch_ - first);
    for (int64_t r = 0; r < kRows; ++r) {
      const int64_t image = std::min(first + r, batch_ - 1);
      rows.from[r] = launch.in<Element>(images_) + image * from_image_;
      rows.to[r] = launch.out<Result>() + image * points_ * weights_.outs + out;
    }
    for (int64_t p = 0; p < points_; ++p) {
      const auto start = meetings_.starts.begin() + p;
      Operands::compute_tile(meetings_.all.data() + start[0], meetings_.all.data() + start[1], rows, panel,
                             weights_.ins, bias, columns);
      for (Result*& to : rows.to) to += weights_.outs;
    }
  }

  int images_, weights_input_, bias_;
  int64_t batch_;
  Weights<Operands> weights_;
  Meetings meetings_;
  int64_t from_image_, points_;  // elements of an input image; of a channel of the output
  int64_t columns_, groups_;     // blocks of output channels; of images
  int64_t shares_;               // of both, for threads
  Workspace workspace_;
  Place panels_;
};

// The part of kernel elements times windows that meets an element.
double useful_part(const Grid& g) {
  return static_cast<double>(meetings(g)) / static_cast<double>(points_out(g) * taps(g));
}

bool is_nearly_full(int64_t n, int64_t size) { return blocks(n, size) * size * 4 <= n * 5; }

template <typename Operands, typename Result>
Prepared prepared(const SmallImages<Operands, Result>& images) {
  return {[images](const Launch& launch) { images.run(launch); }, images.workspace(), {}};
}

Prepared prepared(const NodeSpec& spec, const Convolution& c, bool gradient, int images, int weights, int bias) {
  if (c.operands == DType::kFloat)
    return prepared(SmallImages<Singles, float>(c, gradient, images, weights, bias, spec.threads()));
  if (spec.out_type() == DType::kFloat)
    return prepared(SmallImages<Doubles, float>(c, gradient, images, weights, bias, spec.threads()));
  return prepared(SmallImages<Doubles, BFloat16>(c, gradient, images, weights, bias, spec.threads()));
}

}  // namespace

bool is_small_images(const Convolution& c, bool gradient) {
  const bool wide = c.operands == DType::kFloat;
  const double mostly_useful = wide ? 0.87 : 0.97;  // oneDNN is as fast where less is padding
  constexpr int64_t kFewChannels = 16;
  const int64_t outs = gradient ? c.ins() : c.outs(), ins = gradient ? c.outs() : c.ins();
  // Where there is AMX, oneDNN is up to ten times as fast on bfloat16 operands as these.
  const bool has_vectors = wide ? isa() >= Isa::kAvx512 : isa() == Isa::kAvx512Bf16 && ins % Doubles::kChannels == 0;
  const bool fits = has_vectors && c.channels_last && c.group == 1 && ins >= kFewChannels &&
                    is_nearly_full(outs, kColumns) && is_nearly_full(c.batch(), kRows);
  // Nor is it fast, in bfloat16, in the gradient of windows that leave elements out.
  const Grid grid = make_grid(c.windows, c.x, c.y);
  const bool strided = std::any_of(grid.begin(), grid.end(), [](const WindowAxis& axis) { return axis.stride > 1; });
  constexpr int64_t kFewElements = 256;
  return fits &&
         (useful_part(grid) < mostly_useful || (!wide && gradient && strided && points_in(grid) <= kFewElements));
}

Prepared prepare_small_images(const NodeSpec& spec, const Convolution& c, const Forward& f) {
  return prepared(spec, c, /*gradient=*/false, f.x, f.w, f.bias);
}

Prepared prepare_small_images(const NodeSpec& spec, const Convolution& c, const InputGradient& f) {
  return prepared(spec, c, /*gradient=*/true, f.dy, f.w, -1);
}

}  // namespace onnx_train::cpu
