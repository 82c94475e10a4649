// Resize and ResizeGrad (functions/resampling.cc): multiplies one axis after the other by its matrix, or by the
// transposed matrix in the gradient. Tables are built when the kernel is prepared.
//
// The work is cut into blocks: a few images, or a few rows of one large image. A block passes through all axes while it
// is in the cache. Each element is the sum of the same terms in the same order however the work is cut, so results do
// not depend on the number of threads.
#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/cpu/movement/axis_product.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/resampling.h"
#include "kernels/math/convert.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {
namespace {

// The work of one block: images [image, image + images), or the rows [begin, end) of one image's first axis, computed
// from rows [from, to) of the input.
struct Block {
  int64_t image = 0, images = 1;
  int64_t begin = 0, end = 0, from = 0, to = 0;
};

template <typename T>
class Resampler {
 public:
  Resampler(const ResampledAxes& axes, int threads) : axes_(axes), order_(order_of(axes.axes)) {
    int64_t inner = 1;
    std::vector<AxisProduct<T>> products;
    for (size_t i = axes_.axes.size(); i-- > 0;) {
      const ResampledAxis& a = axes_.axes[i];
      // Later axes already have their new sizes if they are processed first.
      inner = a.between;
      for (size_t k = i + 1; k < axes_.axes.size(); ++k)
        inner *= size(k, position(k) < position(i)) * axes_.axes[k].between;
      products.emplace_back(a.matrix, inner);
    }
    products_.assign(std::make_move_iterator(products.rbegin()), std::make_move_iterator(products.rend()));
    for (size_t step = 0; step <= order_.size(); ++step) {
      sizes_.push_back(1);
      for (size_t k = 0; k < axes_.axes.size(); ++k)
        sizes_.back() *= size(k, position(k) < step) * axes_.axes[k].between;
    }
    cut(threads);
  }

  size_t workspace() const { return static_cast<size_t>(shares_ * 2 * buffer_) * sizeof(T); }

  void run(const T* x, T* y, T* scratch) const {
    const auto count = static_cast<int64_t>(blocks_.size());
    parallel_for(shares_, 1, [&](int64_t share, int64_t end) {
      for (; share < end; ++share) {
        for (int64_t i = count * share / shares_; i < count * (share + 1) / shares_; ++i) {
          const Block& block = blocks_[static_cast<size_t>(i)];
          vectorized([&] { run_block(block, x, y, scratch + share * 2 * buffer_); });
        }
      }
    });
  }

 private:
  static constexpr int64_t kCached = 1 << 15;   // bytes of images in one block
  static constexpr int64_t kLargest = 1 << 18;  // bytes of the largest image that is not cut

  size_t position(size_t axis) const {
    return static_cast<size_t>(std::find(order_.begin(), order_.end(), axis) - order_.begin());
  }
  int64_t size(size_t axis, bool is_done) const { return is_done ? axes_.axes[axis].out() : axes_.axes[axis].in(); }

  void cut(int threads) {
    const int64_t largest = *std::max_element(sizes_.begin(), sizes_.end());
    const int64_t bytes = largest * static_cast<int64_t>(sizeof(T)), work = axes_.outer * largest;
    if (axes_.outer * sizes_.back() == 0) return;
    shares_ = std::clamp<int64_t>(work / kElementGrain, 1, threads);
    const int64_t rows = axes_.axes[0].out();
    const bool is_cut = (bytes > kLargest || axes_.outer < 2 * shares_) && !products_[0].is_flat() && rows > 1;
    if (is_cut) {
      const int64_t wanted = std::max(blocks(bytes, kLargest), blocks(4 * shares_, axes_.outer));
      cut_rows(std::clamp<int64_t>(rows / wanted, std::min<int64_t>(rows, 8), rows));
    } else {
      const int64_t together = std::clamp<int64_t>(kCached / bytes, 1, std::max<int64_t>(1, axes_.outer / shares_));
      for (int64_t i = 0; i < axes_.outer; i += together) {
        blocks_.push_back({i, std::min(together, axes_.outer - i), 0, rows, 0, axes_.axes[0].in()});
      }
      buffer_ = together * largest_between();
    }
    shares_ = std::min(shares_, static_cast<int64_t>(blocks_.size()));
  }

