// Weight gradient of a convolution on AMX (index_map.h gives the method). The rows of the packed panels are channels;
// their depth is the batch. A tile holds the sums of one panel of output channels and one panel of input channels, at
// all taps. Tiles are accumulated in the cache, one chunk of output positions at a time.
#include <algorithm>
#include <vector>

#include "kernels/cpu/convolution/channel_sums.h"
#include "kernels/cpu/convolution/convolutions.h"
#include "kernels/cpu/convolution/index_map.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/x86/amx_panels.h"
#include "kernels/cpu/x86/tiles.h"
#include "kernels/geometry/windows.h"
#include "kernels/place.h"

namespace onnx_train::cpu {

using namespace amx;

namespace {

// Distance between two taps of a tile, in floats: no multiple of 4 KiB, so that taps do not compete for cache sets.
constexpr int64_t kSums = kPanel * kPanel + 16;
constexpr int64_t kPanelBytes = 1'400'000;  // bytes of all packed panels in scratch
constexpr int64_t kSumBytes = 600'000;      // bytes of all tiles in scratch

class AmxWgrad {
 public:
  AmxWgrad(const Convolution& c, const WeightGradient& f, int threads)
      : f_(f),
        batch_(c.batch()),
        in_channels_(c.in_channels()),
        out_channels_(c.out_channels()),
        taps_(num_elements(c.windows.kernel)),
        x_spatial_size_(num_elements(c.x) / batch_ / in_channels_),
        y_spatial_size_(num_elements(c.y) / batch_ / out_channels_),
        elements_at_once_(y_spatial_size_ < x_spatial_size_ || taps_ == 1 ? 16 : 32),
        map_(y_spatial_size_, x_spatial_size_, taps_, elements_at_once_,
             [geometry = make_geometry(c.windows, c.x, c.y)](int64_t p, int64_t tap) {
               return element_of(geometry, p, tap);
             }),
        rows_(panels_of(out_channels_)),
        columns_(panels_of(in_channels_)) {
    find_pairs();
    constexpr int64_t kFewTaps = 3;  // splitting the images again does not pay for fewer taps per thread
    shares_ = std::min<int64_t>(threads, rows_ * columns_ * blocks(taps_, kFewTaps));
    choose_tiles(std::min(rows_, blocks(rows_ * columns_, shares_)));
    sums_ = workspace_.reserve(sizeof(float) * static_cast<size_t>(shares_ * tiles_at_once() * taps_ * kSums));
    panels_ = workspace_.reserve(sizeof(Element) * static_cast<size_t>(shares_ * panels_of_share()));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) const {
    parallel_for(shares_, 1, [&](int64_t share, int64_t end) {
      for (; share < end; ++share) Share(*this, launch, share).run();
    });
    if (f_.bias)
      add_up_channels(launch.in<float>(f_.dy), batch_ * y_spatial_size_, out_channels_, launch.out<float>(1));
  }

 private:
  bool is_one_chunk() const { return batch_ <= kPanel && map_.chunks.size() == 1; }
  // The number of tiles that are kept at a time: with one chunk a tile is complete, and written, at once.
  int64_t tiles_at_once() const { return is_one_chunk() ? 1 : rows_at_once_ * columns_at_once_; }
  int64_t x_size() const { return columns_at_once_ * panel_size<float>(kDepth); }  // elements per position
  int64_t y_size() const { return rows_at_once_ * panel_size<float>(kDepth); }
  int64_t panels_of_share() const { return map_.slots * x_size() + elements_at_once_ * y_size(); }

  // Accumulates as many tiles at a time as the cache holds, so that images are packed as few times as possible.
  void choose_tiles(int64_t rows_of_share) {
    const int64_t tile_bytes = taps_ * kSums * static_cast<int64_t>(sizeof(float));
    int64_t least = 0;
    for (int64_t rows = 1; rows <= rows_of_share; ++rows) {
      const int64_t left = kPanelBytes - elements_at_once_ * rows * panel_bytes<float>(kDepth);
      const int64_t most = std::min(left / (map_.slots * panel_bytes<float>(kDepth)),
                                    is_one_chunk() ? columns_ : kSumBytes / (rows * tile_bytes));
      const int64_t columns = std::clamp<int64_t>(most, 1, columns_);
      const int64_t cost = blocks(rows_of_share, rows) * columns_ * x_spatial_size_ +
                           blocks(columns_, columns) * rows_of_share * y_spatial_size_ *
                               2;  // dy is transposed while it is packed, which costs twice as much
      if (most < 1 && rows > 1) break;
      if (least > 0 && cost >= least) continue;
      least = cost;
      rows_at_once_ = rows;
      columns_at_once_ = columns;
    }
  }

