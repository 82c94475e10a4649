// A product and the cross entropy of its result, with all gradients (body: kernels/functions/losses.cc), by chunks of
// positions: the logits of a chunk become their gradients in place, which two products read, and the next chunk takes
// their memory. A recorded step has products of fixed sizes, so positions that are ignored have rows, of zeros.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/products/cublas.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/row_elements.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/training/cross_entropy.h"
#include "kernels/geometry/linear_loss.h"
#include "kernels/place.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

using enum LinearLossSpec::Input;
using enum LinearLossSpec::Output;

// ---- Rows of logits

// What follows the product, forward and backward; S: the type of the product, in which logits are rounded, too.
template <typename S, typename T = Computed<S>>
struct LogitsOfProduct {
  T scale, cap;  // cap 0: none

  __device__ bool has_slope() const { return scale != 1 || cap != 0; }
  __device__ T logit(S product) const {
    const T x = scale * widened(product);
    if (!has_slope()) return x;
    return widened(math::convert<S>(cap != 0 ? cap * math::tanh(x) : x));
  }
  // dlogit / dproduct
  __device__ T slope(S product) const {
    if (cap == 0) return scale;
    const T t = math::tanh(scale * widened(product));
    return cap * (1 - t * t) * scale;
  }
};

// Rows of products, `step` elements apart, of the positions from `first` on.
struct Rows {
  int64_t first, count, step;
};

// By position. Pointers may be null, but that of the losses.
template <typename T>
struct OfPositions {
  double* losses;
  bool* correct;
  T *log_p, *rank;
};

// Finds the losses and scores of the rows, and makes gradients of their products in place unless dloss is null.
template <typename S, int kRowThreads, typename T = Computed<S>>
__global__ void __launch_bounds__(kThreads, 2)
    finish_rows(CrossEntropy<T> ce, LogitsOfProduct<S> after, Rows rows, const T* dloss, const Totals* totals, S* x,
                OfPositions<T> to) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t row = Threads::row();
  if (row >= rows.count) return;
  const int64_t position = rows.first + row, line = row * rows.step, y = ce.label(position);
  const auto logit = [=](S product) { return after.logit(product); };
  const bool counts = ce.counts(y);
  const T own = counts ? logit(x[line + y]) : T{0};
  const auto scores = scores_of_row<kRowThreads>(ce, x, line, 1, y, own, logit);
  const T l = scores.log_sum();
  const double loss = counts ? loss_of_row<kRowThreads>(ce, x, line, 1, y, own, l, logit) : 0;
  if (Threads::first() == 0) {
    to.losses[position] = loss;
    if (to.correct) to.correct[position] = counts && scores.rank() == 0;
    if (to.log_p) to.log_p[position] = counts ? own - l : T{0};
    if (to.rank) to.rank[position] = counts ? scores.rank() : T{0};
  }
  if (!dloss) return;
  const RowGradient<T> gradient(ce, *totals, *dloss, y);
  transform_vectors_in_row<kRowThreads>(
      x, x, line, ce.classes, 1,
      [&]<int kCount>(int64_t c, const StoredElements<kCount, S>& products) -> Elements<kCount, S> {
        if (!counts) return {};
        T results[kCount];
        for (int k = 0; k < kCount; ++k) results[k] = logit(products[k]);
        gradient.differentiate(ce, c, l, results);
        Elements<kCount, S> stored;
        for (int k = 0; k < kCount; ++k) {
          stored[k] = math::convert<S>(after.has_slope() ? results[k] * after.slope(products[k]) : results[k]);
        }
        return stored;
      });
}

// sums = Σ rows, or sums + Σ rows. A warp has 32 neighbouring columns; the warps of a block share the rows.
template <typename S, typename T = Computed<S>>
__global__ void sum_rows(int64_t columns, Rows rows, bool adds, const S* x, T* sums) {
  constexpr int kWarps = kThreads / gpu::kWarpSize;
  GPU_SHARED(parts, T[kWarps][gpu::kWarpSize]);
  const int lane = threadIdx.x % gpu::kWarpSize, warp = threadIdx.x / gpu::kWarpSize;
  const int64_t c = int64_t{blockIdx.x} * gpu::kWarpSize + lane;
  T sum = 0;
  for (int64_t r = warp; c < columns && r < rows.count; r += kWarps) sum += widened(x[r * rows.step + c]);
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || c >= columns) return;
  for (int w = 1; w < kWarps; ++w) sum += parts[w][lane];
  sums[c] = adds ? sums[c] + sum : sum;
}