  static int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

  // Elements of the largest intermediate image.
  int64_t largest_between() const {
    int64_t most = 0;
    for (size_t step = 1; step < order_.size(); ++step) most = std::max(most, sizes_[step]);
    return most;
  }

  void cut_rows(int64_t rows) {
    const SparseMatrix& matrix = axes_.axes[0].matrix;
    std::vector<Block> of_image;
    int64_t most = 0;
    for (int64_t i = 0; i < matrix.rows(); i += rows) {
      Block block = {0, 1, i, std::min(i + rows, matrix.rows()), matrix.columns, 0};
      for (auto e = static_cast<size_t>(matrix.begin[static_cast<size_t>(i)]);
           e < static_cast<size_t>(matrix.begin[static_cast<size_t>(block.end)]); ++e) {
        block.from = std::min(block.from, matrix.entries[e].column);
        block.to = std::max(block.to, matrix.entries[e].column + 1);
      }
      block.from = std::min(block.from, block.to);  // no input row is read
      of_image.push_back(block);
      for (size_t step = 1; step < order_.size(); ++step) most = std::max(most, elements(block, step));
    }
    for (int64_t image = 0; image < axes_.outer; ++image) {
      for (Block block : of_image) {
        block.image = image;
        blocks_.push_back(block);
      }
    }
    buffer_ = most;
  }

  // Number of elements of one image of the block before step `step`.
  int64_t elements(const Block& block, size_t step) const {
    const bool is_done = position(0) < step;
    const int64_t rows = is_done ? block.end - block.begin : block.to - block.from;
    return rows * (sizes_[step] / size(0, is_done));
  }

  [[gnu::always_inline]] void run_block(const Block& block, const T* x, T* y, T* scratch) const {
    const bool is_part = block.end - block.begin < axes_.axes[0].out();
    const int64_t in_row = sizes_[0] / axes_.axes[0].in(), out_row = sizes_.back() / axes_.axes[0].out();
    const T* from = x + block.image * sizes_[0] + (is_part ? block.from * in_row : 0);
    T* const result = y + block.image * sizes_.back() + block.begin * out_row;
    for (size_t step = 0; step < order_.size(); ++step) {
      const size_t axis = order_[step];
      T* to = step + 1 == order_.size() ? result : scratch + static_cast<int64_t>(step % 2) * buffer_;
      if (axis == 0 && is_part) {
        products_[0].run_part(from, block.from, block.begin, block.end, to);
      } else {
        products_[axis].run(from, rows_before(block, step, is_part), to);
      }
      from = to;
    }
    fill_outside(block, result);
  }

  // Product of all sizes before the axis of step `step`.
  int64_t rows_before(const Block& block, size_t step, bool is_part) const {
    int64_t rows = block.images;
    for (size_t k = 0; k < order_[step]; ++k) {
      const bool is_done = position(k) < step;
      const int64_t part = is_done ? block.end - block.begin : block.to - block.from;
      rows *= (k == 0 && is_part ? part : size(k, is_done)) * axes_.axes[k].between;
    }
    return rows;
  }

  void fill_outside(const Block& block, T* y) const {
    int64_t rows = block.images, inner = sizes_.back();
    for (size_t k = 0; k < axes_.axes.size(); ++k) {
      const ResampledAxis& a = axes_.axes[k];
      inner /= a.out();
      const int64_t begin = k == 0 ? block.begin : 0, size = k == 0 ? block.end - block.begin : a.out();
      for (const int64_t outside : a.matrix.outside) {
        if (outside < begin || outside >= begin + size) continue;
        for (int64_t row = 0; row < rows; ++row) {
          std::fill_n(y + (row * size + outside - begin) * inner, inner, static_cast<T>(axes_.outside));
        }
      }
      rows *= size * a.between;
      inner /= a.between;
    }
  }

