// Threads share the panels of the shorter operand; each thread owns some panels of the other one. A block of own panels
// is packed into the L2 cache and stays there while the shared panels, packed by all threads together, are read once.
// The part of a shared panel that fits into the L1 cache is multiplied by all own panels of the block before the next
// part.
#include "kernels/cpu/products/amx_product.h"

#include <omp.h>

#include <algorithm>

#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/x86/amx_panels.h"
#include "kernels/cpu/x86/tiles.h"

namespace onnx_train::cpu {

using namespace amx;

namespace {

// Block sizes. Two panels of the shared operand (the current and the prefetched one) must fit into the L2 cache beside
// a block of own panels. A step of bfloat16 panels is so little work that one operand must come from the L1 cache.
template <typename T>
struct Limits {
  static constexpr int64_t kOwnBytes = 1'200'000, kDepth = 768, kDepthInL1 = kDepth;
};
template <>
struct Limits<BFloat16> {
  static constexpr int64_t kOwnBytes = 800'000, kDepth = 3072, kDepthInL1 = 256;
};
constexpr int64_t kMaxSharedRows = 1024;

constexpr int64_t kSums = kPanel * kPanel;
constexpr int64_t kCacheLine = 64 / sizeof(Element);

// The size of equal parts of `depth`, a multiple of kDepth and at most `most`.
int64_t equal_parts(int64_t depth, int64_t most) { return steps_of(blocks(depth, blocks(depth, most))) * kDepth; }

}  // namespace

bool supports_amx_product(const Product& p) {
  const bool shares_one_b = p.y.batch.empty() || (p.y.batch.size() == 1 && p.b.batch[0] == 1);
  const bool wastes_rows = !p.y.batch.empty() && p.m % kPanel != 0;
  return isa() >= Isa::kAmx && shares_one_b && !wastes_rows && p.y.column_stride == 1;
}

bool is_amx_product(const Product& p, DType from) {
  if (!supports_amx_product(p)) return false;
  // Packing copies k (rows + n) / (rows n) elements per element of y. The six products of split float32 operands pay
  // for that sooner than one product.
  constexpr int64_t kLeastDepth = 128;
  const int64_t rows = p.m * num_elements(p.y.batch), least_rows = from == DType::kFloat ? 100 : 400;
  return p.k >= kLeastDepth && rows * p.n >= least_rows * (rows + p.n);
}

template <typename T>
int64_t AmxProduct<T>::num_row_panels() const {
  return items_ * panels_of(product_.m);
}

template <typename T>
int64_t AmxProduct<T>::fp32_elements() const {
  if (!rounds_ || depth_ >= product_.k) return 0;
  return (items_ - 1) * y_item_ + product_.m * product_.y.row_stride;
}

template <typename T>
AmxProduct<T>::AmxProduct(const Product& product, DType y, int threads)
    : product_(product), rounds_(y == DType::kBFloat16) {
  if (!product.y.batch.empty()) {
    items_ = product.y.batch[0];
    a_item_ = product.a.batch_strides[0];
    y_item_ = product.y.batch_strides[0];
  }
  shares_a_ = items_ == 1 && product.n >= product.m;
  const int64_t rows = num_row_panels(), columns = panels_of(product.n), own = shares_a_ ? columns : rows;
  threads_ = static_cast<int>(std::min<int64_t>(threads, own));
  depth_ = equal_parts(product.k, Limits<T>::kDepth);
  own_panels_ = std::min(Limits<T>::kOwnBytes / panel_bytes<T>(depth_), blocks(own, threads_));
  shared_panels_ = std::min(kMaxSharedRows / kPanel, shares_a_ ? rows : columns);
}

// Scratch memory: shared panels, own panels of all threads, their sums, and y in float32 before it is rounded.
template <typename T>
size_t AmxProduct<T>::scratch_bytes() const {
  const int64_t panels = (shared_panels_ + threads_ * own_panels_) * panel_bytes<T>(depth_);
  const int64_t sums = threads_ * own_panels_ * kSums + fp32_elements();
  return static_cast<size_t>(panels) + static_cast<size_t>(sums) * sizeof(float);
}

// The work of one thread.
template <typename T>
class AmxProduct<T>::Run {
 public:
  Run(const AmxProduct& plan, const T* a, const T* b, const float* bias, void* y, void* scratch)
      : plan_(plan),
        p_(plan.product_),
        a_{a, p_.a.row_stride, p_.a.column_stride},
        b_{b, p_.b.column_stride, p_.b.row_stride},
        bias_(bias),
        thread_(omp_get_thread_num()),
        threads_(omp_get_num_threads()) {
    const int64_t size = panel_size<T>(plan.depth_), own = plan.own_panels_;
    shared_panels_ = static_cast<Element*>(scratch);
    own_panels_ = shared_panels_ + (plan.shared_panels_ + thread_ * own) * size;
    float* all_sums = reinterpret_cast<float*>(shared_panels_ + (plan.shared_panels_ + plan.threads_ * own) * size);
    sums_ = all_sums + thread_ * own * kSums;
    if (plan.rounds_) {
      rounded_ = static_cast<BFloat16*>(y);
      y_ = all_sums + plan.threads_ * own * kSums;
    } else {
      y_ = static_cast<float*>(y);
    }
  }

