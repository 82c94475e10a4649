// The convolution and its input gradient of amx_meetings.h: each element of the output is one sum over pairs of panels.
#include <algorithm>
#include <vector>

#include "kernels/cpu/amx_meetings.h"
#include "kernels/cpu/amx_panels.h"
#include "kernels/cpu/convolutions.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/windows.h"

namespace onnx_train::cpu {

using namespace amx;

namespace {

// The convolution, or its input gradient, which reads dy and has no bias.
class ImageProducts {
 public:
  // Inputs of the node: images, weights and, or -1, the bias.
  ImageProducts(const Convolution& c, bool gradient, int images, int weights, int bias, int threads)
      : images_(images),
        weights_(weights),
        bias_(bias),
        batch_(c.batch()),
        ins_(gradient ? c.outs() : c.ins()),
        outs_(gradient ? c.ins() : c.outs()),
        taps_(num_elements(c.windows.kernel)),
        in_step_(gradient ? c.ins() * taps_ : taps_),
        out_step_(gradient ? taps_ : c.ins() * taps_),
        points_from_(num_elements(gradient ? c.y : c.x) / batch_ / ins_),
        points_to_(num_elements(gradient ? c.x : c.y) / batch_ / outs_),
        meetings_(points_to_, points_from_, taps_, kElementsAtOnce,
                  [grid = make_grid(c.windows, c.x, c.y), gradient](int64_t i, int64_t tap) {
                    return met_by(grid, gradient, i, tap);
                  }) {
    find_pairs();
    const int64_t all = panel_bytes<float>(ins_);
    const int64_t parts = std::max(blocks(taps_ * all, kPanelBytes), blocks(meetings_.slots * all, kSlotBytes));
    depth_ = steps_of(blocks(ins_, parts)) * kDepth;
    share_output(threads);
    const int64_t own = blocks(panels_of(outs_), shares_of_panels_);
    const int64_t most = std::max<int64_t>(1, kWeightBytes / (taps_ * panel_bytes<float>(depth_)));
    panels_ = blocks(own, blocks(own, most));
    weight_size_ = panels_ * taps_ * panel_size<float>(depth_);
    const int64_t scratch = weight_size_ + meetings_.slots * panel_size<float>(depth_);
    scratch_ = workspace_.reserve(sizeof(Element) * static_cast<size_t>(shares_ * scratch));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) const {
    parallel_for(shares_, 1, [&](int64_t share, int64_t end) {
      for (; share < end; ++share) Share(*this, launch, share).run();
    });
  }

 private:
  static constexpr int64_t kElementsAtOnce = 2;     // of the output: a chunk
  static constexpr int64_t kPanelBytes = 262'144;   // of one panel of weights, at all taps
  static constexpr int64_t kWeightBytes = 900'000;  // of the panels of weights at hand
  static constexpr int64_t kSlotBytes = 900'000;    // of those of images

  void find_pairs() {
    for (int64_t i = 0; i < points_to_; ++i) {
      starts_.push_back(pairs_.size());
      for (int64_t tap = 0; tap < taps_; ++tap) {
        const int64_t place = meetings_.places[static_cast<size_t>(i * taps_ + tap)];
        if (place < 0) continue;
        pairs_.push_back({meetings_.slot(place), static_cast<int32_t>(tap),
                          static_cast<int32_t>(meetings_.element(place) * ins_), static_cast<int32_t>(tap)});
      }
    }
    starts_.push_back(pairs_.size());
  }

  // A share is some panels of weights at some chunks. It splits those weights, and the images that the chunks read.
  void share_output(int64_t threads) {
    const int64_t panels = panels_of(outs_), chunks = panels_of(batch_) * static_cast<int64_t>(meetings_.chunks.size());
    const auto part = [](int64_t all, int64_t shares) {
      return static_cast<double>(blocks(all, shares)) / static_cast<double>(all);
    };
    // As long as it takes to split one number of an image.
    constexpr double kWeight = 3, kProduct = 1.0 / 75;
    const double images = static_cast<double>(batch_ * points_from_ * ins_);
    const double weights = kWeight * static_cast<double>(outs_ * ins_ * taps_);
    const double products = kProduct * static_cast<double>(batch_ * outs_ * ins_) * static_cast<double>(pairs_.size());
    double least = 0;
    for (int64_t of_panels = 1; of_panels <= std::min(threads, panels); ++of_panels) {
      const int64_t of_chunks = std::min(threads / of_panels, chunks);
      const double own_panels = part(panels, of_panels), own_chunks = part(chunks, of_chunks);
      const double time = images * own_chunks + weights * own_panels + products * own_panels * own_chunks;
      if (of_panels > 1 && time >= least) continue;
      least = time;
      shares_of_panels_ = of_panels;
      shares_ = of_panels * of_chunks;
    }
  }

