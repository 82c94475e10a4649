// Forward convolution and input gradient on AMX (index_map.h gives the method): each output position is one sum over
// pairs of packed panels.
#include <algorithm>
#include <vector>

#include "kernels/cpu/convolution/convolutions.h"
#include "kernels/cpu/convolution/index_map.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/x86/amx_panels.h"
#include "kernels/cpu/x86/tiles.h"
#include "kernels/geometry/windows.h"
#include "kernels/place.h"

namespace onnx_train::cpu {

using namespace amx;

namespace {

// The forward convolution, or the input gradient, which reads dy and has no bias. Immutable after construction; any
// number of threads may call run() with different launches.
class AmxConvolution {
 public:
  // `images`, `weights` and `bias` are input numbers of the node; `bias` is -1 when there is none.
  AmxConvolution(const Convolution& c, bool gradient, int images, int weights, int bias, int threads)
      : images_(images),
        weights_(weights),
        bias_(bias),
        batch_(c.batch()),
        in_channels_(gradient ? c.out_channels() : c.in_channels()),
        out_channels_(gradient ? c.in_channels() : c.out_channels()),
        taps_(num_elements(c.windows.kernel)),
        in_step_(gradient ? c.in_channels() * taps_ : taps_),
        out_step_(gradient ? taps_ : c.in_channels() * taps_),
        from_spatial_size_(num_elements(gradient ? c.y : c.x) / batch_ / in_channels_),
        to_spatial_size_(num_elements(gradient ? c.x : c.y) / batch_ / out_channels_),
        map_(to_spatial_size_, from_spatial_size_, taps_, kElementsAtOnce,
             [geometry = make_geometry(c.windows, c.x, c.y), gradient](int64_t i, int64_t tap) {
               return input_index(geometry, gradient, i, tap);
             }) {
    find_pairs();
    const int64_t all = panel_bytes<float>(in_channels_);
    const int64_t parts = std::max(blocks(taps_ * all, kPanelBytes), blocks(map_.slots * all, kSlotBytes));
    depth_ = steps_of(blocks(in_channels_, parts)) * kDepth;
    share_output(threads);
    const int64_t own = blocks(panels_of(out_channels_), shares_of_panels_);
    const int64_t most = std::max<int64_t>(1, kWeightBytes / (taps_ * panel_bytes<float>(depth_)));
    panels_ = blocks(own, blocks(own, most));
    weight_size_ = panels_ * taps_ * panel_size<float>(depth_);
    const int64_t scratch = weight_size_ + map_.slots * panel_size<float>(depth_);
    scratch_ = workspace_.reserve(sizeof(Element) * static_cast<size_t>(shares_ * scratch));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) const {
    parallel_for(shares_, 1, [&](int64_t share, int64_t end) {
      for (; share < end; ++share) Share(*this, launch, share).run();
    });
  }

 private:
  static constexpr int64_t kElementsAtOnce = 2;     // output positions in a chunk
  static constexpr int64_t kPanelBytes = 262'144;   // bytes of one panel of weights, all taps
  static constexpr int64_t kWeightBytes = 900'000;  // bytes of all weight panels in scratch
  static constexpr int64_t kSlotBytes = 900'000;    // bytes of all image panels in scratch

  void find_pairs() {
    for (int64_t i = 0; i < to_spatial_size_; ++i) {
      starts_.push_back(pairs_.size());
      for (int64_t tap = 0; tap < taps_; ++tap) {
        const int64_t index = map_.used_index[static_cast<size_t>(i * taps_ + tap)];
        if (index < 0) continue;
        pairs_.push_back({map_.slot(index), static_cast<int32_t>(tap),
                          static_cast<int32_t>(map_.element(index) * in_channels_), static_cast<int32_t>(tap)});
      }
    }
    starts_.push_back(pairs_.size());
  }