  // Every thread must reach every barrier, so none may leave by an exception; nothing here throws.
  void run() noexcept {
    const AmxTileScope tiles;
    const int64_t rows = plan_.num_row_panels(), columns = panels_of(p_.n);
    const int64_t shared = plan_.shares_a_ ? rows : columns, own = plan_.shares_a_ ? columns : rows;
    const int64_t begin = own * thread_ / threads_, end = own * (thread_ + 1) / threads_;
    for (first_shared_ = 0; first_shared_ < shared; first_shared_ += plan_.shared_panels_) {
      shared_count_ = std::min(plan_.shared_panels_, shared - first_shared_);
      for (first_depth_ = 0; first_depth_ < p_.k; first_depth_ += plan_.depth_) {
        depth_ = std::min(plan_.depth_, p_.k - first_depth_);
        copy_shared();
        for (first_own_ = begin; first_own_ < end; first_own_ += plan_.own_panels_) {
          own_count_ = std::min(plan_.own_panels_, end - first_own_);
          plan_.shares_a_ ? copy_b(first_own_, own_count_, own_panels_) : copy_a(first_own_, own_count_, own_panels_);
          multiply();
        }
      }
    }
  }

 private:
  // Each thread packs some shared panels. The first barrier protects panels that other threads still read; after the
  // second one all panels are complete.
  void copy_shared() {
#pragma omp barrier
    const int64_t begin = shared_count_ * thread_ / threads_, end = shared_count_ * (thread_ + 1) / threads_;
    Element* to = shared_panels_ + begin * panel_size<T>(depth_);
    const int64_t first = first_shared_ + begin;
    plan_.shares_a_ ? copy_a(first, end - begin, to) : copy_b(first, end - begin, to);
#pragma omp barrier
  }

  // A panel never holds rows of two batch items.
  void copy_a(int64_t first, int64_t count, Element* to) const {
    const int64_t of_item = panels_of(p_.m);
    for (int64_t panel = first; panel < first + count;) {
      const int64_t at_once = std::min(first + count - panel, of_item - panel % of_item);
      pack_panels(a_view(panel), std::min(at_once * kPanel, p_.m - panel % of_item * kPanel), depth_,
                  PanelLayout::kRowMajor, to + (panel - first) * panel_size<T>(depth_));
      panel += at_once;
    }
  }
  void copy_b(int64_t first, int64_t count, Element* to) const {
    pack_panels(b_view(first), std::min(count * kPanel, p_.n - first * kPanel), depth_, PanelLayout::kVnni, to);
  }

  StridedView<T> a_view(int64_t panel) const {
    const int64_t of_item = panels_of(p_.m);
    StridedView<T> view = a_.from(panel % of_item * kPanel, first_depth_);
    view.first += panel / of_item * plan_.a_item_;
    return view;
  }
  StridedView<T> b_view(int64_t panel) const { return b_.from(panel * kPanel, first_depth_); }

  void multiply() const {
    const int64_t size = panel_size<T>(depth_), steps = steps_of(depth_);
    const int64_t steps_at_once = steps_of(equal_parts(depth_, Limits<T>::kDepthInL1));
    const int64_t fetched = blocks(size, own_count_ * steps * kCacheLine);
    for (int64_t s = 0; s < shared_count_; ++s) {
      Prefetch prefetch{shared_panels_ + (s + 1) % shared_count_ * size, fetched};
      for (int64_t step = 0; step < steps; step += steps_at_once) {
        const int64_t count = std::min(steps_at_once, steps - step), offset = step * size / steps;
        for (int64_t o = 0; o < own_count_; ++o) {
          const Element *shared = shared_panels_ + s * size + offset, *own = own_panels_ + o * size + offset;
          float* sums = sums_ + o * kSums;
          multiply_panels<T>(plan_.shares_a_ ? shared : own, plan_.shares_a_ ? own : shared, kOnePanelPair, count,
                             step > 0, prefetch, sums);
          prefetch.next += count * fetched * kCacheLine;
          if (step + count == steps) write_block(first_shared_ + s, first_own_ + o, sums);
        }
      }
    }
  }

  void write_block(int64_t shared_panel, int64_t own_panel, float* sums) const {
    const int64_t a_panel = plan_.shares_a_ ? shared_panel : own_panel, of_item = panels_of(p_.m);
    const int64_t b_panel = plan_.shares_a_ ? own_panel : shared_panel;
    const int64_t row = a_panel % of_item * kPanel, column = b_panel * kPanel;
    const int64_t at = a_panel / of_item * plan_.y_item_ + row * p_.y.row_stride + column;
    const bool first = first_depth_ == 0, last = first_depth_ + depth_ == p_.k;
    write<T>({.a = a_view(a_panel),
              .b = b_view(b_panel),
              .rows = std::min(kPanel, p_.m - row),
              .columns = std::min(kPanel, p_.n - column),
              .depth = depth_,
              .alpha = static_cast<float>(p_.alpha),
              .accumulate = p_.accumulate || !first,
              .bias = bias_ && first ? bias_ + column : nullptr,
              .y = y_ + at,
              .rounded = rounded_ && last ? rounded_ + at : nullptr,
              .y_row = p_.y.row_stride},
             kOnePanelPair, sums);
  }

  const AmxProduct& plan_;
  const Product& p_;
  const StridedView<T> a_, b_;
  const float* bias_;
  const int64_t thread_, threads_;
  Element *shared_panels_, *own_panels_;
  float *sums_, *y_;
  BFloat16* rounded_ = nullptr;
  // The current blocks, in panels, and the current range of k.
  int64_t first_shared_ = 0, shared_count_ = 0, first_own_ = 0, own_count_ = 0, first_depth_ = 0, depth_ = 0;
};

template <typename T>
void AmxProduct<T>::run(const T* a, const T* b, const float* bias, void* y, void* scratch) const {
#pragma omp parallel num_threads(threads_)
  Run(*this, a, b, bias, y, scratch).run();
}

template class AmxProduct<float>;
template class AmxProduct<BFloat16>;

}  // namespace onnx_train::cpu