  // What one thread does.
  class Share {
   public:
    Share(const ImageProducts& plan, const Launch& launch, int64_t share)
        : plan_(plan),
          m_(plan.meetings_),
          images_(launch.in<float>(plan.images_)),
          weights_(launch.in<float>(plan.weights_)),
          bias_(plan.bias_ >= 0 ? launch.in<float>(plan.bias_) : nullptr),
          to_(launch.out<float>()),
          size_(panel_size<float>(plan.depth_)),
          weight_panels_(static_cast<Element*>(address(plan.scratch_, launch)) +
                         share * (plan.weight_size_ + m_.slots * size_)),
          slots_(weight_panels_ + plan.weight_size_) {
      const int64_t panels = panels_of(plan.outs_), of_panels = plan.shares_of_panels_;
      const int64_t chunks = panels_of(plan.batch_) * num_chunks(), of_chunks = plan.shares_ / of_panels;
      const int64_t column = share % of_panels, row = share / of_panels;
      first_panel_ = panels * column / of_panels;
      last_panel_ = panels * (column + 1) / of_panels;
      first_chunk_ = chunks * row / of_chunks;
      last_chunk_ = chunks * (row + 1) / of_chunks;
    }

    void run() {
      const Tiles tiles;
      for (first_depth_ = 0; first_depth_ < plan_.ins_; first_depth_ += plan_.depth_) {
        depth_ = std::min(plan_.depth_, plan_.ins_ - first_depth_);
        for (int64_t panel = first_panel_; panel < last_panel_; panel += plan_.panels_) {
          const int64_t end = std::min(last_panel_, panel + plan_.panels_);
          for (int64_t i = panel; i < end; ++i) split_weights(i, i - panel);
          multiply(panel, end);
        }
      }
    }

   private:
    int64_t num_chunks() const { return static_cast<int64_t>(m_.chunks.size()); }

    Lines<float> weights_of(int64_t panel) const {
      return Lines<float>{weights_, plan_.out_step_, plan_.in_step_}.from(panel * kPanel, first_depth_);
    }
    Lines<float> images_from(int64_t image) const {
      return {images_ + image * plan_.points_from_ * plan_.ins_ + first_depth_, plan_.points_from_ * plan_.ins_, 1};
    }

    // All taps of some depth before what is deeper, as they lie.
    void split_weights(int64_t panel, int64_t to) {
      const Lines<float> lines = weights_of(panel);
      const int64_t count = std::min(kPanel, plan_.outs_ - panel * kPanel);
      for (int64_t depth = 0; depth < depth_; depth += kDepth) {
        for (int64_t tap = 0; tap < plan_.taps_; ++tap) {
          to_panels(lines.from(0, depth).moved(tap), count, std::min(kDepth, depth_ - depth), Form::kPairs,
                    weight_panels_ + (to * plan_.taps_ + tap) * size_ + panel_size<float>(depth));
        }
      }
    }

    void multiply(int64_t panel, int64_t end) {
      int64_t split_until = 0;
      for (int64_t i = first_chunk_; i < last_chunk_; ++i) {
        const Chunk& chunk = m_.chunks[static_cast<size_t>(i % num_chunks())];
        const int64_t image = i / num_chunks() * kPanel, count = std::min(kPanel, plan_.batch_ - image);
        const Lines<float> images = images_from(image);
        if (i == first_chunk_ || i % num_chunks() == 0) split_until = chunk.first;
        for (; split_until < chunk.last; ++split_until) {
          to_panels(images.moved(m_.element(split_until) * plan_.ins_), count, depth_, Form::kLines,
                    slots_ + m_.slot(split_until) * size_);
        }
        for (int64_t p = panel; p < end; ++p) {
          for (int64_t element = chunk.begin; element < chunk.end; ++element) {
            multiply(image, count, element, p, weight_panels_ + (p - panel) * plan_.taps_ * size_);
          }
        }
      }
    }

