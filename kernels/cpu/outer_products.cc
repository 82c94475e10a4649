// The weight gradient of a convolution whose images lie channels last, as sums of outer products:
//
//   dw[o, c, tap] = Σ over output elements p of dy[p, o] x[p stride + tap dilation - pad, c].
//
// Images are packed into panels of kRows channels of x and kColumns of dy, a chunk of images at a time. A tile, kRows x
// kColumns sums for each tap, stays in registers while it runs over the pairs of elements (of x, of y) that meet at
// that tap; the pairs are found when the kernel is prepared. kBlock elements of dy's panel stay in the L1 cache while
// all taps run over them. Threads share the tiles, so that no sum depends on their number.
//
// In bfloat16 two images lie on top of each other: an element of a panel is one of each, which one instruction
// multiplies and adds up, and what meets at a tap is the same in both. Below, such a stack is meant by an image.
#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/convolutions.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/windows.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kTile = kRows * kColumns;
constexpr int64_t kBlock = 256;        // elements of dy between two visits to a tile
constexpr int64_t kChunk = 1024;       // elements of dy that are packed at a time, at least (whole images)
constexpr int64_t kManyTaps = 4;       // as many visits to an element make up for packing it
constexpr int64_t kPackedAtOnce = 16;  // elements: their channels stay in the L1 cache while panels are written

// Where in their panels an element of x and one of dy lie.
struct Pair {
  int32_t x, y;
};

// float32: images are as they are stored.
struct Singles {
  using Stored = float;
  using Element = float;
  static constexpr int64_t kDepth = 1;  // images in a stack

  ONNX_TRAIN_WIDE_VECTORS static void stack(const float* image, const float*, int64_t n, float* to) {
    std::copy_n(image, n, to);
  }
  ONNX_TRAIN_WIDE_VECTORS static float sum(float element) { return element; }

