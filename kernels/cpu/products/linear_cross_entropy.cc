// A product and the cross entropy of its result, with all gradients (body: kernels/functions/losses.cc), by chunks of
// positions: the logits of a chunk become their gradients in place, which two products read, and the next chunk takes
// their memory. Positions that are ignored are left out before the first product.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "kernels/cpu/products/inner_product.h"
#include "kernels/cpu/products/logits_of_product.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/cpu/training/cross_entropy.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/linear_loss.h"
#include "kernels/place.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// ---- The kernel

using enum LinearLossSpec::Input;
using enum LinearLossSpec::Output;

// S: the type in which h, w and the logits are stored.
template <typename S>
class LinearLoss {
 public:
  using T = Computed<S>;

  explicit LinearLoss(const NodeSpec& spec)
      : size_(spec),
        ce_(CrossEntropySpec(spec, {size_.positions, size_.classes}, -1, kLabels, kWeight)),
        after_{static_cast<T>(size_.scale), static_cast<T>(size_.cap), size_.rounding, !std::is_same_v<S, BFloat16>},
        copies_row_(std::is_same_v<S, BFloat16> || size_.cap != 0),
        trains_(spec.has_input(kDloss)),
        biased_(spec.has_input(kBias)),
        dh_type_(spec.has_output(kDh) ? spec.out_type(kDh) : dtype_of<T>()),
        threads_(std::max(spec.threads(), 1)) {
    for (int i = kCorrect; i <= kDbias; ++i) makes_[static_cast<size_t>(i)] = spec.has_output(i);
    for (const int64_t rows : size_.chunks()) chunks_.emplace_back(spec, *this, rows);
    const int64_t most = chunks_[0].rows;
    logits_ = workspace_.reserve(bytes<S>(most * size_.classes));
    if (copies_row_) row_ = workspace_.reserve(bytes<T>(threads_ * size_.classes));
    h_ = workspace_.reserve(bytes<S>(most * size_.width));
    dh_ = workspace_.reserve(static_cast<size_t>(most * size_.width) * size_of(dh_type_));
    losses_ = workspace_.reserve(bytes<double>(size_.positions));
    counted_ = workspace_.reserve(bytes<int64_t>(size_.positions));
    size_t scratch = 0;
    for (const Chunk& chunk : chunks_) scratch = std::max(scratch, chunk.scratch_bytes());
    scratch_ = workspace_.reserve(scratch);
  }

  size_t workspace() const { return workspace_.bytes(); }
  std::string form() const { return concat("by ", chunks_[0].rows, " rows"); }
  const CrossEntropy& cross_entropy() const { return ce_; }

  void run(const Launch& launch) const {
    const std::optional<double> total_weight = ce_.check_and_sum_weights<T>(launch);
    if (!total_weight) return;
    const T dloss = trains_ ? *launch.in<T>(kDloss) : T{0};
    const GradientScales<T> scales = gradient_scales(ce_, ce_.weights<T>(launch), *total_weight, dloss);
    const int64_t count = count_positions(launch);
    bool is_first = true;
    for (int64_t begin = 0; begin < count; is_first = false) {
      const Chunk& chunk = chunk_for(count - begin);
      const int64_t rows = std::min(chunk.rows, count - begin);
      run_chunk(launch, scales, chunk, {begin, rows, is_first});
      begin += rows;
    }
    if (count == 0) clear_gradients_of_weights(launch);
    const double* losses = at<double>(losses_, launch);
    double sum = 0;
    for (int64_t i = 0; i < size_.positions; ++i) sum += losses[i];
    *launch.out<T>(kLoss) = static_cast<T>(ce_.mean ? mean_over(*total_weight, sum) : sum);
  }

 private:
  // The products of a number of rows.
  struct Chunk {
    int64_t rows;
    InnerProduct logits;
    std::optional<InnerProduct> dh, dw, more_dw;  // more_dw adds to dw

    Chunk(const NodeSpec& spec, const LinearLoss& of, int64_t n)
        : rows(n), logits(spec, of.logits_product(n), of.types(dtype_of<S>()), of.biased_ && !of.adds_bias()) {
      if (of.makes_[kDh]) dh.emplace(spec, of.size_.dh_product(n, of.size_.classes), of.types(of.dh_type_));
      if (!of.makes_[kDw]) return;
      dw.emplace(spec, of.size_.dw_product(n, of.size_.classes, false), of.types(dtype_of<T>()));
      more_dw.emplace(spec, of.size_.dw_product(n, of.size_.classes, true), of.types(dtype_of<T>()));
    }
    size_t scratch_bytes() const {
      size_t most = logits.scratch_bytes();
      for (const auto* product : {&dh, &dw, &more_dw}) {
        if (*product) most = std::max(most, (*product)->scratch_bytes());
      }
      return most;
    }
  };

