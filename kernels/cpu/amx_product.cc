// Threads share the shorter operand and have some lines each of the other: their own. A block of own lines is copied
// into the L2 cache and stays there while the panels of the shared one, copied by all threads, pass by. Of a shared
// panel, as much as fits into the L1 cache meets all own panels of the block before the rest does.
#include "kernels/cpu/amx_product.h"

#include <omp.h>

#include <algorithm>

#include "kernels/cpu/amx_panels.h"

namespace onnx_train::cpu {

using namespace amx;

namespace {

// Of blocks. A panel of the shared operand and the next one have to fit into the L2 cache beside a block of own lines.
// A step of bfloat16 panels is so little work that one of the two has to come from the L1 cache.
template <typename T>
struct Limits {
  static constexpr int64_t kOwnBytes = 1'200'000, kDepth = 768, kDepthInL1 = kDepth;
};
template <>
struct Limits<BFloat16> {
  static constexpr int64_t kOwnBytes = 800'000, kDepth = 3072, kDepthInL1 = 256;
};
constexpr int64_t kMostSharedLines = 1024;

constexpr int64_t kSums = kPanel * kPanel;
constexpr int64_t kCacheLine = 64 / sizeof(Element);

template <typename T>
int64_t panel_bytes(int64_t depth) {
  return panel_size<T>(depth) * static_cast<int64_t>(sizeof(Element));
}

// The size of equal parts, multiples of kDepth, of which none is larger than `most`.
int64_t equal_parts(int64_t depth, int64_t most) {
  const int64_t parts = (depth + most - 1) / most;
  return steps_of((depth + parts - 1) / parts) * kDepth;
}

}  // namespace

bool is_amx_product(const Product& p) {
  if (!has_amx() || !p.y.batch.empty() || p.y.column_stride != 1) return false;
  // For each number of y, k products are saved, and k (m + n) / (m n) numbers are copied.
  constexpr int64_t kLeastDepth = 128, kLeastLines = 100;
  return p.k >= kLeastDepth && p.m * p.n >= kLeastLines * (p.m + p.n);
}

template <typename T>
AmxProduct<T>::AmxProduct(const Product& product, DType y, int threads)
    : product_(product), rounds_(y == DType::kBFloat16), shares_a_(product.n >= product.m) {
  const int64_t own = shares_a_ ? product.n : product.m, shared = shares_a_ ? product.m : product.n;
  threads_ = static_cast<int>(std::min<int64_t>(threads, panels_of(own)));
  depth_ = equal_parts(product.k, Limits<T>::kDepth);
  const int64_t panels_of_thread = (panels_of(own) + threads_ - 1) / threads_;
  own_lines_ = std::min(Limits<T>::kOwnBytes / panel_bytes<T>(depth_), panels_of_thread) * kPanel;
  shared_lines_ = std::min(kMostSharedLines, panels_of(shared) * kPanel);
}

// The shared panels, each thread's own ones, its sums, and y before it is rounded.
template <typename T>
size_t AmxProduct<T>::scratch_bytes() const {
  const int64_t own_panels = threads_ * panels_of(own_lines_);
  const int64_t sums = own_panels * kSums + (has_wide_sums() ? product_.m * product_.y.row_stride : 0);
  return static_cast<size_t>((panels_of(shared_lines_) + own_panels) * panel_bytes<T>(depth_)) +
         static_cast<size_t>(sums) * sizeof(float);
}

// What one thread does.
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
    const int64_t own_panels = panels_of(plan.own_lines_), size = panel_size<T>(plan.depth_);
    shared_panels_ = static_cast<Element*>(scratch);
    own_panels_ = shared_panels_ + (panels_of(plan.shared_lines_) + thread_ * own_panels) * size;
    float* all_sums =
        reinterpret_cast<float*>(shared_panels_ + (panels_of(plan.shared_lines_) + plan.threads_ * own_panels) * size);
    sums_ = all_sums + thread_ * own_panels * kSums;
    if (plan.rounds_) {
      rounded_ = static_cast<BFloat16*>(y);
      y_ = all_sums + plan.threads_ * own_panels * kSums;
    } else {
      y_ = static_cast<float*>(y);
    }
  }

  void run() {
    const Tiles tiles;
    const int64_t shared = plan_.shares_a_ ? p_.m : p_.n, own = plan_.shares_a_ ? p_.n : p_.m;
    const int64_t begin = std::min(own, panels_of(own) * thread_ / threads_ * kPanel);
    const int64_t end = std::min(own, panels_of(own) * (thread_ + 1) / threads_ * kPanel);
    for (first_shared_ = 0; first_shared_ < shared; first_shared_ += plan_.shared_lines_) {
      shared_count_ = std::min(plan_.shared_lines_, shared - first_shared_);
      for (first_depth_ = 0; first_depth_ < p_.k; first_depth_ += plan_.depth_) {
        depth_ = std::min(plan_.depth_, p_.k - first_depth_);
        copy_shared();
        for (first_own_ = begin; first_own_ < end; first_own_ += plan_.own_lines_) {
          own_count_ = std::min(plan_.own_lines_, end - first_own_);
          to_panels(own_lines().from(first_own_, first_depth_), own_count_, depth_,
                    plan_.shares_a_ ? Form::kPairs : Form::kLines, own_panels_);
          multiply();
        }
      }
    }
  }

 private:
  const Lines<T>& shared_lines() const { return plan_.shares_a_ ? a_ : b_; }
  const Lines<T>& own_lines() const { return plan_.shares_a_ ? b_ : a_; }

  // Each thread copies some panels of the shared operand; nobody reads or replaces them before all have come here.
  void copy_shared() {
#pragma omp barrier
    const int64_t panels = panels_of(shared_count_);
    const int64_t begin = panels * thread_ / threads_, end = panels * (thread_ + 1) / threads_;
    to_panels(shared_lines().from(first_shared_ + begin * kPanel, first_depth_),
              std::min(shared_count_, end * kPanel) - begin * kPanel, depth_,
              plan_.shares_a_ ? Form::kLines : Form::kPairs, shared_panels_ + begin * panel_size<T>(depth_));
#pragma omp barrier
  }

  void multiply() const {
    const int64_t own_panels = panels_of(own_count_), shared_panels = panels_of(shared_count_);
    const int64_t size = panel_size<T>(depth_), steps = steps_of(depth_);
    const int64_t steps_at_once = steps_of(equal_parts(depth_, Limits<T>::kDepthInL1));
    const int64_t fetched = (size + own_panels * steps * kCacheLine - 1) / (own_panels * steps * kCacheLine);
    for (int64_t s = 0; s < shared_panels; ++s) {
      Ahead ahead{shared_panels_ + (s + 1) % shared_panels * size, fetched};
      for (int64_t step = 0; step < steps; step += steps_at_once) {
        const int64_t count = std::min(steps_at_once, steps - step), behind = step * size / steps;
        for (int64_t o = 0; o < own_panels; ++o) {
          const Element *shared = shared_panels_ + s * size + behind, *own = own_panels_ + o * size + behind;
          float* sums = sums_ + o * kSums;
          multiply_panels<T>(plan_.shares_a_ ? shared : own, plan_.shares_a_ ? own : shared, count, step > 0, ahead,
                             sums);
          ahead.next += count * fetched * kCacheLine;
          if (step + count == steps) write_block(first_shared_ + s * kPanel, first_own_ + o * kPanel, sums);
        }
      }
    }
  }

  void write_block(int64_t shared_line, int64_t own_line, float* sums) const {
    const int64_t row = plan_.shares_a_ ? shared_line : own_line, column = plan_.shares_a_ ? own_line : shared_line;
    const int64_t at = row * p_.y.row_stride + column;
    const bool first = first_depth_ == 0, last = first_depth_ + depth_ == p_.k;
    write<T>({.a = a_.from(row, first_depth_),
              .b = b_.from(column, first_depth_),
              .rows = std::min(kPanel, p_.m - row),
              .columns = std::min(kPanel, p_.n - column),
              .depth = depth_,
              .alpha = static_cast<float>(p_.alpha),
              .onto_y = p_.accumulate || !first,
              .bias = bias_ && first ? bias_ + column : nullptr,
              .y = y_ + at,
              .rounded = rounded_ && last ? rounded_ + at : nullptr,
              .y_row = p_.y.row_stride},
             sums);
  }

  const AmxProduct& plan_;
  const Product& p_;
  const Lines<T> a_, b_;
  const float* bias_;
  const int64_t thread_, threads_;
  Element *shared_panels_, *own_panels_;
  float *sums_, *y_;
  BFloat16* rounded_ = nullptr;
  // The blocks at hand.
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