// ---- The node

// S: the type in which h, w and the logits are stored.
template <typename S>
class LinearLoss {
 public:
  using T = Computed<S>;

  explicit LinearLoss(const NodeSpec& spec)
      : size_(spec),
        ce_(spec, {size_.positions, size_.classes}, -1, kLabels, kWeight),
        step_((size_.classes + kPadded - 1) / kPadded * kPadded),
        rows_(std::min(size_.positions, size_.rows > 0 ? size_.rows : size_.positions)),
        biased_(spec.has_input(kBias)),
        trains_(spec.has_input(kDloss)) {
    for (int i = 0; i < spec.num_outputs(); ++i) makes_[static_cast<size_t>(i)] = spec.has_output(i);
    if (makes_[kDh]) dh_bytes_ = size_.width * static_cast<int64_t>(size_of(spec.out_type(kDh)));
    const int64_t last = rows_ > 0 ? size_.positions % rows_ : 0;
    if (rows_ > 0) products_.emplace_back(spec, *this, rows_);
    if (last > 0) products_.emplace_back(spec, *this, last);
    size_t scratch = 0;
    for (const Products& products : products_) scratch = std::max(scratch, products.workspace());
    const auto positions = static_cast<size_t>(size_.positions);
    totals_ = workspace_.reserve(static_cast<size_t>(num_totals(ce_)) * sizeof(Totals));
    losses_ = workspace_.reserve((positions + static_cast<size_t>(total_partials(size_.positions))) * sizeof(double));
    logits_ = workspace_.reserve(static_cast<size_t>(rows_ * step_) * sizeof(S));
    scratch_ = workspace_.reserve(scratch);
  }

  Prepared prepared(const std::shared_ptr<const LinearLoss>& self) const {
    return {.run = [self](const Launch& launch) { self->run(launch); },
            .workspace = workspace_.bytes(),
            .explain = ce_.explain(),
            .form = concat("by ", rows_, " rows")};
  }

 private:
  // Elements, so that rows of logits are whole vectors.
  static constexpr int64_t kPadded = 64;

  // The products of a number of rows.
  struct Products {
    LibraryProduct logits;
    std::optional<LibraryProduct> dh, dw, more_dw;  // more_dw adds to dw

    Products(const NodeSpec& spec, const LinearLoss& of, int64_t n)
        : logits(of.size_.logits_product(n, of.step_), types(spec, spec.in_type()),
                 of.biased_ ? ProductVector::kBias : ProductVector::kNone) {
      if (of.makes_[kDh]) dh.emplace(of.size_.dh_product(n, of.step_), types(spec, spec.out_type(kDh)));
      if (!of.makes_[kDw]) return;
      dw.emplace(of.size_.dw_product(n, of.step_, false), types(spec, spec.out_type(kDw)));
      more_dw.emplace(of.size_.dw_product(n, of.step_, true), types(spec, spec.out_type(kDw)));
    }
    static ProductTypes types(const NodeSpec& spec, DType result) { return {spec.in_type(), result, spec.tf32()}; }
    size_t workspace() const {
      size_t most = logits.workspace();
      for (const auto* product : {&dh, &dw, &more_dw}) {
        if (*product) most = std::max(most, (*product)->workspace());
      }
      return most;
    }
  };

  void run(const Launch& launch) const {
    const CrossEntropy<T> ce(ce_, launch);
    auto* const totals = static_cast<Totals*>(address(totals_, launch));
    auto* const losses = static_cast<double*>(address(losses_, launch));
    find_totals(launch, ce, kLabels, totals);
    for (int64_t first = 0; first < size_.positions; first += rows_) {
      const int64_t count = std::min(rows_, size_.positions - first);
      run_chunk(launch, ce, count == rows_ ? products_.front() : products_.back(), {first, count, step_});
    }
    if (size_.positions == 0) clear_gradients_of_weights(launch);
    enqueue_total(launch, "add_losses", size_.positions, LossTotal<T>{losses, totals, launch.out<T>(kLoss), ce_.mean},
                  losses + size_.positions);
  }

  void clear_gradients_of_weights(const Launch& launch) const {
    const auto classes = static_cast<size_t>(size_.classes), width = static_cast<size_t>(size_.width);
    if (makes_[kDw]) set_bytes(launch, launch.outputs[kDw], 0, classes * width * sizeof(T));
    if (makes_[kDbias]) set_bytes(launch, launch.outputs[kDbias], 0, classes * sizeof(T));
  }