  // Splits the output between threads. A share is a range of weight panels at a range of chunks; its thread splits
  // those weights and the images that its chunks read into bfloat16 parts.
  void share_output(int64_t threads) {
    const int64_t panels = panels_of(out_channels_),
                  chunks = panels_of(batch_) * static_cast<int64_t>(map_.chunks.size());
    const auto part = [](int64_t all, int64_t shares) {
      return static_cast<double>(blocks(all, shares)) / static_cast<double>(all);
    };
    // Costs relative to splitting one image element into its parts.
    constexpr double kWeight = 3, kProduct = 1.0 / 75;
    const double images = static_cast<double>(batch_ * from_spatial_size_ * in_channels_);
    const double weights = kWeight * static_cast<double>(out_channels_ * in_channels_ * taps_);
    const double products =
        kProduct * static_cast<double>(batch_ * out_channels_ * in_channels_) * static_cast<double>(pairs_.size());
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

  // The work of one thread.
  class Share {
   public:
    Share(const AmxConvolution& plan, const Launch& launch, int64_t share)
        : plan_(plan),
          map_(plan.map_),
          images_(launch.in<float>(plan.images_)),
          weights_(launch.in<float>(plan.weights_)),
          bias_(plan.bias_ >= 0 ? launch.in<float>(plan.bias_) : nullptr),
          to_(launch.out<float>()),
          size_(panel_size<float>(plan.depth_)),
          weight_panels_(static_cast<Element*>(address(plan.scratch_, launch)) +
                         share * (plan.weight_size_ + map_.slots * size_)),
          slots_(weight_panels_ + plan.weight_size_) {
      const int64_t panels = panels_of(plan.out_channels_), of_panels = plan.shares_of_panels_;
      const int64_t chunks = panels_of(plan.batch_) * num_chunks(), of_chunks = plan.shares_ / of_panels;
      const int64_t column = share % of_panels, row = share / of_panels;
      first_panel_ = panels * column / of_panels;
      last_panel_ = panels * (column + 1) / of_panels;
      first_chunk_ = chunks * row / of_chunks;
      last_chunk_ = chunks * (row + 1) / of_chunks;
    }

    void run() {
      const AmxTileScope tiles;
      for (first_depth_ = 0; first_depth_ < plan_.in_channels_; first_depth_ += plan_.depth_) {
        depth_ = std::min(plan_.depth_, plan_.in_channels_ - first_depth_);
        for (int64_t panel = first_panel_; panel < last_panel_; panel += plan_.panels_) {
          const int64_t end = std::min(last_panel_, panel + plan_.panels_);
          for (int64_t i = panel; i < end; ++i) split_weights(i, i - panel);
          multiply(panel, end);
        }
      }
    }

   private:
    int64_t num_chunks() const { return static_cast<int64_t>(map_.chunks.size()); }

    StridedView<float> weights_of(int64_t panel) const {
      return StridedView<float>{weights_, plan_.out_step_, plan_.in_step_}.from(panel * kPanel, first_depth_);
    }
    StridedView<float> images_from(int64_t image) const {
      return {images_ + image * plan_.from_spatial_size_ * plan_.in_channels_ + first_depth_,
              plan_.from_spatial_size_ * plan_.in_channels_, 1};
    }

    // Packs the weights of one panel at all taps. The taps of a channel are adjacent in memory, so the outer loop is
    // over k.
    void split_weights(int64_t panel, int64_t to) {
      const StridedView<float> view = weights_of(panel);
      const int64_t count = std::min(kPanel, plan_.out_channels_ - panel * kPanel);
      for (int64_t depth = 0; depth < depth_; depth += kDepth) {
        for (int64_t tap = 0; tap < plan_.taps_; ++tap) {
          pack_panels(view.from(0, depth).moved(tap), count, std::min(kDepth, depth_ - depth), PanelLayout::kVnni,
                      weight_panels_ + (to * plan_.taps_ + tap) * size_ + panel_size<float>(depth));
        }
      }
    }

    void multiply(int64_t panel, int64_t end) {
      int64_t split_until = 0;
      for (int64_t i = first_chunk_; i < last_chunk_; ++i) {
        const Chunk& chunk = map_.chunks[static_cast<size_t>(i % num_chunks())];
        const int64_t image = i / num_chunks() * kPanel, count = std::min(kPanel, plan_.batch_ - image);
        const StridedView<float> images = images_from(image);
        if (i == first_chunk_ || i % num_chunks() == 0) split_until = chunk.first;
        for (; split_until < chunk.last; ++split_until) {
          pack_panels(images.moved(map_.element(split_until) * plan_.in_channels_), count, depth_,
                      PanelLayout::kRowMajor, slots_ + map_.slot(split_until) * size_);
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
      const PanelPairs pairs{plan_.pairs_.data() + begin, static_cast<int64_t>(end - begin), size_, size_};
      alignas(64) float sums[kPanel * kPanel];
      multiply_panels<float>(slots_, weights, pairs, steps_of(depth_), /*accumulate=*/false, {}, sums);
      write<float>({.a = images_from(image),
                    .b = weights_of(panel),
                    .rows = count,
                    .columns = std::min(kPanel, plan_.out_channels_ - out),
                    .depth = depth_,
                    .alpha = 1,
                    .accumulate = first_depth_ > 0,
                    .bias = bias_ ? bias_ + out : nullptr,
                    .y = to_ + (image * plan_.to_spatial_size_ + element) * plan_.out_channels_ + out,
                    .rounded = nullptr,
                    .y_row = plan_.to_spatial_size_ * plan_.out_channels_},
                   pairs, sums);
    }

    const AmxConvolution& plan_;
    const ConvIndexMap& map_;
    const float *images_, *weights_, *bias_;
    float* to_;
    int64_t size_;  // elements of a panel
    Element *weight_panels_, *slots_;
    int64_t first_panel_, last_panel_, first_chunk_, last_chunk_;
    int64_t first_depth_ = 0, depth_ = 0;
  };

  int images_, weights_, bias_;
  int64_t batch_, in_channels_, out_channels_, taps_;
  int64_t in_step_, out_step_;  // distance between neighbouring channels of the weights
  int64_t from_spatial_size_, to_spatial_size_;
  ConvIndexMap map_;
  std::vector<PanelPair> pairs_;  // for each output position
  std::vector<size_t> starts_;
  int64_t depth_ = 0, panels_ = 0;  // channels and panels of the packed weights
  int64_t shares_ = 1, shares_of_panels_ = 1;
  int64_t weight_size_ = 0;
  Workspace workspace_;
  OperandPlace scratch_;
};

Prepared prepared(const NodeSpec& spec, const Convolution& c, bool gradient, int images, int weights, int bias) {
  const AmxConvolution products(c, gradient, images, weights, bias, spec.threads());
  return {[products](const Launch& launch) { products.run(launch); }, products.workspace(), {}};
}

}  // namespace

bool supports_amx(const Convolution& c) {
  const bool is_empty = num_elements(c.x) == 0 || num_elements(c.w) == 0 || num_elements(c.y) == 0;
  if (isa() < Isa::kAmx || c.operands != DType::kFloat || !c.channels_last || c.group > 1 || is_empty) return false;
  constexpr int64_t kMostPairs = 1 << 17;
  return std::max(num_elements(c.x), num_elements(c.y)) / c.batch() <= INT32_MAX &&
         count_valid_taps(make_geometry(c.windows, c.x, c.y)) <= kMostPairs;
}

bool prefers_amx(const Convolution& c) {
  if (!supports_amx(c)) return false;
  const auto filled = [](int64_t rows) {
    return static_cast<double>(rows) / static_cast<double>(panels_of(rows) * kPanel);
  };
  constexpr double kLeastFilled = 0.6;
  if (filled(c.batch()) * filled(c.in_channels()) * filled(c.out_channels()) < kLeastFilled) return false;
  const WindowGeometry geometry = make_geometry(c.windows, c.x, c.y);
  const int64_t pairs = count_valid_taps(geometry), used = std::min(pairs, in_spatial_size(geometry));
  // Splitting an element pays only when enough products read it.
  constexpr int64_t kLeastProducts = 32;
  const int64_t numbers =
      c.batch() * (used * c.in_channels() + out_spatial_size(geometry) * c.out_channels()) + num_elements(c.w);
  if (c.batch() * pairs * c.in_channels() * c.out_channels() < kLeastProducts * numbers) return false;
  // The input positions between the first and the last one that a window reads must fit into the cache.
  constexpr int64_t kMostElements = 250;
  int64_t last = 0;
  for (const WindowAxis& axis : geometry) last = last * axis.in + (axis.kernel - 1) * axis.dilation;
  return std::min(last, in_spatial_size(geometry)) < kMostElements;
}

Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const Forward& f) {
  return prepared(spec, c, /*gradient=*/false, f.x, f.w, f.bias);
}

Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const InputGradient& f) {
  return prepared(spec, c, /*gradient=*/true, f.dy, f.w, -1);
}

}  // namespace onnx_train::cpu
