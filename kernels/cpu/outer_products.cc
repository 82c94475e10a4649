// The weight gradient of a convolution whose images lie channels last, as sums of outer products:
//
//   dw[o, c, tap] = Σ over output elements p of dy[p, o] x[p stride + tap dilation - pad, c].
//
// Images are packed into panels of kRows channels of x and kColumns of dy, a chunk of images at a time. A tile, kRows x
// kColumns sums for each tap, stays in registers while it runs over the pairs of elements (of x, of y) that meet at
// that tap; the pairs are found when the kernel is prepared. kBlock elements of dy's panel stay in the L1 cache while
// all taps run over them. Threads share the tiles, so that no sum depends on their number.
#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/convolutions.h"
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

ONNX_TRAIN_WIDE_VECTORS void add_products(const Pair* pair, const Pair* end, const float* x, const float* dy,
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

// panels[channels / kWidth][elements][kWidth], zeros behind the last channel.
template <int64_t kWidth>
void pack(const float* image, int64_t elements, int64_t channels, float* panels) {
  const int64_t grain = std::max<int64_t>(1, kElementGrain / channels);
  parallel_for(elements, grain, [=](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p += kPackedAtOnce) {
      const int64_t last = std::min(p + kPackedAtOnce, end);
      for (int64_t c = 0; c < channels; c += kWidth) {
        const int64_t n = std::min(kWidth, channels - c);
        for (int64_t q = p; q < last; ++q) {
          float* to = panels + c * elements + q * kWidth;
          const float* from = image + q * channels + c;
          if (n == kWidth) {
            std::copy_n(from, kWidth, to);
          } else {
            std::fill_n(std::copy_n(from, n, to), kWidth - n, 0.0f);
          }
        }
      }
    }
  });
}

class OuterProducts {
 public:
  OuterProducts(const Convolution& c, const WeightGradient& f)
      : f_(f),
        grid_(make_grid(c.windows, c.x, c.y)),
        batch_(c.batch()),
        ins_(c.ins()),
        outs_(c.outs()),
        points_in_(points_in(grid_)),
        points_out_(points_out(grid_)),
        images_(std::clamp<int64_t>(blocks(kChunk, points_out_), 1, batch_)),
        rows_(blocks(ins_, kRows)),
        columns_(blocks(outs_, kColumns)),
        packed_(num_taps() >= kManyTaps || ins_ % kRows != 0 || outs_ % kColumns != 0),
        x_pitch_(packed_ ? kRows : ins_),
        dy_pitch_(packed_ ? kColumns : outs_) {
    find_pairs();
    const int64_t in_panels = packed_ ? images_ * points_in_ * rows_ * kRows : 0;
    const int64_t out_panels = packed_ ? images_ * points_out_ * columns_ * kColumns : 0;
    x_panels_ = workspace_.reserve(sizeof(float) * static_cast<size_t>(in_panels));
    dy_panels_ = workspace_.reserve(sizeof(float) * static_cast<size_t>(out_panels));
    tiles_ = workspace_.reserve(sizeof(float) * static_cast<size_t>(rows_ * columns_ * num_taps() * kTile));
    bias_ = workspace_.reserve(sizeof(double) * static_cast<size_t>(columns_ * kColumns));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Args& args) const {
    Memory memory = {nullptr, nullptr, static_cast<float*>(address(tiles_, args)),
                     static_cast<double*>(address(bias_, args))};
    for (int64_t image = 0; image < batch_; image += images_) {
      const int64_t images = std::min(images_, batch_ - image);
      set_operands(args, image, images, &memory);
      parallel_for(rows_ * columns_, 1, [&](int64_t tile, int64_t end) {
        for (; tile < end; ++tile) add_to_tile(memory, tile, images, image == 0);
      });
    }
    write_weights(memory.tiles, args.out<float>(0));
    if (f_.bias) std::copy_n(memory.bias, outs_, args.out<float>(1));
  }

 private:
  struct Memory {
    const float *x, *dy;
    float* tiles;
    double* bias;
  };

  void set_operands(const Args& args, int64_t image, int64_t images, Memory* memory) const {
    const float* x = args.in<float>(f_.x) + image * points_in_ * ins_;
    const float* dy = args.in<float>(f_.dy) + image * points_out_ * outs_;
    if (packed_) {
      float* x_panels = static_cast<float*>(address(x_panels_, args));
      float* dy_panels = static_cast<float*>(address(dy_panels_, args));
      pack<kRows>(x, images * points_in_, ins_, x_panels);
      pack<kColumns>(dy, images * points_out_, outs_, dy_panels);
      x = x_panels;
      dy = dy_panels;
    }
    memory->x = x;
    memory->dy = dy;
  }