  // Of the positions that count, those of one chunk.
  struct Range {
    int64_t begin, rows;
    bool is_first;
  };

  template <typename X>
  static size_t bytes(int64_t n) {
    return static_cast<size_t>(n) * sizeof(X);
  }
  template <typename X>
  static X* at(const OperandPlace& place, const Launch& launch) {
    return static_cast<X*>(address(place, launch));
  }

  // ---- Products

  static InnerProduct::Types types(DType result) { return {dtype_of<S>(), result}; }
  // A product of float64 has no bias: it adds to the bias in each row.
  static bool adds_bias() { return std::is_same_v<S, double>; }

  Product logits_product(int64_t rows) const {
    Product product = size_.logits_product(rows, size_.classes);
    product.accumulate = biased_ && adds_bias();
    return product;
  }

  // ---- Positions

  // Lists the positions that count, and writes what the others have: zeros.
  int64_t count_positions(const Launch& launch) const {
    int64_t* counted = at<int64_t>(counted_, launch);
    double* losses = at<double>(losses_, launch);
    char* dh = makes_[kDh] ? launch.out<char>(kDh) : nullptr;
    const size_t row = static_cast<size_t>(size_.width) * size_of(dh_type_);
    int64_t count = 0;
    for (int64_t i = 0; i < size_.positions; ++i) {
      if (ce_.label(launch, i) != ce_.ignore_index) {
        counted[count++] = i;
        continue;
      }
      losses[i] = 0;
      if (makes_[kCorrect]) launch.out<bool>(kCorrect)[i] = false;
      if (makes_[kLogP]) launch.out<T>(kLogP)[i] = 0;
      if (makes_[kRank]) launch.out<T>(kRank)[i] = 0;
      if (dh) std::memset(dh + static_cast<size_t>(i) * row, 0, row);
    }
    return count;
  }

  // The smaller one if the rest would fill no more than three quarters of the larger one.
  const Chunk& chunk_for(int64_t count) const {
    return count > chunks_[0].rows - chunks_[0].rows / 4 ? chunks_[0] : chunks_.back();
  }

  void clear_gradients_of_weights(const Launch& launch) const {
    if (makes_[kDw]) std::memset(launch.out<void>(kDw), 0, bytes<T>(size_.classes * size_.width));
    if (makes_[kDbias]) std::memset(launch.out<void>(kDbias), 0, bytes<T>(size_.classes));
  }

  // ---- One chunk

  void run_chunk(const Launch& launch, const GradientScales<T>& scales, const Chunk& chunk, const Range& range) const {
    const int64_t* positions = at<int64_t>(counted_, launch) + range.begin;
    const bool in_place = range.rows == chunk.rows && positions[range.rows - 1] - positions[0] == range.rows - 1;
    const S* h = in_place ? launch.in<S>(kH) + positions[0] * size_.width : gather_h(launch, chunk, range);
    const S* w = launch.in<S>(kW);
    S* logits = at<S>(logits_, launch);
    void* scratch = address(scratch_, launch);
    if (biased_ && adds_bias()) {
      const T* bias = launch.in<T>(kBias);
      for (int64_t i = 0; i < chunk.rows; ++i) {
        std::copy(bias, bias + size_.classes, reinterpret_cast<T*>(logits) + i * size_.classes);
      }
    }
    chunk.logits.run(launch, {h, w, biased_ ? launch.inputs[kBias] : nullptr, logits, scratch});
    run_rows(launch, scales, chunk, range);
    if (!trains_) return;
    if (chunk.dh) {
      const size_t row = static_cast<size_t>(size_.width) * size_of(dh_type_);
      char *result = launch.out<char>(kDh), *dh = at<char>(dh_, launch);
      if (in_place) dh = result + static_cast<size_t>(positions[0]) * row;
      chunk.dh->run(launch, {logits, w, nullptr, dh, scratch});
      for (int64_t i = 0; !in_place && i < range.rows; ++i) {
        std::memcpy(result + static_cast<size_t>(positions[i]) * row, dh + static_cast<size_t>(i) * row, row);
      }
    }
    if (chunk.dw) {
      const InnerProduct& product = range.is_first ? *chunk.dw : *chunk.more_dw;
      const void *a = logits, *b = h;
      if (!size_.transposed) std::swap(a, b);
      product.run(launch, {a, b, nullptr, launch.out<void>(kDw), scratch});
    }
    if (makes_[kDbias]) sum_bias(launch, range);
  }

