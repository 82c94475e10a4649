// Resize and ResizeGrad (kernels/geometry/resampling.h): multiplies one axis after the other by its matrix. The
// gradient multiplies by transposed matrices, so that one thread gathers each element of dx.
#include <bit>

#include "kernels/cuda/movement/copy_rows.h"
#include "kernels/cuda/support/device_table.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/resampling.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// A sparse matrix in device memory: row r has the entries [begin[r], begin[r + 1]).
struct DeviceMatrix {
  const int64_t *begin, *columns;
  const double* weights;
};

// y[o, r, c] = Σ weight x[o, column, c] over the entries of row r. One thread per element.
template <typename T>
__global__ void resample_axis(int64_t n, int64_t in, Divider inner, Divider rows, DeviceMatrix matrix,
                              const T* __restrict__ x, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t line = inner.quotient(i), outer = rows.quotient(line), row = line - outer * rows.divisor();
  x += outer * in * inner.divisor() + i - line * inner.divisor();
  const int64_t last = matrix.begin[row + 1];
  T sum = 0;
  for (int64_t e = matrix.begin[row]; e < last; ++e) {
    sum += static_cast<T>(matrix.weights[e]) * x[matrix.columns[e] * inner.divisor()];
  }
  y[i] = sum;
}

// y[o, outside[k], c] = value
template <typename T>
__global__ void fill_rows(int64_t n, int64_t rows, Divider inner, Divider count, const int64_t* outside, T value,
                          T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t line = inner.quotient(i), outer = count.quotient(line), k = line - outer * count.divisor();
  y[(outer * rows + outside[k]) * inner.divisor() + i - line * inner.divisor()] = value;
}

// A step from [before, in, inner] to [before, out, inner]; later steps set the result's rows outside of the input.
struct Step {
  int64_t before, in, out, inner;
  int64_t size() const { return before * out * inner; }
};

// The table of an axis: begin, columns, weights, rows outside. All elements have 8 bytes.
class AxisTable {
 public:
  explicit AxisTable(const SparseMatrix& matrix)
      : rows_(matrix.rows()), entries_(static_cast<int64_t>(matrix.entries.size())) {
    std::vector<int64_t> words = matrix.begin;
    for (const auto& entry : matrix.entries) words.push_back(entry.column);
    for (const auto& entry : matrix.entries) words.push_back(std::bit_cast<int64_t>(entry.weight));
    words.insert(words.end(), matrix.outside.begin(), matrix.outside.end());
    table_ = std::make_shared<const DeviceTable>(words.data(), words.size() * sizeof(int64_t));
  }
  DeviceMatrix matrix() const {
    return {table_->data<int64_t>(), columns(), reinterpret_cast<const double*>(columns() + entries_)};
  }
  const int64_t* columns() const { return table_->data<int64_t>() + rows_ + 1; }
  const int64_t* outside() const { return columns() + 2 * entries_; }

 private:
  int64_t rows_, entries_;
  SharedTable table_;
};

// The steps of a Resize or its gradient, in order. The result is not empty.
class Resampler {
 public:
  explicit Resampler(const ResampledAxes& all) : outside_(all.outside) {
    const std::vector<ResampledAxis>& axes = all.axes;
    std::vector<bool> done(axes.size());
    for (const size_t axis : order_of(axes)) {
      steps_.push_back({step_of(all, axis, done), AxisTable(axes[axis].matrix)});
      done[axis] = true;
      if (steps_.size() < axes.size()) buffer_ = std::max(buffer_, steps_.back().shape.size());
    }
    buffer_ = (buffer_ + 63) / 64 * 64;  // both halves of the scratch memory start at whole vectors
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      const auto count = static_cast<int64_t>(axes[axis].matrix.outside.size());
      if (count > 0) fills_.push_back({step_of(all, axis, done), AxisTable(axes[axis].matrix), count});
    }
  }

  // Number of elements of scratch memory.
  int64_t scratch() const { return 2 * buffer_; }

  template <typename T>
  void run(const Launch& launch, const T* x, T* y, T* scratch) const {
    multiply<T>(x, y, scratch, [&](const AxisStep& step, const T* from, T* to) {
      const Step& s = step.shape;
      enqueue_each(launch, "resample_axis", resample_axis<T>, s.size(), s.in, Divider(s.inner), Divider(s.out),
                   step.table.matrix(), from, to);
    });
    for (const Fill& fill : fills_) {
      const int64_t n = fill.shape.before * fill.count * fill.shape.inner;
      enqueue_each(launch, "fill_rows", fill_rows<T>, n, fill.shape.out, Divider(fill.shape.inner), Divider(fill.count),
                   fill.table.outside(), static_cast<T>(outside_), y);
    }
  }

  // Moves elements of `bytes` bytes if every row of the result is a copy of an input row.
  void move(const Launch& launch, int64_t bytes, const char* x, char* y, char* scratch) const {
    multiply<char>(
        x, y, scratch,
        [&](const AxisStep& step, const char* from, char* to) {
          const Step& s = step.shape;
          copy_rows(launch, {s.before, s.in, s.out, s.inner * bytes}, step.table.columns(), from, to);
        },
        bytes);
  }

 private:
  struct AxisStep {
    Step shape;
    AxisTable table;
  };
  struct Fill {
    Step shape;
    AxisTable table;
    int64_t count;
  };

  static Step step_of(const ResampledAxes& all, size_t axis, const std::vector<bool>& done) {
    Step step{all.outer, all.axes[axis].in(), all.axes[axis].out(), all.axes[axis].between};
    for (size_t k = 0; k < all.axes.size(); ++k) {
      const int64_t size = (done[k] ? all.axes[k].out() : all.axes[k].in()) * all.axes[k].between;
      if (k != axis) (k < axis ? step.before : step.inner) *= size;
    }
    return step;
  }

  // Calls f(step, from, to) for each step; results between steps go to the two halves of `scratch` in turn.
  template <typename T, typename F>
  void multiply(const T* x, T* y, T* scratch, const F& f, int64_t bytes = 1) const {
    for (size_t k = 0; k < steps_.size(); ++k) {
      T* to = k + 1 == steps_.size() ? y : scratch + static_cast<int64_t>(k % 2) * buffer_ * bytes;
      f(steps_[k], x, to);
      x = to;
    }
  }

  std::vector<AxisStep> steps_;
  std::vector<Fill> fills_;
  int64_t buffer_ = 0;  // elements of half of the scratch memory: the size of the largest result between steps
  double outside_;
};

