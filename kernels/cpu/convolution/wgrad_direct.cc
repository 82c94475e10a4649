// Direct weight gradient of a convolution with channels-last images, as sums of outer products:
//
//   dw[o, c, tap] = Σ over output positions p of dy[p, o] x[p stride + tap dilation - pad, c].
//
// Images are packed into panels of kRows input channels and kColumns output channels, a chunk of images at a time. A
// tile holds kRows x kColumns sums per tap; they stay in registers while the kernel runs over the pairs (position of x,
// position of dy) of the tap. The pairs are found when the kernel is prepared. kBlock positions of dy's panel stay in
// the L1 cache for all taps. Threads share the tiles, so no sum depends on the number of threads.
//
// bf16: each panel interleaves two images, so that one vdpbf16ps accumulates both; the valid taps are the same for
// both. Below, "image" then means such a stack of two.
#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/convolution/convolutions.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/x86/tiles.h"
#include "kernels/geometry/windows.h"
#include "kernels/place.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kTile = kRows * kColumns;
constexpr int64_t kBlock = 256;        // positions of dy processed per visit to a tile
constexpr int64_t kChunk = 1024;       // least number of positions of dy packed at a time (whole images)
constexpr int64_t kManyTaps = 4;       // packing pays when at least this many taps read a position
constexpr int64_t kPackedAtOnce = 16;  // positions: their channels stay in the L1 cache while panels are written

// Offsets of a position of x and of a position of dy in their panels.
struct Pair {
  int32_t x, y;
};

// Operands are float32: one image per stack.
struct F32Traits {
  using Stored = float;
  using Element = float;
  static constexpr int64_t kDepth = 1;  // images in a stack

  ONNX_TRAIN_TARGET_AVX512 static void stack(const float* image, const float*, int64_t n, float* to) {
    std::copy_n(image, n, to);
  }
  ONNX_TRAIN_TARGET_AVX512 static float sum(float element) { return element; }

  ONNX_TRAIN_TARGET_AVX512 static void add_products(const Pair* pair, const Pair* end, const float* x, const float* dy,
                                                    float* tile) {
    Vector sums[kRows][2];
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v) sums[r][v] = *reinterpret_cast<Vector*>(tile + r * kColumns + v * kLanes);
    }
    for (; pair < end; ++pair) {
      const float *from = x + pair->x, *along = dy + pair->y;
      const Vector first = *reinterpret_cast<const Vector*>(along);
      const Vector second = *reinterpret_cast<const Vector*>(along + kLanes);
      for (int64_t r = 0; r < kRows; ++r) {
        sums[r][0] += first * from[r];
        sums[r][1] += second * from[r];
      }
    }
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v) *reinterpret_cast<Vector*>(tile + r * kColumns + v * kLanes) = sums[r][v];
    }
  }
};

// Operands are bfloat16: two images per stack. With an odd number of images the last stack's upper half is zeros.
struct Bf16x2Traits {
  using Stored = uint16_t;
  using Element = Bfloat16Pair;
  static constexpr int64_t kDepth = 2;

  ONNX_TRAIN_TARGET_AVX512 static void stack(const uint16_t* first, const uint16_t* second, int64_t n,
                                             Bfloat16Pair* to) {
    // These vectors are explicit because GCC 12 does not vectorize loops this short.
    using Halves [[gnu::vector_size(16), gnu::aligned(2), gnu::may_alias]] = uint16_t;
    using Pairs [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = uint32_t;
    constexpr int64_t kAtOnce = 8;
    if (!second) {
      std::copy_n(first, n, to);
      return;
    }
    int64_t i = 0;
    for (; i + kAtOnce <= n; i += kAtOnce) {
      const Halves low = *reinterpret_cast<const Halves*>(first + i);
      const Halves high = *reinterpret_cast<const Halves*>(second + i);
      *reinterpret_cast<Pairs*>(to + i) = __builtin_convertvector(low, Pairs) | __builtin_convertvector(high, Pairs)
                                                                                    << 16;
    }
    for (; i < n; ++i) to[i] = pair_of(first[i], second[i]);
  }
  ONNX_TRAIN_TARGET_AVX512 static float sum(Bfloat16Pair element) { return first_of(element) + second_of(element); }

  ONNX_TRAIN_TARGET_AVX512_BF16 static void add_products(const Pair* pair, const Pair* end, const Bfloat16Pair* x,
                                                         const Bfloat16Pair* dy, float* tile) {
    Vector sums[kRows][2];
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v) sums[r][v] = *reinterpret_cast<Vector*>(tile + r * kColumns + v * kLanes);
    }
    for (; pair < end; ++pair) {
      const Bfloat16Pair *from = x + pair->x, *along = dy + pair->y;
      for (int64_t r = 0; r < kRows; ++r) {
        add_product(sums[r][0], from[r], along);
        add_product(sums[r][1], from[r], along + kLanes);
      }
    }
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < 2; ++v) *reinterpret_cast<Vector*>(tile + r * kColumns + v * kLanes) = sums[r][v];
    }
  }
};

