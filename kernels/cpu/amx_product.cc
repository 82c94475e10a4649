// Threads share the shorter operand and have some lines each of the other: their own. A block of own lines is split
// into the L2 cache and stays there while the panels of the shared one, split by all threads, pass by.
#include "kernels/cpu/amx_product.h"

#include <omp.h>

#include <algorithm>

#include "kernels/cpu/amx_panels.h"

namespace onnx_train::cpu {

using namespace amx;

namespace {

// Of blocks. A panel and the next one of the shared operand have to fit into the L2 cache beside a block of own lines.
constexpr int64_t kMostDepth = 768;
constexpr int64_t kOwnBytes = 1'200'000;
constexpr int64_t kMostSharedLines = 1024;

}  // namespace

bool is_amx_product(const Product& p, DType from, DType to) {
  if (!has_amx() || from != DType::kFloat || to != DType::kFloat || !p.y.batch.empty() || p.y.column_stride != 1) {
    return false;
  }
  // For each number of y, k products are saved, and k (m + n) / (m n) numbers are split.
  constexpr int64_t kLeastDepth = 64, kLeastLines = 96;
  return p.k >= kLeastDepth && p.m * p.n >= kLeastLines * (p.m + p.n);
}

AmxProduct::AmxProduct(const Product& product, int threads) : product_(product), shares_a_(product.n >= product.m) {
  const int64_t own = shares_a_ ? product.n : product.m, shared = shares_a_ ? product.m : product.n;
  threads_ = static_cast<int>(std::min<int64_t>(threads, panels_of(own)));
  const int64_t blocks = (product.k + kMostDepth - 1) / kMostDepth;
  depth_ = steps_of((product.k + blocks - 1) / blocks) * kDepth;
  const int64_t panels_of_thread = (panels_of(own) + threads_ - 1) / threads_;
  own_lines_ = std::min(kOwnBytes / panel_bytes(depth_), panels_of_thread) * kPanel;
  shared_lines_ = std::min(kMostSharedLines, panels_of(shared) * kPanel);
}

size_t AmxProduct::scratch_bytes() const {
  const int64_t panels = panels_of(shared_lines_) + threads_ * panels_of(own_lines_);
  return static_cast<size_t>(panels * panel_bytes(depth_));
}

// What one thread does.
class AmxProduct::Run {
 public:
  Run(const AmxProduct& plan, const float* a, const float* b, const float* bias, float* y, void* scratch)
      : plan_(plan),
        p_(plan.product_),
        a_{a, p_.a.row_stride, p_.a.column_stride},
        b_{b, p_.b.column_stride, p_.b.row_stride},
        bias_(bias),
        y_(y),
        thread_(omp_get_thread_num()),
        threads_(omp_get_num_threads()),
        shared_panels_(static_cast<Element*>(scratch)),
        own_panels_(shared_panels_ +
                    (panels_of(plan.shared_lines_) + thread_ * panels_of(plan.own_lines_)) * panel_size(plan.depth_)) {}

  void run() {
    const Tiles tiles;
    const int64_t shared = plan_.shares_a_ ? p_.m : p_.n, own = plan_.shares_a_ ? p_.n : p_.m;
    const int64_t begin = std::min(own, panels_of(own) * thread_ / threads_ * kPanel);
    const int64_t end = std::min(own, panels_of(own) * (thread_ + 1) / threads_ * kPanel);
    for (first_shared_ = 0; first_shared_ < shared; first_shared_ += plan_.shared_lines_) {
      shared_count_ = std::min(plan_.shared_lines_, shared - first_shared_);
      for (first_depth_ = 0; first_depth_ < p_.k; first_depth_ += plan_.depth_) {
        depth_ = std::min(plan_.depth_, p_.k - first_depth_);
        split_shared();
        for (first_own_ = begin; first_own_ < end; first_own_ += plan_.own_lines_) {
          own_count_ = std::min(plan_.own_lines_, end - first_own_);
          split(own_lines().from(first_own_, first_depth_), own_count_, depth_,
                plan_.shares_a_ ? Form::kPairs : Form::kLines, own_panels_);
          multiply();
        }
      }
    }
  }

 private:
  const Lines& shared_lines() const { return plan_.shares_a_ ? a_ : b_; }
  const Lines& own_lines() const { return plan_.shares_a_ ? b_ : a_; }

  // Each thread splits some panels of the shared operand; nobody reads or replaces them before all have come here.
  void split_shared() {
#pragma omp barrier
    const int64_t panels = panels_of(shared_count_);
    const int64_t begin = panels * thread_ / threads_, end = panels * (thread_ + 1) / threads_;
    split(shared_lines().from(first_shared_ + begin * kPanel, first_depth_),
          std::min(shared_count_, end * kPanel) - begin * kPanel, depth_, plan_.shares_a_ ? Form::kLines : Form::kPairs,
          shared_panels_ + begin * panel_size(depth_));
#pragma omp barrier
  }

  void multiply() const {
    const int64_t own_panels = panels_of(own_count_), shared_panels = panels_of(shared_count_);
    const int64_t size = panel_size(depth_), steps = own_panels * steps_of(depth_);
    const int64_t each = (size + steps * kCacheLine - 1) / (steps * kCacheLine);  // step fetches as many cache lines
    for (int64_t s = 0; s < shared_panels; ++s) {
      const Element* next = shared_panels_ + (s + 1) % shared_panels * size;
      for (int64_t o = 0; o < own_panels; ++o) {
        const Ahead ahead{next + o * steps_of(depth_) * each * kCacheLine, each};
        multiply(shared_panels_ + s * size, first_shared_ + s * kPanel, own_panels_ + o * size, first_own_ + o * kPanel,
                 ahead);
      }
    }
  }

  void multiply(const Element* shared, int64_t shared_line, const Element* own, int64_t own_line,
                const Ahead& ahead) const {
    const int64_t row = plan_.shares_a_ ? shared_line : own_line, column = plan_.shares_a_ ? own_line : shared_line;
    const bool first = first_depth_ == 0;
    multiply_panels(plan_.shares_a_ ? shared : own, plan_.shares_a_ ? own : shared,
                    {.a = a_.from(row, first_depth_),
                     .b = b_.from(column, first_depth_),
                     .rows = std::min(kPanel, p_.m - row),
                     .columns = std::min(kPanel, p_.n - column),
                     .depth = depth_,
                     .y = y_ + row * p_.y.row_stride + column,
                     .y_row = p_.y.row_stride,
                     .alpha = static_cast<float>(p_.alpha),
                     .onto_y = p_.accumulate || !first,
                     .bias = bias_ && first ? bias_ + column : nullptr},
                    ahead);
  }

  static constexpr int64_t kCacheLine = 64 / sizeof(Element);  // elements

  const AmxProduct& plan_;
  const Product& p_;
  const Lines a_, b_;
  const float* bias_;
  float* y_;
  const int64_t thread_, threads_;
  Element *shared_panels_, *own_panels_;
  // The blocks at hand.
  int64_t first_shared_ = 0, shared_count_ = 0, first_own_ = 0, own_count_ = 0, first_depth_ = 0, depth_ = 0;
};

void AmxProduct::run(const float* a, const float* b, const float* bias, float* y, void* scratch) const {
#pragma omp parallel num_threads(threads_)
  Run(*this, a, b, bias, y, scratch).run();
}

}  // namespace onnx_train::cpu