  ResampledAxes axes_;
  std::vector<size_t> order_;             // the axis of each step
  std::vector<AxisProduct<T>> products_;  // indexed by axis
  std::vector<int64_t> sizes_;            // elements of an image before each step, then of the result
  std::vector<Block> blocks_;
  int64_t shares_ = 1, buffer_ = 0;
};

// ---- Rows

template <typename T>
Prepared prepare(const NodeSpec& spec, const ResampledAxes& axes) {
  if (axes.axes.empty()) {
    const size_t bytes = static_cast<size_t>(spec.out_size()) * sizeof(T);
    return {[bytes](const Launch& launch) {
              if (bytes > 0 && launch.in<T>(0) != launch.out<T>()) std::memcpy(launch.out<T>(), launch.in<T>(0), bytes);
            },
            0,
            {{0, 0}}};
  }
  if (spec.in_size() == 0) {  // no gradients at all
    return {[size = spec.out_size()](const Launch& launch) { std::fill_n(launch.out<T>(), size, T{0}); }};
  }
  const auto resampler = std::make_shared<const Resampler<T>>(axes, spec.threads());
  return {[resampler](const Launch& launch) { resampler->run(launch.in<T>(0), launch.out<T>(), launch.scratch<T>()); },
          resampler->workspace()};
}

// Types other than float32 and float64 are weighted and summed in float64.
template <typename S>
Prepared prepare_converted(const NodeSpec& spec, const ResampledAxes& axes) {
  const auto resampler = std::make_shared<const Resampler<double>>(axes, spec.threads());
  const int64_t in = spec.in_size(), out = spec.out_size();
  return {[resampler, in, out](const Launch& launch) {
            double *x = launch.scratch<double>(), *y = x + in;
            parallel_for(in, kElementGrain, [&](int64_t i, int64_t end) {
              for (; i < end; ++i) x[i] = static_cast<double>(launch.in<S>(0)[i]);
            });
            resampler->run(x, y, y + out);
            parallel_for(out, kElementGrain, [&](int64_t i, int64_t end) {
              for (; i < end; ++i) launch.out<S>()[i] = math::saturated<S>(y[i]);
            });
          },
          static_cast<size_t>(in + out) * sizeof(double) + resampler->workspace()};
}

Prepared prepare_resize(const NodeSpec& spec) {
  const ResampledAxes axes = resize_matrices(spec);
  if (is_float_or_double(spec.in_type())) {
    return dispatch_float(spec.in_type(), [&]<typename T>(T) { return prepare<T>(spec, axes); });
  }
  if (only_moves(spec) || axes.axes.empty()) {
    return dispatch_size(size_of(spec.in_type()), [&]<typename T>(T) { return prepare<T>(spec, axes); });
  }
  if (spec.in_type() == DType::kFloat16) return prepare_converted<Float16>(spec, axes);
  if (spec.in_type() == DType::kBFloat16) return prepare_converted<BFloat16>(spec, axes);
  return dispatch_any(spec.in_type(), [&]<typename S>(S) { return prepare_converted<S>(spec, axes); });
}

Prepared prepare_resize_grad(const NodeSpec& spec) {
  const ResampledAxes axes = resize_grad_matrices(spec);
  return dispatch_float(spec.in_type(), [&]<typename T>(T) { return prepare<T>(spec, axes); });
}

}  // namespace

std::vector<Kernel> resampling_kernels() {
  return {
      {"Resize", supports_resize, prepare_resize},
      {"ResizeGrad", supports_resize_grad, prepare_resize_grad, kDomain},
  };
}

}  // namespace onnx_train::cpu