  ONNX_TRAIN_WIDE_VECTORS static void add_products(const Pair* pair, const Pair* end, const float* x, const float* dy,
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

// bfloat16: stacks of two; zeros lie on the last image of an odd number.
struct Doubles {
  using Stored = uint16_t;
  using Element = Bfloat16Pair;
  static constexpr int64_t kDepth = 2;

  ONNX_TRAIN_WIDE_VECTORS static void stack(const uint16_t* first, const uint16_t* second, int64_t n,
                                            Bfloat16Pair* to) {
    // In vectors by hand: GCC 12 reads such short rows one by one.
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
  ONNX_TRAIN_WIDE_VECTORS static float sum(Bfloat16Pair element) { return first_of(element) + second_of(element); }

  ONNX_TRAIN_BFLOAT16_VECTORS static void add_products(const Pair* pair, const Pair* end, const Bfloat16Pair* x,
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

// images[images][points][channels] of one operand.
template <typename Stored>
struct Images {
  const Stored* data;
  int64_t images, points, channels;
};

// Elements [begin, begin + n) of all panels[channels / kWidth][elements][kWidth], zeros behind the last channel.
template <typename Operands, int64_t kWidth>
ONNX_TRAIN_WIDE_VECTORS void pack(const Images<typename Operands::Stored>& from, int64_t begin, int64_t n,
                                  int64_t elements, typename Operands::Element* panels) {
  const int64_t channels = from.channels, step = from.points * channels;  // from an image to the next
  constexpr int64_t kLine = 64 / sizeof(typename Operands::Stored);       // of the cache
  std::array<const typename Operands::Stored*, kPackedAtOnce> first, second;
  for (size_t q = 0; q < static_cast<size_t>(n); ++q) {
    const int64_t at = begin + static_cast<int64_t>(q), image = at / from.points * Operands::kDepth;
    first[q] = from.data + image * step + at % from.points * channels;
    second[q] = image + 1 < from.images ? first[q] + step : nullptr;
    // What is packed next: the processor does not see it come when rows of two images take turns.
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
  const int64_t elements = blocks(from.images, Operands::kDepth) * from.points;
  parallel_for(elements, std::max<int64_t>(1, kElementGrain / from.channels), [=](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p += kPackedAtOnce)
      pack<Operands, kWidth>(from, p, std::min(kPackedAtOnce, end - p), elements, panels);
  });
}

// sums[kColumns] += the elements of dy's panel.
template <typename Operands>
ONNX_TRAIN_WIDE_VECTORS void add_elements(const typename Operands::Element* dy, int64_t pitch, int64_t elements,
                                          double* sums) {
  float block[kColumns] = {};
  for (int64_t p = 0; p < elements; ++p) {
    for (int64_t o = 0; o < kColumns; ++o) block[o] += Operands::sum(dy[p * pitch + o]);
  }
  for (int64_t o = 0; o < kColumns; ++o) sums[o] += static_cast<double>(block[o]);
}

template <typename Operands>
class OuterProducts {
  using Stored = typename Operands::Stored;
  using Element = typename Operands::Element;
  static constexpr int64_t kDepth = Operands::kDepth;

 public:
  OuterProducts(const Convolution& c, const WeightGradient& f, int threads)
      : f_(f),
        grid_(make_grid(c.windows, c.x, c.y)),
        batch_(c.batch()),
        ins_(c.ins()),
        outs_(c.outs()),
        points_in_(points_in(grid_)),
        points_out_(points_out(grid_)),
        images_(std::clamp<int64_t>(blocks(kChunk, points_out_), 1, blocks(batch_, kDepth))),
        rows_(blocks(ins_, kRows)),
        columns_(blocks(outs_, kColumns)),
        shares_(std::min<int64_t>(threads, rows_ * columns_)),
        packed_(kDepth > 1 || num_taps() >= kManyTaps || ins_ % kRows != 0 || outs_ % kColumns != 0),
        x_pitch_(packed_ ? kRows : ins_),
        dy_pitch_(packed_ ? kColumns : outs_) {
    find_pairs();
    const int64_t in_panels = packed_ ? images_ * points_in_ * rows_ * kRows : 0;
    const int64_t out_panels = packed_ ? images_ * points_out_ * columns_ * kColumns : 0;
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
    if (f_.bias) std::copy_n(static_cast<double*>(address(bias_, launch)), outs_, launch.out<float>(1));
  }

 private:
  struct Chunk {
    const Element *x, *dy;
    int64_t images;
    bool first, last;
  };

  bool is_one_chunk() const { return images_ * kDepth >= batch_; }
  int64_t num_taps() const { return taps(grid_); }

  Chunk packed_chunk(const Launch& launch, int64_t image, int64_t images) const {
    const Images<Stored> x{launch.in<Stored>(f_.x) + image * points_in_ * ins_, images, points_in_, ins_};
    const Images<Stored> dy{launch.in<Stored>(f_.dy) + image * points_out_ * outs_, images, points_out_, outs_};
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

  // Pairs of a whole chunk for each tap, in the order of dy's elements, and where each block of them starts.
  void find_pairs() {
    const auto& [depth, height, width] = grid_;
    starts_.push_back(0);
    for (int64_t tap = 0; tap < num_taps(); ++tap) {
      const int64_t kw = tap % width.kernel, kh = tap / width.kernel % height.kernel,
                    kd = tap / (width.kernel * height.kernel);
      for (int64_t p = 0; p < images_ * points_out_; ++p) {
        if (p > 0 && p % kBlock == 0) starts_.push_back(pairs_.size());
        const int64_t w = width.at(p % width.out, kw), h = height.at(p / width.out % height.out, kh),
                      d = depth.at(p / (width.out * height.out) % depth.out, kd);
        if (w < 0 || w >= width.in || h < 0 || h >= height.in || d < 0 || d >= depth.in) continue;
        const int64_t element = p / points_out_ * points_in_ + (d * height.in + h) * width.in + w;
        pairs_.push_back({static_cast<int32_t>(element * x_pitch_), static_cast<int32_t>(p * dy_pitch_)});
      }
      starts_.push_back(pairs_.size());
    }
  }

  // The tiles that one thread computes. If there is but one chunk, they are made in one place, one after the other.
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
    return chunk.dy + column * kColumns * (packed_ ? chunk.images * points_out_ : 1);
  }

  void add_to_tile(const Chunk& chunk, int64_t tile, float* sums) const {
    const int64_t row = tile % rows_, column = tile / rows_, elements = chunk.images * points_out_;
    const Element* x = chunk.x + row * kRows * (packed_ ? chunk.images * points_in_ : 1);
    const Element* dy = dy_panel(chunk, column);
    if (chunk.first) std::fill_n(sums, num_taps() * kTile, 0.0f);
    const int64_t per_tap = blocks(images_ * points_out_, kBlock);
    for (int64_t block = 0; block < blocks(elements, kBlock); ++block) {
      for (int64_t tap = 0; tap < num_taps(); ++tap) {
        const size_t at = static_cast<size_t>(tap * per_tap);
        // Of a chunk that is not full, only the pairs of its images: each has as many.
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
    const int64_t elements = chunk.images * points_out_;
    if (chunk.first) std::fill_n(bias, kColumns, 0.0);
    for (int64_t p = 0; p < elements; p += kBlock)
      add_elements<Operands>(dy + p * dy_pitch_, dy_pitch_, std::min(kBlock, elements - p), bias);
  }

  // dw[o, c, tap] from the tile's sums[tap][c][o].
  void write_weights(const float* sums, int64_t tile, float* dw) const {
    const int64_t c = tile % rows_ * kRows, o = tile / rows_ * kColumns;
    const int64_t rows = std::min(kRows, ins_ - c), columns = std::min(kColumns, outs_ - o);
    for (int64_t column = 0; column < columns; ++column) {
      float* to = dw + ((o + column) * ins_ + c) * num_taps();
      for (int64_t row = 0; row < rows; ++row) {
        const float* from = sums + row * kColumns + column;
        for (int64_t tap = 0; tap < num_taps(); ++tap) *to++ = from[tap * kTile];
      }
    }
  }

  WeightGradient f_;
  Grid grid_;
  int64_t batch_, ins_, outs_, points_in_, points_out_;
  int64_t images_;          // of a chunk
  int64_t rows_, columns_;  // of tiles
  int64_t shares_;          // of the tiles, for threads
  bool packed_;
  int64_t x_pitch_, dy_pitch_;  // from one element of an operand to the next
  std::vector<Pair> pairs_;
  std::vector<size_t> starts_;
  Workspace workspace_;
  Place x_panels_, dy_panels_, tiles_, bias_;
};

template <typename Operands>
Prepared prepared(const Convolution& c, const WeightGradient& f, int threads) {
  const OuterProducts<Operands> products(c, f, threads);
  return {[products](const Launch& launch) { products.run(launch); }, products.workspace(), {}};
}

}  // namespace

bool takes_outer_products(const Convolution& c) {
  const int64_t padded = blocks(c.ins(), kRows) * blocks(c.outs(), kColumns) * kTile;
  const int64_t elements = num_elements({c.x.begin() + 2, c.x.end()}) + num_elements({c.y.begin() + 2, c.y.end()});
  constexpr int64_t kManyElements = 1 << 16;  // of one image: its panels are to stay in the cache
  const bool wide = c.operands == DType::kFloat;
  // Where there is AMX, oneDNN is up to ten times as fast on bfloat16 operands as these.
  const bool has_vectors = wide ? isa() >= Isa::kAvx512 : isa() == Isa::kAvx512Bf16;
  // What is packed in any case must be visited often enough, and no image lie in a stack alone.
  const bool worth_packing = wide || (num_elements(c.windows.kernel) >= kManyTaps && c.batch() > 1);
  return has_vectors && worth_packing && c.channels_last && c.group == 1 && elements <= kManyElements &&
         padded <= c.ins() * c.outs() * 5 / 4;
}

Prepared prepare_outer_products(const Convolution& c, const WeightGradient& f, int threads) {
  return c.operands == DType::kFloat ? prepared<Singles>(c, f, threads) : prepared<Doubles>(c, f, threads);
}

}  // namespace onnx_train::cpu