// One operand: images[images][spatial_size][channels].
template <typename Stored>
struct Images {
  const Stored* data;
  int64_t images, spatial_size, channels;
};

// Packs positions [begin, begin + n) into panels[channels / kWidth][elements][kWidth]. Missing channels are zeros.
template <typename Operands, int64_t kWidth>
ONNX_TRAIN_TARGET_AVX512 void pack(const Images<typename Operands::Stored>& from, int64_t begin, int64_t n,
                                   int64_t elements, typename Operands::Element* panels) {
  const int64_t channels = from.channels, step = from.spatial_size * channels;  // from an image to the next
  constexpr int64_t kLine = 64 / sizeof(typename Operands::Stored);             // elements in a cache line
  std::array<const typename Operands::Stored*, kPackedAtOnce> first, second;
  for (size_t q = 0; q < static_cast<size_t>(n); ++q) {
    const int64_t at = begin + static_cast<int64_t>(q), image = at / from.spatial_size * Operands::kDepth;
    first[q] = from.data + image * step + at % from.spatial_size * channels;
    second[q] = image + 1 < from.images ? first[q] + step : nullptr;
    // Prefetches the next positions: the hardware prefetcher does not follow rows that alternate between two images.
    for (int64_t i = 0; i < Operands::kDepth; ++i) {
      for (int64_t c = 0; c < channels; c += kLine)
        __builtin_prefetch(first[q] + kPackedAtOnce * channels + i * step + c);
    }
  }
  for (int64_t c = 0; c < channels; c += kWidth) {
    auto* to = panels + c * elements + begin * kWidth;
    const int64_t width = std::min(kWidth, channels - c);
    for (size_t q = 0; q < static_cast<size_t>(n); ++q, to += kWidth) {
      const auto* above = second[q] ? second[q] + c : nullptr;
      if (width == kWidth) {
        Operands::stack(first[q] + c, above, kWidth, to);
      } else {
        Operands::stack(first[q] + c, above, width, to);
        std::fill_n(to + width, kWidth - width, typename Operands::Element{});
      }
    }
  }
}

template <typename Operands, int64_t kWidth>
void pack(const Images<typename Operands::Stored>& from, typename Operands::Element* panels) {
  const int64_t elements = blocks(from.images, Operands::kDepth) * from.spatial_size;
  parallel_for(elements, std::max<int64_t>(1, kElementGrain / from.channels), [=](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p += kPackedAtOnce)
      pack<Operands, kWidth>(from, p, std::min(kPackedAtOnce, end - p), elements, panels);
  });
}

// sums[kColumns] += the elements of one panel of dy.
template <typename Operands>
ONNX_TRAIN_TARGET_AVX512 void add_elements(const typename Operands::Element* dy, int64_t pitch, int64_t elements,
                                           double* sums) {
  float block[kColumns] = {};
  for (int64_t p = 0; p < elements; ++p) {
    for (int64_t o = 0; o < kColumns; ++o) block[o] += Operands::sum(dy[p * pitch + o]);
  }
  for (int64_t o = 0; o < kColumns; ++o) sums[o] += static_cast<double>(block[o]);
}

template <typename Operands>
class WgradDirect {
  using Stored = typename Operands::Stored;
  using Element = typename Operands::Element;
  static constexpr int64_t kDepth = Operands::kDepth;