  // Lists the panel pairs of each chunk and tap.
  void find_pairs() {
    for (const Chunk& chunk : map_.chunks) {
      for (int64_t tap = 0; tap < taps_; ++tap) {
        starts_.push_back(pairs_.size());
        for (int64_t p = chunk.begin; p < chunk.end; ++p) {
          const int64_t index = map_.used_index[static_cast<size_t>(p * taps_ + tap)];
          if (index < 0) continue;
          pairs_.push_back({static_cast<int32_t>(p - chunk.begin), map_.slot(index),
                            static_cast<int32_t>(p * out_channels_),
                            static_cast<int32_t>(map_.element(index) * in_channels_)});
        }
      }
    }
    starts_.push_back(pairs_.size());
  }

  // The work of one thread: the taps [begin_, end_) of all tiles, numbered tile after tile.
  class Share {
   public:
    Share(const AmxWgrad& plan, const Launch& launch, int64_t share)
        : plan_(plan),
          map_(plan.map_),
          x_(launch.in<float>(plan.f_.x)),
          dy_(launch.in<float>(plan.f_.dy)),
          dw_(launch.out<float>()),
          sums_(static_cast<float*>(address(plan.sums_, launch)) + share * plan.tiles_at_once() * plan.taps_ * kSums),
          x_panels_(static_cast<Element*>(address(plan.panels_, launch)) + share * plan.panels_of_share()),
          dy_panels_(x_panels_ + map_.slots * plan.x_size()) {
      const int64_t all = plan.rows_ * plan.columns_ * plan.taps_;
      begin_ = all * share / plan.shares_;
      end_ = all * (share + 1) / plan.shares_;
    }

    void run() {
      const AmxTileScope tiles;
      const int64_t first = begin_ / plan_.taps_, last = (end_ - 1) / plan_.taps_;
      const int64_t first_row = first / plan_.columns_, last_row = last / plan_.columns_;
      const int64_t first_column = first_row == last_row ? first % plan_.columns_ : 0;
      const int64_t end_column = first_row == last_row ? last % plan_.columns_ + 1 : plan_.columns_;
      for (column_ = first_column; column_ < end_column; column_ += plan_.columns_at_once_) {
        columns_ = std::min(plan_.columns_at_once_, end_column - column_);
        for (row_ = first_row; row_ <= last_row; row_ += plan_.rows_at_once_) {
          rows_ = std::min(plan_.rows_at_once_, last_row + 1 - row_);
          add_up();
        }
      }
    }

   private:
    // A panel of output channels (row) and one of input channels (column); this share computes the taps [begin, end).
    struct Tile {
      int64_t row, column, begin, end;
      float* sums;
    };

    template <typename F>
    void each_tile(const F& f) const {
      for (int64_t column = 0; column < columns_; ++column) {
        for (int64_t row = 0; row < rows_; ++row) {
          const int64_t first = ((row_ + row) * plan_.columns_ + column_ + column) * plan_.taps_;
          f(Tile{row_ + row, column_ + column, std::clamp<int64_t>(begin_ - first, 0, plan_.taps_),
                 std::clamp<int64_t>(end_ - first, 0, plan_.taps_),
                 sums_ + (plan_.is_one_chunk() ? 0 : row * columns_ + column) * plan_.taps_ * kSums});
        }
      }
    }

    // Accumulates the current tiles over all images and positions.
    void add_up() {
      for (int64_t image = 0; image < plan_.batch_; image += kPanel) {
        const int64_t images = std::min(kPanel, plan_.batch_ - image);
        int64_t split_until = map_.chunks.front().first;
        for (size_t i = 0; i < map_.chunks.size(); ++i) {
          const Chunk& chunk = map_.chunks[i];
          for (; split_until < chunk.last; ++split_until) {
            const StridedView<float> view =
                x_from(image, column_).moved(map_.element(split_until) * plan_.in_channels_);
            pack_panels(view, std::min(columns_ * kPanel, plan_.in_channels_ - column_ * kPanel), images,
                        PanelLayout::kVnni, x_panels_ + map_.slot(split_until) * plan_.x_size());
          }
          for (int64_t p = chunk.begin; p < chunk.end; ++p) {
            pack_panels(dy_from(image, row_).moved(p * plan_.out_channels_),
                        std::min(rows_ * kPanel, plan_.out_channels_ - row_ * kPanel), images, PanelLayout::kRowMajor,
                        dy_panels_ + (p - chunk.begin) * plan_.y_size());
          }
          const bool last = image + images == plan_.batch_ && i + 1 == map_.chunks.size();
          each_tile([&](const Tile& tile) {
            for (int64_t tap = tile.begin; tap < tile.end; ++tap) multiply(image, images, i, tile, tap);
            if (last) write_weights(tile);
          });
        }
      }
    }