// ---- Rows

// Whether no matrix is needed: for an empty result, a copy of the input, or the gradient of an empty result.
bool is_simple(const NodeSpec& spec, const ResampledAxes& axes) {
  return spec.out_size() == 0 || axes.axes.empty() || spec.in_size() == 0;
}

Prepared prepare_simple(const NodeSpec& spec) {
  const size_t bytes = static_cast<size_t>(spec.out_size()) * size_of(spec.out_type());
  if (bytes == 0) return {[](const Launch&) {}};
  if (spec.in_size() == 0) {
    return {[bytes](const Launch& launch) { set_bytes(launch, launch.outputs[0], 0, bytes); }};
  }
  const auto copy = [bytes](const Launch& launch) {
    if (launch.inputs[0] == launch.outputs[0]) return;
    check(cudaMemcpyAsync(launch.outputs[0], launch.inputs[0], bytes, cudaMemcpyDeviceToDevice, stream_of(launch)),
          "cudaMemcpyAsync");
  };
  return {copy, 0, {{0, 0}}};
}

Prepared prepare_float(const NodeSpec& spec, const ResampledAxes& axes) {
  return dispatch_float(spec.in_type(), [&]<typename T>(T) -> Prepared {
    const Resampler resampler(axes);
    return {[=](const Launch& launch) { resampler.run(launch, launch.in<T>(0), launch.out<T>(), launch.scratch<T>()); },
            static_cast<size_t>(resampler.scratch()) * sizeof(T)};
  });
}

Prepared prepare_move(const NodeSpec& spec, const ResampledAxes& axes) {
  const auto bytes = static_cast<int64_t>(size_of(spec.in_type()));
  const Resampler resampler(axes);
  return {[=](const Launch& launch) {
            resampler.move(launch, bytes, launch.in<char>(0), launch.out<char>(), launch.scratch<char>());
          },
          static_cast<size_t>(resampler.scratch() * bytes)};
}

// ---- Other types are weighted and summed in float64.

template <typename S>
__global__ void widen_elements(int64_t n, const S* x, double* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) y[i] = math::convert<double>(x[i]);
}

template <typename S>
__global__ void saturate_elements(int64_t n, const double* x, S* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) y[i] = math::saturated<S>(x[i]);
}

// Calls f(S{}) for such a type.
template <typename F>
void dispatch_other(DType dtype, const F& f) {
  if (is_half(dtype)) return dispatch_narrow(dtype, f);
  dtype == DType::kBool ? f(bool{}) : dispatch_integer(dtype, f);
}

Prepared prepare_converted(const NodeSpec& spec, const ResampledAxes& axes) {
  const Resampler resampler(axes);
  const int64_t in = spec.in_size(), out = spec.out_size();
  return {[=, dtype = spec.in_type()](const Launch& launch) {
            double *x = launch.scratch<double>(), *y = x + in;
            dispatch_other(dtype, [&]<typename S>(S) {
              enqueue_each(launch, "widen_elements", widen_elements<S>, in, launch.in<S>(0), x);
              resampler.run(launch, x, y, y + out);
              enqueue_each(launch, "saturate_elements", saturate_elements<S>, out, y, launch.out<S>());
            });
          },
          static_cast<size_t>(in + out + resampler.scratch()) * sizeof(double)};
}

Prepared prepare_resize(const NodeSpec& spec) {
  const ResampledAxes axes = resize_matrices(spec);
  if (is_simple(spec, axes)) return prepare_simple(spec);
  if (is_float_or_double(spec.in_type())) return prepare_float(spec, axes);
  return only_moves(spec) ? prepare_move(spec, axes) : prepare_converted(spec, axes);
}

Prepared prepare_resize_grad(const NodeSpec& spec) {
  const ResampledAxes axes = resize_grad_matrices(spec);
  return is_simple(spec, axes) ? prepare_simple(spec) : prepare_float(spec, axes);
}

}  // namespace

std::vector<Kernel> resampling_kernels() {
  return {
      {"Resize", supports_resize, prepare_resize},
      {"ResizeGrad", supports_resize_grad, prepare_resize_grad, kDomain},
  };
}

}  // namespace onnx_train::cuda