 public:
  WgradDirect(const Convolution& c, const WeightGradient& f, int threads)
      : f_(f),
        geometry_(make_geometry(c.windows, c.x, c.y)),
        batch_(c.batch()),
        in_channels_(c.in_channels()),
        out_channels_(c.out_channels()),
        in_spatial_size_(in_spatial_size(geometry_)),
        out_spatial_size_(out_spatial_size(geometry_)),
        images_(std::clamp<int64_t>(blocks(kChunk, out_spatial_size_), 1, blocks(batch_, kDepth))),
        rows_(blocks(in_channels_, kRows)),
        columns_(blocks(out_channels_, kColumns)),
        shares_(std::min<int64_t>(threads, rows_ * columns_)),
        packed_(kDepth > 1 || num_taps() >= kManyTaps || in_channels_ % kRows != 0 || out_channels_ % kColumns != 0),
        x_pitch_(packed_ ? kRows : in_channels_),
        dy_pitch_(packed_ ? kColumns : out_channels_) {
    find_pairs();
    const int64_t in_panels = packed_ ? images_ * in_spatial_size_ * rows_ * kRows : 0;
    const int64_t out_panels = packed_ ? images_ * out_spatial_size_ * columns_ * kColumns : 0;
    const int64_t tiles = is_one_chunk() ? shares_ : rows_ * columns_;
    x_panels_ = workspace_.reserve(sizeof(Element) * static_cast<size_t>(in_panels));
    dy_panels_ = workspace_.reserve(sizeof(Element) * static_cast<size_t>(out_panels));
    tiles_ = workspace_.reserve(sizeof(float) * static_cast<size_t>(tiles * num_taps() * kTile));
    bias_ = workspace_.reserve(sizeof(double) * static_cast<size_t>(columns_ * kColumns));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) const {
    for (int64_t image = 0; image < batch_; image += images_ * kDepth) {
      const Chunk chunk = packed_chunk(launch, image, std::min(images_ * kDepth, batch_ - image));
      parallel_for(shares_, 1, [&](int64_t share, int64_t end) {
        for (; share < end; ++share) add_share(launch, chunk, share);
      });
    }
    if (f_.bias) std::copy_n(static_cast<double*>(address(bias_, launch)), out_channels_, launch.out<float>(1));
  }

 private:
  struct Chunk {
    const Element *x, *dy;
    int64_t images;
    bool first, last;
  };

  bool is_one_chunk() const { return images_ * kDepth >= batch_; }
  int64_t num_taps() const { return taps(geometry_); }

  Chunk packed_chunk(const Launch& launch, int64_t image, int64_t images) const {
    const Images<Stored> x{launch.in<Stored>(f_.x) + image * in_spatial_size_ * in_channels_, images, in_spatial_size_,
                           in_channels_};
    const Images<Stored> dy{launch.in<Stored>(f_.dy) + image * out_spatial_size_ * out_channels_, images,
                            out_spatial_size_, out_channels_};
    Chunk chunk{nullptr, nullptr, blocks(images, kDepth), image == 0, image + images == batch_};
    if (packed_) {
      Element* x_panels = static_cast<Element*>(address(x_panels_, launch));
      Element* dy_panels = static_cast<Element*>(address(dy_panels_, launch));
      pack<Operands, kRows>(x, x_panels);
      pack<Operands, kColumns>(dy, dy_panels);
      chunk.x = x_panels;
      chunk.dy = dy_panels;
    } else if constexpr (kDepth == 1) {
      chunk.x = x.data;
      chunk.dy = dy.data;
    }
    return chunk;
  }

  // Lists the pairs of a full chunk for each tap, in the order of dy's positions, and the start of each block of kBlock
  // positions.
  void find_pairs() {
    starts_.push_back(0);
    for (int64_t tap = 0; tap < num_taps(); ++tap) {
      for (int64_t p = 0; p < images_ * out_spatial_size_; ++p) {
        if (p > 0 && p % kBlock == 0) starts_.push_back(pairs_.size());
        const int64_t in_image = element_of(geometry_, p % out_spatial_size_, tap);
        if (in_image < 0) continue;
        const int64_t element = p / out_spatial_size_ * in_spatial_size_ + in_image;
        pairs_.push_back({static_cast<int32_t>(element * x_pitch_), static_cast<int32_t>(p * dy_pitch_)});
      }
      starts_.push_back(pairs_.size());
    }
  }

  // Computes the tiles of one thread. With a single chunk a thread's tiles reuse one buffer.
  void add_share(const Launch& launch, const Chunk& chunk, int64_t share) const {
    const int64_t all = rows_ * columns_;
    float* tiles = static_cast<float*>(address(tiles_, launch));
    for (int64_t tile = all * share / shares_; tile < all * (share + 1) / shares_; ++tile) {
      float* sums = tiles + (is_one_chunk() ? share : tile) * num_taps() * kTile;
      add_to_tile(chunk, tile, sums);
      if (chunk.last) write_weights(sums, tile, launch.out<float>(0));
      if (f_.bias && tile % rows_ == 0) add_to_bias(chunk, tile / rows_, static_cast<double*>(address(bias_, launch)));
    }
  }

  const Element* dy_panel(const Chunk& chunk, int64_t column) const {
    return chunk.dy + column * kColumns * (packed_ ? chunk.images * out_spatial_size_ : 1);
  }

