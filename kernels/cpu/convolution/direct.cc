// Direct convolution, forward or input gradient, for small channels-last images, where padding is a large part of what
// the windows cover: padded taps are skipped. A tile is one output position of kRows images at kColumns output
// channels,
//
//   to[image, p, o] = bias[o] + Σ over the valid taps of p, Σ over c: from[image, q, c] w[o, c],
//
// where q is the input position of the tap. The valid taps depend only on p, so all rows of a tile share them. The
// weights of kColumns output channels are packed into a panel, which stays in the L2 cache for all its tiles. Threads
// share the tiles, so no sum depends on the number of threads. With bfloat16 operands one vdpbf16ps multiplies and adds
// two neighbouring input channels: an element of the sum over c is such a pair.
#include <algorithm>
#include <vector>

#include "kernels/cpu/convolution/convolutions.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/x86/tiles.h"
#include "kernels/geometry/windows.h"
#include "kernels/place.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kPackedAtOnce = 16;  // elements of the sum over input channels: their taps stay in the L1 cache

// A valid tap: the offset of the input position's channels in its image, and the offset of the tap's weights in the
// panel.
struct TapIndex {
  int64_t from, weights;
};

// Pointers to kRows input images and to their outputs. Only the first `images` are stored; the others repeat the last
// image.
template <typename Element, typename Result>
struct Rows {
  const Element* from[kRows];
  Result* to[kRows];
  int64_t images;
};

// Stores the sums of a tile, as float32 or rounded to bfloat16.
template <typename Result>
ONNX_TRAIN_TARGET_AVX512 inline void store(const float* tile, int64_t images, int64_t columns, Result* const* to) {
  for (int64_t r = 0; r < images; ++r) {
    for (int64_t i = 0; i < columns; ++i) to[r][i] = Result(tile[r * kColumns + i]);
  }
}

// Operands are float32.
struct F32Traits {
  using Stored = float;
  using Element = float;
  static constexpr int64_t kChannels = 1;  // input channels in an element

  static float element(const float* first, int64_t) { return *first; }