  // Copies the rows of h of the positions; the rest of the chunk is zeros.
  const S* gather_h(const Launch& launch, const Chunk& chunk, const Range& range) const {
    const int64_t* positions = at<int64_t>(counted_, launch) + range.begin;
    const S* from = launch.in<S>(kH);
    S* h = at<S>(h_, launch);
    for (int64_t i = 0; i < range.rows; ++i) {
      std::memcpy(h + i * size_.width, from + positions[i] * size_.width, bytes<S>(size_.width));
    }
    std::fill(h + range.rows * size_.width, h + chunk.rows * size_.width, S{});
    return h;
  }

  // The losses of the chunk's rows; their logits become the gradients of the product.
  void run_rows(const Launch& launch, const GradientScales<T>& scales, const Chunk& chunk, const Range& range) const {
    const int64_t* positions = at<int64_t>(counted_, launch) + range.begin;
    S* logits = at<S>(logits_, launch);
    const int64_t shares = std::min<int64_t>(threads_, chunk.rows);
    parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
      for (int64_t share = begin; share < end; ++share) {
        for (int64_t i = chunk.rows * share / shares; i < chunk.rows * (share + 1) / shares; ++i) {
          S* row = logits + i * size_.classes;
          if (i >= range.rows) {
            if (trains_) std::fill(row, row + size_.classes, S{});
          } else {
            run_row(launch, scales, positions[i], row, share);
          }
        }
      }
    });
  }

  void run_row(const Launch& launch, const GradientScales<T>& scales, int64_t position, S* row, int64_t share) const {
    const int64_t n = size_.classes;
    T* const x = copies_row_ ? at<T>(row_, launch) + share * n : reinterpret_cast<T*>(row);
    vectorized([&] {
      if (copies_row_) convert_row(row, n, x);
      after_.apply(n, x);
    });
    const int64_t label = ce_.label(launch, position);
    T most = 0;
    vectorized([&] {
      most = largest_of(n, x);
      if (makes_[kCorrect]) launch.out<bool>(kCorrect)[position] = is_first_of_largest(x, label, most);
      if (makes_[kRank]) launch.out<T>(kRank)[position] = rank_of(n, x, label);
    });
    if (trains_ && ce_.smoothing == 0) return finish_row(launch, scales, {position, label, most}, x, row);
    const PositionBlock piece{0, position, 1};
    T log_sum = 0;
    vectorized([&] {
      loss_of_piece(ce_, launch, piece, Strided<const T>{x, 1}, &log_sum, at<double>(losses_, launch) + position);
    });
    if (makes_[kLogP]) launch.out<T>(kLogP)[position] = x[label] - log_sum;
    if (!trains_) return;
    for_blocks(x, row, [&](const Classes& classes, T* dx) {
      gradient_of_piece(ce_, scales, launch, piece, classes, Strided<const T>{dx, 1}, &log_sum, Strided<T>{dx, 1});
    });
  }

  struct Position {
    int64_t index, label;
    T most;  // of its logits x
  };

  // The loss of a position without label smoothing; x becomes its gradient. Computes each exponential once.
  void finish_row(const Launch& launch, const GradientScales<T>& scales, const Position& p, T* x, S* row) const {
    const T *weight = ce_.weights<T>(launch), logit = x[p.label];
    T sum = 0;
    vectorized([&] { sum = sum_of_exponentials(size_.classes, x, p.most, [=](int64_t c, T e) { x[c] = e; }); });
    const T w = weight ? weight[p.label] : T{1}, share = static_cast<T>(scales.scale * static_cast<double>(w));
    at<double>(losses_, launch)[p.index] = static_cast<double>(w * (p.most + std::log(sum) - logit));
    if (makes_[kLogP]) launch.out<T>(kLogP)[p.index] = logit - (p.most + std::log(sum));
    const T factor = share / sum;
    for_blocks(x, row, [&](const Classes& classes, T* dx) {
#pragma omp simd
      for (int64_t c = 0; c < classes.count; ++c) dx[c] *= factor;
      if (classes.has(p.label)) dx[p.label - classes.begin] -= share;
    });
  }

  // Calls make(classes, x at these classes) for blocks of classes that stay in the L1 cache, and makes of the gradients
  // of the logits that it leaves those of the product in `row`, which still holds the product where its slopes are
  // wanted.
  template <typename Make>
  void for_blocks(T* x, S* row, const Make& make) const {
    constexpr int64_t kAtOnce = 2048;
    for (Classes classes{0, 0}; classes.begin < size_.classes; classes.begin += kAtOnce) {
      classes.count = std::min(kAtOnce, size_.classes - classes.begin);
      T* dx = x + classes.begin;
      S* to = row + classes.begin;
      vectorized([&] {
        make(classes, dx);
        if (after_.has_slope()) after_.multiply_by_slopes(classes.count, to, dx);
        if (after_.rounds_product) round_row(after_.rounding, classes.count, dx);
        if (copies_row_) convert_row(dx, classes.count, to);
      });
    }
  }

  // Adds the rows of the chunk's gradients to dbias.
  void sum_bias(const Launch& launch, const Range& range) const {
    constexpr int64_t kAtOnce = 256;
    const S* rows = at<S>(logits_, launch);
    T* sums = launch.out<T>(kDbias);
    const int64_t blocks = (size_.classes + kAtOnce - 1) / kAtOnce;
    parallel_for(blocks, std::max<int64_t>(1, kElementGrain / (kAtOnce * range.rows)), [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        const int64_t first = i * kAtOnce, count = std::min(kAtOnce, size_.classes - first);
        T sum[kAtOnce] = {};
        vectorized([&] {
          for (int64_t r = 0; r < range.rows; ++r) {
            const S* row = rows + r * size_.classes + first;
#pragma omp simd
            for (int64_t c = 0; c < count; ++c) sum[c] += load(row[c]);
          }
        });
        for (int64_t c = 0; c < count; ++c) sums[first + c] = range.is_first ? sum[c] : sums[first + c] + sum[c];
      }
    });
  }

  const LinearLossSpec size_;
  const CrossEntropy ce_;
  const LogitsOfProduct<T> after_;
  const bool copies_row_;  // into memory of the thread, where the logits are made of it and their gradients
  const bool trains_, biased_;
  const DType dh_type_;
  const int64_t threads_;
  std::array<bool, kOutputs> makes_ = {};  // of the outputs but the loss
  std::vector<Chunk> chunks_;              // the larger one first
  Workspace workspace_;
  OperandPlace logits_, row_, h_, dh_, losses_, counted_, scratch_;
};