    StridedView<float> x_from(int64_t image, int64_t column) const {
      const int64_t size = plan_.x_spatial_size_ * plan_.in_channels_;
      return {x_ + image * size + column * kPanel, 1, size};
    }
    StridedView<float> dy_from(int64_t image, int64_t row) const {
      const int64_t size = plan_.y_spatial_size_ * plan_.out_channels_;
      return {dy_ + image * size + row * kPanel, 1, size};
    }

    void multiply(int64_t image, int64_t images, size_t chunk, const Tile& tile, int64_t tap) const {
      const size_t at = chunk * static_cast<size_t>(plan_.taps_) + static_cast<size_t>(tap);
      const size_t begin = plan_.starts_[at], end = plan_.starts_[at + 1];
      const PanelPairs pairs{plan_.pairs_.data() + begin, static_cast<int64_t>(end - begin), plan_.y_size(),
                             plan_.x_size()};
      alignas(64) float sums[kPanel * kPanel];
      multiply_panels<float>(dy_panels_ + (tile.row - row_) * panel_size<float>(kDepth),
                             x_panels_ + (tile.column - column_) * panel_size<float>(kDepth), pairs, 1,
                             /*accumulate=*/false, {}, sums);
      write<float>({.a = dy_from(image, tile.row),
                    .b = x_from(image, tile.column),
                    .rows = std::min(kPanel, plan_.out_channels_ - tile.row * kPanel),
                    .columns = std::min(kPanel, plan_.in_channels_ - tile.column * kPanel),
                    .depth = images,
                    .alpha = 1,
                    .accumulate = image > 0 || chunk > 0,
                    .bias = nullptr,
                    .y = tile.sums + tap * kSums,
                    .rounded = nullptr,
                    .y_row = kPanel},
                   pairs, sums);
    }

    // dw[o, c, tap] from sums[tap][o][c].
    void write_weights(const Tile& tile) const {
      const int64_t out_channels = std::min(kPanel, plan_.out_channels_ - tile.row * kPanel);
      const int64_t in_channels = std::min(kPanel, plan_.in_channels_ - tile.column * kPanel);
      for (int64_t o = 0; o < out_channels; ++o) {
        float* to = dw_ + ((tile.row * kPanel + o) * plan_.in_channels_ + tile.column * kPanel) * plan_.taps_;
        for (int64_t c = 0; c < in_channels; ++c, to += plan_.taps_) {
          const float* from = tile.sums + o * kPanel + c;
          for (int64_t tap = tile.begin; tap < tile.end; ++tap) to[tap] = from[tap * kSums];
        }
      }
    }

    const AmxWgrad& plan_;
    const ConvIndexMap& map_;
    const float *x_, *dy_;
    float *dw_, *sums_;
    Element *x_panels_, *dy_panels_;
    int64_t begin_, end_;
    int64_t row_ = 0, rows_ = 0, column_ = 0, columns_ = 0;  // the current panels
  };

  WeightGradient f_;
  int64_t batch_, in_channels_, out_channels_, taps_;
  int64_t x_spatial_size_, y_spatial_size_;
  int64_t elements_at_once_;  // output positions in a chunk: fewer if they read many inputs or few taps reuse these
  ConvIndexMap map_;
  std::vector<PanelPair> pairs_;
  std::vector<size_t> starts_;
  int64_t rows_, columns_;  // number of panels of output and of input channels
  int64_t rows_at_once_ = 0, columns_at_once_ = 0;
  int64_t shares_ = 0;
  Workspace workspace_;
  OperandPlace sums_, panels_;
};

}  // namespace

Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const WeightGradient& f) {
  const AmxWgrad sums(c, f, spec.threads());
  return {[sums](const Launch& launch) { sums.run(launch); }, sums.workspace(), {}};
}

}  // namespace onnx_train::cpu