  template <typename Result>
  ONNX_TRAIN_TARGET_AVX512 static void compute_tile(const TapIndex* tap, const TapIndex* end,
                                                    const Rows<float, Result>& rows, const float* panel,
                                                    int64_t in_elements, const float* bias, int64_t columns) {
    Vector sums[kRows][2];
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v) sums[r][v] = *reinterpret_cast<const Vector*>(bias + v * kLanes);
    }
    for (; tap < end; ++tap) {
      const float* from[kRows];
      for (int64_t r = 0; r < kRows; ++r) from[r] = rows.from[r] + tap->from;
      const float* weights = panel + tap->weights;
      for (int64_t c = 0; c < in_elements; ++c, weights += kColumns) {
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

// Operands are bfloat16: an element is a pair of input channels.
struct Bf16x2Traits {
  using Stored = uint16_t;
  using Element = Bfloat16Pair;
  static constexpr int64_t kChannels = 2;

  // `step` is the distance between two input channels.
  static Bfloat16Pair element(const uint16_t* first, int64_t step) { return pair_of(first[0], first[step]); }

  template <typename Result>
  ONNX_TRAIN_TARGET_AVX512_BF16 static void compute_tile(const TapIndex* tap, const TapIndex* end,
                                                         const Rows<Bfloat16Pair, Result>& rows,
                                                         const Bfloat16Pair* panel, int64_t in_elements,
                                                         const float* bias, int64_t columns) {
    Vector sums[kRows][2];
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v) sums[r][v] = *reinterpret_cast<const Vector*>(bias + v * kLanes);
    }
    for (; tap < end; ++tap) {
      const Bfloat16Pair* from[kRows];
      for (int64_t r = 0; r < kRows; ++r) from[r] = rows.from[r] + tap->from;
      const Bfloat16Pair* weights = panel + tap->weights;
      for (int64_t c = 0; c < in_elements; ++c, weights += kColumns) {
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

// The valid taps of each output position.
struct ValidTaps {
  std::vector<TapIndex> all;
  std::vector<size_t> starts = {0};

  ValidTaps(const WindowGeometry& g, int64_t in_elements, bool gradient) {
    const int64_t spatial_size = gradient ? in_spatial_size(g) : out_spatial_size(g);
    for (int64_t p = 0; p < spatial_size; ++p) {
      for (int64_t tap = 0; tap < taps(g); ++tap) {
        const int64_t q = input_index(g, gradient, p, tap);
        if (q >= 0) all.push_back({q * in_elements, tap * in_elements * kColumns});
      }
      starts.push_back(all.size());
    }
  }
};

// Packs w[o, c, tap] of kColumns output channels into panel[tap][in_elements][kColumns]. Missing output channels are
// zeros.
template <typename Operands>
struct Weights {
  using Stored = typename Operands::Stored;
  using Element = typename Operands::Element;

  int64_t in_elements, out_channels, taps;  // in_elements counts Operands::Element
  int64_t in_step, out_step;                // distances between neighbouring channels in memory

  Weights(const Convolution& c, bool gradient)
      : in_elements((gradient ? c.w[0] : c.w[1]) / Operands::kChannels),
        out_channels(gradient ? c.w[1] : c.w[0]),
        taps(num_elements(c.windows.kernel)) {
    in_step = gradient ? c.w[1] * taps : taps;
    out_step = gradient ? taps : c.w[1] * taps;
  }
  int64_t panel() const { return taps * in_elements * kColumns; }

  void pack(const Stored* w, int64_t column, Element* panel) const {
    for (int64_t first = 0; first < in_elements; first += kPackedAtOnce) {
      for (int64_t o = 0; o < kColumns; ++o) {
        const int64_t out = column * kColumns + o;
        for (int64_t in = first; in < std::min(first + kPackedAtOnce, in_elements); ++in) {
          const Stored* from = w + out * out_step + in * Operands::kChannels * in_step;
          Element* to = panel + in * kColumns + o;
          // The rows of weights are too short for the hardware prefetcher to follow.
          for (int64_t k = 0; k < Operands::kChannels; ++k)
            __builtin_prefetch(from + (kPackedAtOnce * Operands::kChannels + k) * in_step);
          for (int64_t tap = 0; tap < taps; ++tap)
            to[tap * in_elements * kColumns] = out < out_channels ? Operands::element(from + tap, in_step) : Element{};
        }
      }
    }
  }
};

template <typename Operands, typename Result>
class DirectConvolution {
  using Stored = typename Operands::Stored;
  using Element = typename Operands::Element;

 public:
  // `images`, `weights` and `bias` are input numbers of the node; `bias` is -1 when there is none. At most `threads`
  // run.
  DirectConvolution(const Convolution& c, bool gradient, int images, int weights, int bias, int threads)
      : images_(images),
        weights_input_(weights),
        bias_(bias),
        batch_(c.batch()),
        weights_(c, gradient),
        valid_taps_(make_geometry(c.windows, c.x, c.y), weights_.in_elements, gradient) {
    const Shape& from = gradient ? c.y : c.x;
    from_image_ = num_elements(from) / batch_ / Operands::kChannels;
    spatial_size_ = static_cast<int64_t>(valid_taps_.starts.size()) - 1;
    columns_ = blocks(weights_.out_channels, kColumns);
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
  // The work of one thread, which packs weights into its own panel.
  void compute_share(const Launch& launch, int64_t share) const {
    Element* panel = static_cast<Element*>(address(panels_, launch)) + share * weights_.panel();
    const int64_t all = columns_ * groups_, begin = all * share / shares_;
    for (int64_t i = begin; i < all * (share + 1) / shares_; ++i) {
      if (i == begin || i % groups_ == 0) weights_.pack(launch.in<Stored>(weights_input_), i / groups_, panel);
      compute_group(launch, panel, i / groups_, i % groups_ * kRows);
    }
  }

  // All output positions of the kRows images from `first` on, at one block of output channels.
  void compute_group(const Launch& launch, const Element* panel, int64_t column, int64_t first) const {
    const int64_t out = column * kColumns, columns = std::min(kColumns, weights_.out_channels - out);
    alignas(64) float bias[kColumns] = {};
    if (bias_ >= 0) std::copy_n(launch.in<float>(bias_) + out, columns, bias);
    Rows<Element, Result> rows;
    rows.images = std::min(kRows, batch_ - first);
    for (int64_t r = 0; r < kRows; ++r) {
      const int64_t image = std::min(first + r, batch_ - 1);
      rows.from[r] = launch.in<Element>(images_) + image * from_image_;
      rows.to[r] = launch.out<Result>() + image * spatial_size_ * weights_.out_channels + out;
    }
    for (int64_t p = 0; p < spatial_size_; ++p) {
      const auto start = valid_taps_.starts.begin() + p;
      Operands::compute_tile(valid_taps_.all.data() + start[0], valid_taps_.all.data() + start[1], rows, panel,
                             weights_.in_elements, bias, columns);
      for (Result*& to : rows.to) to += weights_.out_channels;
    }
  }

  int images_, weights_input_, bias_;
  int64_t batch_;
  Weights<Operands> weights_;
  ValidTaps valid_taps_;
  int64_t from_image_, spatial_size_;  // elements of an input image; output positions
  int64_t columns_, groups_;           // number of blocks of output channels, and of images
  int64_t shares_;                     // number of shares of both, one per thread
  Workspace workspace_;
  OperandPlace panels_;
};

// The fraction of window positions times taps that are not padding.
double useful_part(const WindowGeometry& g) {
  return static_cast<double>(count_valid_taps(g)) / static_cast<double>(out_spatial_size(g) * taps(g));
}

bool is_nearly_full(int64_t n, int64_t size) { return blocks(n, size) * size * 4 <= n * 5; }

template <typename Operands, typename Result>
Prepared prepared(const DirectConvolution<Operands, Result>& images) {
  return {[images](const Launch& launch) { images.run(launch); }, images.workspace(), {}};
}

Prepared prepared(const NodeSpec& spec, const Convolution& c, bool gradient, int images, int weights, int bias) {
  if (c.operands == DType::kFloat)
    return prepared(DirectConvolution<F32Traits, float>(c, gradient, images, weights, bias, spec.threads()));
  if (spec.out_type() == DType::kFloat)
    return prepared(DirectConvolution<Bf16x2Traits, float>(c, gradient, images, weights, bias, spec.threads()));
  return prepared(DirectConvolution<Bf16x2Traits, BFloat16>(c, gradient, images, weights, bias, spec.threads()));
}

}  // namespace

bool supports_direct(const Convolution& c, bool gradient) {
  const bool is_fp32 = c.operands == DType::kFloat;
  constexpr int64_t kFewChannels = 16;
  const int64_t out_channels = gradient ? c.in_channels() : c.out_channels(),
                in_channels = gradient ? c.out_channels() : c.in_channels();
  const bool has_isa =
      is_fp32 ? isa() >= Isa::kAvx512 : isa() >= Isa::kAvx512Bf16 && in_channels % Bf16x2Traits::kChannels == 0;
  return has_isa && c.channels_last && c.group == 1 && in_channels >= kFewChannels &&
         is_nearly_full(out_channels, kColumns) && is_nearly_full(c.batch(), kRows);
}

bool prefers_direct(const Convolution& c, bool gradient) {
  const bool is_fp32 = c.operands == DType::kFloat;
  // On machines with AMX, oneDNN is up to ten times as fast with bfloat16 operands.
  if (!supports_direct(c, gradient) || (!is_fp32 && isa() >= Isa::kAmx)) return false;
  const double mostly_useful = is_fp32 ? 0.87 : 0.97;  // oneDNN is as fast with less padding
  // In bfloat16, oneDNN is also slow for input gradients of strided convolutions.
  const WindowGeometry geometry = make_geometry(c.windows, c.x, c.y);
  const bool strided =
      std::any_of(geometry.begin(), geometry.end(), [](const WindowAxis& axis) { return axis.stride > 1; });
  constexpr int64_t kFewElements = 256;
  return useful_part(geometry) < mostly_useful ||
         (!is_fp32 && gradient && strided && in_spatial_size(geometry) <= kFewElements);
}

Prepared prepare_direct(const NodeSpec& spec, const Convolution& c, const Forward& f) {
  return prepared(spec, c, /*gradient=*/false, f.x, f.w, f.bias);
}

Prepared prepare_direct(const NodeSpec& spec, const Convolution& c, const InputGradient& f) {
  return prepared(spec, c, /*gradient=*/true, f.dy, f.w, -1);
}

}  // namespace onnx_train::cpu