bool supports_linear_loss(const NodeSpec& spec) {
  const DType stored = spec.in_type(0);
  if (!computes_in_one_type(spec, {0, 1}, {kDh}) || !is_label(spec.in_type(2)) || spec.node().attr("axis", 0) != -1)
    return false;
  const LinearLossSpec size(spec);
  if (stored != spec.in_type(1) || size.classes == 0 || size.width == 0) return false;
  if (!is_narrow(stored)) return !spec.has_output(kDh) || spec.out_type(kDh) == stored;
  // The product is stored in bfloat16.
  return isa() >= Isa::kAvx512Bf16 && size.rounding == DType::kBFloat16;
}

template <typename S>
Prepared prepared_linear_loss(const NodeSpec& spec) {
  const auto kernel = std::make_shared<const LinearLoss<S>>(spec);
  return {.run = [kernel](const Launch& launch) { kernel->run(launch); },
          .workspace = kernel->workspace(),
          .explain = kernel->cross_entropy().explain(),
          .form = kernel->form()};
}

Prepared prepare_linear_loss(const NodeSpec& spec) {
  if (is_narrow(spec.in_type())) return prepared_linear_loss<BFloat16>(spec);
  return dispatch_float(spec.in_type(), [&](auto zero) { return prepared_linear_loss<decltype(zero)>(spec); });
}

}  // namespace

std::vector<Kernel> linear_loss_kernels() {
  return {{"LinearCrossEntropy", supports_linear_loss, prepare_linear_loss, kDomain, "", InputCheck::kChecks}};
}

}  // namespace onnx_train::cpu