    void multiply(int64_t image, int64_t count, int64_t element, int64_t panel, const Element* weights) const {
      const size_t begin = plan_.starts_[static_cast<size_t>(element)];
      const size_t end = plan_.starts_[static_cast<size_t>(element) + 1];
      const int64_t out = panel * kPanel;
      const Pairs pairs{plan_.pairs_.data() + begin, static_cast<int64_t>(end - begin), size_, size_};
      alignas(64) float sums[kPanel * kPanel];
      multiply_panels<float>(slots_, weights, pairs, steps_of(depth_), /*onto_sums=*/false, {}, sums);
      write<float>({.a = images_from(image),
                    .b = weights_of(panel),
                    .rows = count,
                    .columns = std::min(kPanel, plan_.outs_ - out),
                    .depth = depth_,
                    .alpha = 1,
                    .onto_y = first_depth_ > 0,
                    .bias = bias_ ? bias_ + out : nullptr,
                    .y = to_ + (image * plan_.points_to_ + element) * plan_.outs_ + out,
                    .rounded = nullptr,
                    .y_row = plan_.points_to_ * plan_.outs_},
                   pairs, sums);
    }

    const ImageProducts& plan_;
    const Meetings& m_;
    const float *images_, *weights_, *bias_;
    float* to_;
    int64_t size_;  // of the panels at hand
    Element *weight_panels_, *slots_;
    int64_t first_panel_, last_panel_, first_chunk_, last_chunk_;
    int64_t first_depth_ = 0, depth_ = 0;
  };

  int images_, weights_, bias_;
  int64_t batch_, ins_, outs_, taps_;
  int64_t in_step_, out_step_;  // between neighbouring channels of weights
  int64_t points_from_, points_to_;
  Meetings meetings_;
  std::vector<Pair> pairs_;  // of the elements of the output
  std::vector<size_t> starts_;
  int64_t depth_ = 0, panels_ = 0;  // of the weights at hand
  int64_t shares_ = 1, shares_of_panels_ = 1;
  int64_t weight_size_ = 0;
  Workspace workspace_;
  Place scratch_;
};

Prepared prepared(const NodeSpec& spec, const Convolution& c, bool gradient, int images, int weights, int bias) {
  const ImageProducts products(c, gradient, images, weights, bias, spec.threads());
  return {[products](const Launch& launch) { products.run(launch); }, products.workspace(), {}};
}

}  // namespace

bool takes_amx(const Convolution& c) {
  if (isa() < Isa::kAmx || c.operands != DType::kFloat || !c.channels_last || c.group > 1) return false;
  const auto filled = [](int64_t lines) {
    return static_cast<double>(lines) / static_cast<double>(panels_of(lines) * kPanel);
  };
  constexpr double kLeastFilled = 0.6;
  const bool is_filled = filled(c.batch()) * filled(c.ins()) * filled(c.outs()) >= kLeastFilled;  // no, if empty
  if (!is_filled || std::max(num_elements(c.x), num_elements(c.y)) / c.batch() > INT32_MAX) return false;
  const Grid grid = make_grid(c.windows, c.x, c.y);
  const int64_t pairs = meetings(grid), used = std::min(pairs, points_in(grid));
  // Each number that is split has to be used often enough.
  constexpr int64_t kLeastProducts = 32;
  const int64_t numbers = c.batch() * (used * c.ins() + points_out(grid) * c.outs()) + num_elements(c.w);
  if (c.batch() * pairs * c.ins() * c.outs() < kLeastProducts * numbers) return false;
  // The elements from the first to the last one that a window reads have to fit into the cache.
  constexpr int64_t kMostElements = 250, kMostPairs = 1 << 17;
  int64_t last = 0;
  for (const WindowAxis& axis : grid) last = last * axis.in + (axis.kernel - 1) * axis.dilation;
  return std::min(last, points_in(grid)) < kMostElements && pairs <= kMostPairs;
}

Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const Forward& f) {
  return prepared(spec, c, /*gradient=*/false, f.x, f.w, f.bias);
}

Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const InputGradient& f) {
  return prepared(spec, c, /*gradient=*/true, f.dy, f.w, -1);
}

}  // namespace onnx_train::cpu