  void add_to_tile(const Chunk& chunk, int64_t tile, float* sums) const {
    const int64_t row = tile % rows_, column = tile / rows_, elements = chunk.images * out_spatial_size_;
    const Element* x = chunk.x + row * kRows * (packed_ ? chunk.images * in_spatial_size_ : 1);
    const Element* dy = dy_panel(chunk, column);
    if (chunk.first) std::fill_n(sums, num_taps() * kTile, 0.0f);
    const int64_t per_tap = blocks(images_ * out_spatial_size_, kBlock);
    for (int64_t block = 0; block < blocks(elements, kBlock); ++block) {
      for (int64_t tap = 0; tap < num_taps(); ++tap) {
        const size_t at = static_cast<size_t>(tap * per_tap);
        // A chunk with fewer images uses only the pairs of its images; every image has the same number of pairs.
        const size_t all = starts_[at + static_cast<size_t>(per_tap)] - starts_[at];
        const size_t limit = starts_[at] + all / static_cast<size_t>(images_) * static_cast<size_t>(chunk.images);
        const size_t begin = starts_[at + static_cast<size_t>(block)];
        const size_t end = std::min(limit, starts_[at + static_cast<size_t>(block) + 1]);
        Operands::add_products(pairs_.data() + begin, pairs_.data() + end, x, dy, sums + tap * kTile);
      }
    }
  }

  void add_to_bias(const Chunk& chunk, int64_t column, double* biases) const {
    const Element* dy = dy_panel(chunk, column);
    double* bias = biases + column * kColumns;
    const int64_t elements = chunk.images * out_spatial_size_;
    if (chunk.first) std::fill_n(bias, kColumns, 0.0);
    for (int64_t p = 0; p < elements; p += kBlock)
      add_elements<Operands>(dy + p * dy_pitch_, dy_pitch_, std::min(kBlock, elements - p), bias);
  }

  // dw[o, c, tap] from the tile's sums[tap][c][o].
  void write_weights(const float* sums, int64_t tile, float* dw) const {
    const int64_t c = tile % rows_ * kRows, o = tile / rows_ * kColumns;
    const int64_t rows = std::min(kRows, in_channels_ - c), columns = std::min(kColumns, out_channels_ - o);
    for (int64_t column = 0; column < columns; ++column) {
      float* to = dw + ((o + column) * in_channels_ + c) * num_taps();
      for (int64_t row = 0; row < rows; ++row) {
        const float* from = sums + row * kColumns + column;
        for (int64_t tap = 0; tap < num_taps(); ++tap) *to++ = from[tap * kTile];
      }
    }
  }

  WeightGradient f_;
  WindowGeometry geometry_;
  int64_t batch_, in_channels_, out_channels_, in_spatial_size_, out_spatial_size_;
  int64_t images_;          // images in a chunk
  int64_t rows_, columns_;  // number of tile rows and columns
  int64_t shares_;          // number of shares of the tiles, one per thread
  bool packed_;
  int64_t x_pitch_, dy_pitch_;  // distance between positions of a panel
  std::vector<Pair> pairs_;
  std::vector<size_t> starts_;
  Workspace workspace_;
  OperandPlace x_panels_, dy_panels_, tiles_, bias_;
};

template <typename Operands>
Prepared prepared(const Convolution& c, const WeightGradient& f, int threads) {
  const WgradDirect<Operands> products(c, f, threads);
  return {[products](const Launch& launch) { products.run(launch); }, products.workspace(), {}};
}

}  // namespace

bool supports_wgrad_direct(const Convolution& c) {
  const int64_t elements = num_elements({c.x.begin() + 2, c.x.end()}) + num_elements({c.y.begin() + 2, c.y.end()});
  constexpr int64_t kManyElements = 1 << 16;  // positions of one image: its panels must stay in the cache
  const bool is_fp32 = c.operands == DType::kFloat;
  const bool has_isa = isa() >= (is_fp32 ? Isa::kAvx512 : Isa::kAvx512Bf16);
  // bfloat16 operands are always packed: this pays if each packed position is read often and each stack holds two
  // images.
  const bool worth_packing = is_fp32 || (num_elements(c.windows.kernel) >= kManyTaps && c.batch() > 1);
  return has_isa && worth_packing && c.channels_last && c.group == 1 && elements <= kManyElements;
}

bool prefers_wgrad_direct(const Convolution& c) {
  const int64_t padded = blocks(c.in_channels(), kRows) * blocks(c.out_channels(), kColumns) * kTile;
  // On machines with AMX, oneDNN is up to ten times as fast with bfloat16 operands.
  if (!supports_wgrad_direct(c) || (c.operands != DType::kFloat && isa() >= Isa::kAmx)) return false;
  return padded <= c.in_channels() * c.out_channels() * 5 / 4;
}

Prepared prepare_wgrad_direct(const Convolution& c, const WeightGradient& f, int threads) {
  return c.operands == DType::kFloat ? prepared<F32Traits>(c, f, threads) : prepared<Bf16x2Traits>(c, f, threads);
}

}  // namespace onnx_train::cpu
