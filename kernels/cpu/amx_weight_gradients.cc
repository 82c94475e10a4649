// The weight gradient of amx_meetings.h. Its lines are channels, and images are the depth. The sums of a panel of
// channels of y and one of x at all taps are a tile; they grow in the cache, a chunk of elements of y at a time.
#include <algorithm>
#include <vector>

#include "kernels/cpu/amx_meetings.h"
#include "kernels/cpu/amx_panels.h"
#include "kernels/cpu/channel_sums.h"
#include "kernels/cpu/convolutions.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/windows.h"

namespace onnx_train::cpu {

using namespace amx;

namespace {

// Of a tile, from one tap to the next: a few more than there are, or all would compete for the same cache lines.
constexpr int64_t kSums = kPanel * kPanel + 16;
constexpr int64_t kPanelBytes = 1'400'000;  // of the panels at hand
constexpr int64_t kSumBytes = 600'000;      // of the tiles at hand

class WeightSums {
 public:
  WeightSums(const Convolution& c, const WeightGradient& f, int threads)
      : f_(f),
        batch_(c.batch()),
        ins_(c.ins()),
        outs_(c.outs()),
        taps_(num_elements(c.windows.kernel)),
        points_x_(num_elements(c.x) / batch_ / ins_),
        points_y_(num_elements(c.y) / batch_ / outs_),
        elements_at_once_(points_y_ < points_x_ || taps_ == 1 ? 16 : 32),
        meetings_(points_y_, points_x_, taps_, elements_at_once_,
                  [grid = make_grid(c.windows, c.x, c.y)](int64_t p, int64_t tap) { return element_of(grid, p, tap); }),
        rows_(panels_of(outs_)),
        columns_(panels_of(ins_)) {
    find_pairs();
    constexpr int64_t kFewTaps = 3;  // less are not worth splitting images for
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
    if (f_.bias) add_up_channels(launch.in<float>(f_.dy), batch_ * points_y_, outs_, launch.out<float>(1));
  }

 private:
  bool is_one_chunk() const { return batch_ <= kPanel && meetings_.chunks.size() == 1; }
  // Whose sums are kept: of one chunk, a tile is complete at once.
  int64_t tiles_at_once() const { return is_one_chunk() ? 1 : rows_at_once_ * columns_at_once_; }
  int64_t x_size() const { return columns_at_once_ * panel_size<float>(kDepth); }  // of an element
  int64_t y_size() const { return rows_at_once_ * panel_size<float>(kDepth); }
  int64_t panels_of_share() const { return meetings_.slots * x_size() + elements_at_once_ * y_size(); }

  // As many as the cache holds, so that images are split as few times as possible.
  void choose_tiles(int64_t rows_of_share) {
    const int64_t tile_bytes = taps_ * kSums * static_cast<int64_t>(sizeof(float));
    int64_t least = 0;
    for (int64_t rows = 1; rows <= rows_of_share; ++rows) {
      const int64_t left = kPanelBytes - elements_at_once_ * rows * panel_bytes<float>(kDepth);
      const int64_t most = std::min(left / (meetings_.slots * panel_bytes<float>(kDepth)),
                                    is_one_chunk() ? columns_ : kSumBytes / (rows * tile_bytes));
      const int64_t columns = std::clamp<int64_t>(most, 1, columns_);
      const int64_t cost = blocks(rows_of_share, rows) * columns_ * points_x_ +
                           blocks(columns_, columns) * rows_of_share * points_y_ * 2;  // transposed
      if (most < 1 && rows > 1) break;
      if (least > 0 && cost >= least) continue;
      least = cost;
      rows_at_once_ = rows;
      columns_at_once_ = columns;
    }
  }

  // For each chunk, at each tap.
  void find_pairs() {
    for (const Chunk& chunk : meetings_.chunks) {
      for (int64_t tap = 0; tap < taps_; ++tap) {
        starts_.push_back(pairs_.size());
        for (int64_t p = chunk.begin; p < chunk.end; ++p) {
          const int64_t place = meetings_.places[static_cast<size_t>(p * taps_ + tap)];
          if (place < 0) continue;
          pairs_.push_back({static_cast<int32_t>(p - chunk.begin), meetings_.slot(place),
                            static_cast<int32_t>(p * outs_), static_cast<int32_t>(meetings_.element(place) * ins_)});
        }
      }
    }
    starts_.push_back(pairs_.size());
  }

  // What one thread does: the taps [begin_, end_) of all tiles, one tile after the other.
  class Share {
   public:
    Share(const WeightSums& plan, const Launch& launch, int64_t share)
        : plan_(plan),
          m_(plan.meetings_),
          x_(launch.in<float>(plan.f_.x)),
          dy_(launch.in<float>(plan.f_.dy)),
          dw_(launch.out<float>()),
          sums_(static_cast<float*>(address(plan.sums_, launch)) + share * plan.tiles_at_once() * plan.taps_ * kSums),
          x_panels_(static_cast<Element*>(address(plan.panels_, launch)) + share * plan.panels_of_share()),
          dy_panels_(x_panels_ + m_.slots * plan.x_size()) {
      const int64_t all = plan.rows_ * plan.columns_ * plan.taps_;
      begin_ = all * share / plan.shares_;
      end_ = all * (share + 1) / plan.shares_;
    }