  template <typename X>
  X* output(const Launch& launch, LinearLossSpec::Output i) const {
    return makes_[i] ? launch.out<X>(i) : nullptr;
  }

  void run_chunk(const Launch& launch, const CrossEntropy<T>& ce, const Products& products, const Rows& rows) const {
    const S *const h = launch.in<S>(kH) + rows.first * size_.width, *const w = launch.in<S>(kW);
    auto* const logits = static_cast<S*>(address(logits_, launch));
    void* const scratch = address(scratch_, launch);
    products.logits.run(launch, h, w, logits, biased_ ? launch.inputs[kBias] : nullptr, scratch);
    const OfPositions<T> to{static_cast<double*>(address(losses_, launch)), output<bool>(launch, kCorrect),
                            output<T>(launch, kLogP), output<T>(launch, kRank)};
    const LogitsOfProduct<S> after{static_cast<T>(size_.scale), static_cast<T>(size_.cap)};
    enqueue_rows(
        launch, "finish_rows", rows.count, size_.classes, true, [](auto threads) { return finish_rows<S, threads()>; },
        ce, after, rows, trains_ ? launch.in<T>(kDloss) : nullptr, static_cast<const Totals*>(address(totals_, launch)),
        logits, to);
    if (products.dh) {
      products.dh->run(launch, logits, w, launch.out<char>(kDh) + rows.first * dh_bytes_, nullptr, scratch);
    }
    if (products.dw) {
      const void *a = logits, *b = h;
      if (!size_.transposed) std::swap(a, b);
      const auto& product = rows.first == 0 ? products.dw : products.more_dw;
      product->run(launch, a, b, launch.outputs[kDw], nullptr, scratch);
    }
    if (!makes_[kDbias]) return;
    const auto blocks = static_cast<unsigned>((size_.classes + gpu::kWarpSize - 1) / gpu::kWarpSize);
    enqueue(launch, "sum_rows", sum_rows<S>, blocks, kThreads, 0, size_.classes, rows, rows.first > 0, logits,
            launch.out<T>(kDbias));
  }

  const LinearLossSpec size_;
  const CrossEntropySpec ce_;
  const int64_t step_, rows_;  // elements from one row of logits to the next; rows of a chunk
  const bool biased_, trains_;
  int64_t dh_bytes_ = 0;  // of a row
  std::array<bool, kOutputs> makes_ = {};
  std::vector<Products> products_;  // of a chunk, and of the last one if it has fewer rows
  Workspace workspace_;
  OperandPlace totals_, losses_, logits_, scratch_;
};

bool supports(const NodeSpec& spec) {
  const DType stored = spec.in_type(kH), computed = is_half(stored) ? DType::kFloat : stored;
  if (!is_stored(stored) || spec.in_type(kW) != stored || !is_label(spec.in_type(kLabels))) return false;
  const auto has_type = [&](int i, DType type) {
    return i >= spec.num_inputs() || !spec.has_input(i) || spec.in_type(i) == type;
  };
  const bool makes_dh = spec.num_outputs() > kDh && spec.has_output(kDh);
  if (!has_type(kBias, stored) || !has_type(kWeight, computed) || !has_type(kDloss, computed)) return false;
  if (makes_dh && spec.out_type(kDh) != stored && spec.out_type(kDh) != computed) return false;
  const LinearLossSpec size(spec);
  // Tensor cores want whole vectors of classes; pad_classes is for others.
  constexpr int64_t kVector = 8;
  const bool is_aligned = !is_half(stored) || size.classes % kVector == 0;
  return size.classes > 0 && size.width > 0 && spec.node().attr("axis", 0) == -1 && is_aligned &&
         size.rounding == (is_half(stored) ? stored : DType::kUndefined);
}

Prepared prepare(const NodeSpec& spec) {
  return dispatch_stored(spec.in_type(), [&]<typename S>(S) {
    const auto kernel = std::make_shared<const LinearLoss<S>>(spec);
    return kernel->prepared(kernel);
  });
}

}  // namespace

std::vector<Kernel> linear_loss_kernels() {
  return {{"LinearCrossEntropy", supports, prepare, kDomain, "", InputCheck::kChecks}};
}

}  // namespace onnx_train::cuda