  int64_t num_taps() const { return taps(grid_); }

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

  // The sums of one chunk of `images` images.
  void add_to_tile(const Memory& memory, int64_t tile, int64_t images, bool first) const {
    const int64_t row = tile % rows_, column = tile / rows_, elements = images * points_out_;
    const float* x = memory.x + row * kRows * (packed_ ? images * points_in_ : 1);
    const float* dy = memory.dy + column * kColumns * (packed_ ? elements : 1);
    float* sums = memory.tiles + tile * num_taps() * kTile;
    if (first) std::fill_n(sums, num_taps() * kTile, 0.0f);
    const int64_t per_tap = blocks(images_ * points_out_, kBlock);
    for (int64_t block = 0; block < blocks(elements, kBlock); ++block) {
      for (int64_t tap = 0; tap < num_taps(); ++tap) {
        const size_t at = static_cast<size_t>(tap * per_tap);
        // Of a chunk that is not full, only the pairs of its images: each has as many.
        const size_t all = starts_[at + static_cast<size_t>(per_tap)] - starts_[at];
        const size_t limit = starts_[at] + all / static_cast<size_t>(images_) * static_cast<size_t>(images);
        const size_t begin = starts_[at + static_cast<size_t>(block)];
        const size_t end = std::min(limit, starts_[at + static_cast<size_t>(block) + 1]);
        add_products(pairs_.data() + begin, pairs_.data() + end, x, dy, sums + tap * kTile);
      }
    }
    if (f_.bias && row == 0) add_to_bias(dy, elements, first, memory.bias + column * kColumns);
  }

  void add_to_bias(const float* dy, int64_t elements, bool first, double* bias) const {
    if (first) std::fill_n(bias, kColumns, 0.0);
    for (int64_t p = 0; p < elements; p += kBlock) {
      float sums[kColumns] = {};
      for (int64_t q = p; q < std::min(p + kBlock, elements); ++q) {
        for (int64_t o = 0; o < kColumns; ++o) sums[o] += dy[q * dy_pitch_ + o];
      }
      for (int64_t o = 0; o < kColumns; ++o) bias[o] += static_cast<double>(sums[o]);
    }
  }

  // dw[o, c, tap] from tiles[column][row][tap][c][o].
  void write_weights(const float* tiles, float* dw) const {
    const int64_t per_tile = num_taps() * kTile;
    parallel_for(outs_, std::max<int64_t>(1, kElementGrain / (ins_ * num_taps())), [&](int64_t o, int64_t end) {
      for (; o < end; ++o) {
        const float* column = tiles + o / kColumns * rows_ * per_tile + o % kColumns;
        float* to = dw + o * ins_ * num_taps();
        for (int64_t c = 0; c < ins_; ++c) {
          const float* from = column + c / kRows * per_tile + c % kRows * kColumns;
          for (int64_t tap = 0; tap < num_taps(); ++tap) *to++ = from[tap * kTile];
        }
      }
    });
  }

  WeightGradient f_;
  Grid grid_;
  int64_t batch_, ins_, outs_, points_in_, points_out_;
  int64_t images_;          // of a chunk
  int64_t rows_, columns_;  // of tiles
  bool packed_;
  int64_t x_pitch_, dy_pitch_;  // from one element of an operand to the next
  std::vector<Pair> pairs_;
  std::vector<size_t> starts_;
  Workspace workspace_;
  Place x_panels_, dy_panels_, tiles_, bias_;
};

}  // namespace

bool takes_outer_products(const Convolution& c) {
  const int64_t padded = blocks(c.ins(), kRows) * blocks(c.outs(), kColumns) * kTile;
  const int64_t elements = num_elements({c.x.begin() + 2, c.x.end()}) + num_elements({c.y.begin() + 2, c.y.end()});
  constexpr int64_t kManyElements = 1 << 16;  // of one image: its panels are to stay in the cache
  return has_wide_vectors() && c.operands == DType::kFloat && c.channels_last && c.group == 1 &&
         elements <= kManyElements && padded <= c.ins() * c.outs() * 5 / 4;
}

Prepared prepare_outer_products(const Convolution& c, const WeightGradient& f) {
  const OuterProducts products(c, f);
  return {[products](const Args& args) { products.run(args); }, products.workspace(), {}};
}

}  // namespace onnx_train::cpu