    void run() {
      const Tiles tiles;
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
    // Panels of channels, the taps [begin, end) of which are this share's.
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

    // Over the images and their elements, of the tiles at hand.
    void add_up() {
      for (int64_t image = 0; image < plan_.batch_; image += kPanel) {
        const int64_t images = std::min(kPanel, plan_.batch_ - image);
        int64_t split_until = m_.chunks.front().first;
        for (size_t i = 0; i < m_.chunks.size(); ++i) {
          const Chunk& chunk = m_.chunks[i];
          for (; split_until < chunk.last; ++split_until) {
            const Lines<float> lines = x_from(image, column_).moved(m_.element(split_until) * plan_.ins_);
            to_panels(lines, std::min(columns_ * kPanel, plan_.ins_ - column_ * kPanel), images, Form::kPairs,
                      x_panels_ + m_.slot(split_until) * plan_.x_size());
          }
          for (int64_t p = chunk.begin; p < chunk.end; ++p) {
            to_panels(dy_from(image, row_).moved(p * plan_.outs_),
                      std::min(rows_ * kPanel, plan_.outs_ - row_ * kPanel), images, Form::kLines,
                      dy_panels_ + (p - chunk.begin) * plan_.y_size());
          }
          const bool last = image + images == plan_.batch_ && i + 1 == m_.chunks.size();
          each_tile([&](const Tile& tile) {
            for (int64_t tap = tile.begin; tap < tile.end; ++tap) multiply(image, images, i, tile, tap);
            if (last) write_weights(tile);
          });
        }
      }
    }

    Lines<float> x_from(int64_t image, int64_t column) const {
      const int64_t size = plan_.points_x_ * plan_.ins_;
      return {x_ + image * size + column * kPanel, 1, size};
    }
    Lines<float> dy_from(int64_t image, int64_t row) const {
      const int64_t size = plan_.points_y_ * plan_.outs_;
      return {dy_ + image * size + row * kPanel, 1, size};
    }

    void multiply(int64_t image, int64_t images, size_t chunk, const Tile& tile, int64_t tap) const {
      const size_t at = chunk * static_cast<size_t>(plan_.taps_) + static_cast<size_t>(tap);
      const size_t begin = plan_.starts_[at], end = plan_.starts_[at + 1];
      const Pairs pairs{plan_.pairs_.data() + begin, static_cast<int64_t>(end - begin), plan_.y_size(), plan_.x_size()};
      alignas(64) float sums[kPanel * kPanel];
      multiply_panels<float>(dy_panels_ + (tile.row - row_) * panel_size<float>(kDepth),
                             x_panels_ + (tile.column - column_) * panel_size<float>(kDepth), pairs, 1,
                             /*onto_sums=*/false, {}, sums);
      write<float>({.a = dy_from(image, tile.row),
                    .b = x_from(image, tile.column),
                    .rows = std::min(kPanel, plan_.outs_ - tile.row * kPanel),
                    .columns = std::min(kPanel, plan_.ins_ - tile.column * kPanel),
                    .depth = images,
                    .alpha = 1,
                    .onto_y = image > 0 || chunk > 0,
                    .bias = nullptr,
                    .y = tile.sums + tap * kSums,
                    .rounded = nullptr,
                    .y_row = kPanel},
                   pairs, sums);
    }

    // dw[o, c, tap] from sums[tap][o][c].
    void write_weights(const Tile& tile) const {
      const int64_t outs = std::min(kPanel, plan_.outs_ - tile.row * kPanel);
      const int64_t ins = std::min(kPanel, plan_.ins_ - tile.column * kPanel);
      for (int64_t o = 0; o < outs; ++o) {
        float* to = dw_ + ((tile.row * kPanel + o) * plan_.ins_ + tile.column * kPanel) * plan_.taps_;
        for (int64_t c = 0; c < ins; ++c, to += plan_.taps_) {
          const float* from = tile.sums + o * kPanel + c;
          for (int64_t tap = tile.begin; tap < tile.end; ++tap) to[tap] = from[tap * kSums];
        }
      }
    }

    const WeightSums& plan_;
    const Meetings& m_;
    const float *x_, *dy_;
    float *dw_, *sums_;
    Element *x_panels_, *dy_panels_;
    int64_t begin_, end_;
    int64_t row_ = 0, rows_ = 0, column_ = 0, columns_ = 0;  // of panels at hand
  };

  WeightGradient f_;
  int64_t batch_, ins_, outs_, taps_;
  int64_t points_x_, points_y_;
  int64_t elements_at_once_;  // of y: a chunk. A few, where more would meet many of x or few taps use them
  Meetings meetings_;
  std::vector<Pair> pairs_;
  std::vector<size_t> starts_;
  int64_t rows_, columns_;  // panels of channels of y, of x
  int64_t rows_at_once_ = 0, columns_at_once_ = 0;
  int64_t shares_ = 0;
  Workspace workspace_;
  Place sums_, panels_;
};

}  // namespace

Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const WeightGradient& f) {
  const WeightSums sums(c, f, spec.threads());
  return {[sums](const Launch& launch) { sums.run(launch); }, sums.workspace(), {}};
}

}  // namespace onnx_train::cpu
