#include "kernels/cpu/products/gemm.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <climits>
#include <dnnl.hpp>

#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

using Desc = dnnl::memory::desc;
using Type = dnnl::memory::data_type;

Desc matrix(Type type, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  return {{rows, columns}, type, dnnl::memory::dims{row_stride, column_stride}};
}

// If `one`, oneDNN plans primitives for one thread, not for the current number, while the object lives.
class ThreadsWhilePreparing {
 public:
  explicit ThreadsWhilePreparing(bool one) : before_(omp_get_max_threads()) {
    if (one) omp_set_num_threads(1);
  }
  ~ThreadsWhilePreparing() { omp_set_num_threads(before_); }

 private:
  int before_;
};

bool is_empty(const GemmShape& s) { return s.m == 0 || s.n == 0 || s.k == 0; }

// Writes the result of a product with an empty dimension: y, the bias, or 0.
template <typename T>
void fill_empty(const GemmShape& s, T* y, const T* bias) {
  if (s.accumulate) return;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) y[i * s.y_row + j] = s.bias ? bias[j] : T{0};
  }
}

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

}  // namespace

// ---- float32 and bfloat16

template <typename T>
class GemmState {
 public:
  // With `like`, b uses the packed layout of that state.
  GemmState(const GemmShape& s, const GemmState* like) : shape(s) {
    if (is_empty(s)) return;
    try {
      make(like ? &like->b_ : nullptr);
      make_memories();
    } catch (const dnnl::error& error) {
      fail("oneDNN refuses a product of ", s.m, " x ", s.k, " and ", s.k, " x ", s.n, ": ", error.what());
    }
  }
  GemmState(const GemmState& other) = default;

  size_t packed_bytes() const { return is_empty(shape) || b_ == plain_b_ ? 0 : b_.get_size(); }
  size_t scratch_bytes() const { return is_empty(shape) ? 0 : scratchpad_.get_size(); }

  // Each copy has its own memory objects, because data addresses change from run to run.
  void make_memories() {
    if (is_empty(shape)) return;
    const auto memory = [](const Desc& desc) { return dnnl::memory(desc, engine(), DNNL_MEMORY_NONE); };
    a_memory_ = memory(a_), b_memory_ = memory(b_), y_memory_ = memory(y_);
    if (shape.bias) bias_memory_ = memory(bias_);
    if (scratchpad_.get_size() > 0) scratch_memory_ = memory(scratchpad_);
    if (b_ != plain_b_) from_memory_ = memory(plain_b_);
    stream_ = dnnl::stream(engine());
  }

  const T* pack(const T* b, void* buffer) {
    if (packed_bytes() == 0) return b;
    const dnnl_exec_arg_t arguments[] = {bind(DNNL_ARG_FROM, from_memory_, b), bind(DNNL_ARG_TO, b_memory_, buffer)};
    execute(reorder_, arguments, 2);
    return static_cast<const T*>(buffer);
  }

  void run(const T* a, const T* b, float* y, void* scratch, const float* bias) {
    dnnl_exec_arg_t arguments[5] = {bind(DNNL_ARG_SRC, a_memory_, a), bind(DNNL_ARG_WEIGHTS, b_memory_, b),
                                    bind(DNNL_ARG_DST, y_memory_, y)};
    int count = 3;
    if (shape.bias) arguments[count++] = bind(DNNL_ARG_BIAS, bias_memory_, bias);
    if (scratch_memory_) arguments[count++] = bind(DNNL_ARG_SCRATCHPAD, scratch_memory_, scratch);
    execute(product_, arguments, count);
  }

  GemmShape shape;

 private:
  static constexpr Type kType = std::is_same_v<T, BFloat16> ? Type::bf16 : Type::f32;

  void make(const Desc* packed) {
    const GemmShape& s = shape;
    a_ = matrix(kType, s.m, s.k, s.a_row, s.a_column);
    plain_b_ = matrix(kType, s.k, s.n, s.b_row, s.b_column);
    y_ = matrix(Type::f32, s.m, s.n, s.y_row, 1);
    const Desc any({s.k, s.n}, kType, dnnl::memory::format_tag::any);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::post_ops after;
    if (s.accumulate) after.append_sum(1);
    attributes.set_post_ops(after);
    const ThreadsWhilePreparing threads(s.one_thread);
    const Desc wanted = packed ? *packed : s.packed ? any : plain_b_;
    dnnl::matmul::primitive_desc found;
    if (s.bias) {
      bias_ = matrix(Type::f32, 1, s.n, s.n, 1);
      found = dnnl::matmul::primitive_desc(engine(), a_, wanted, bias_, y_, attributes);
    } else {
      found = dnnl::matmul::primitive_desc(engine(), a_, wanted, y_, attributes);
    }
    b_ = found.weights_desc();
    scratchpad_ = found.scratchpad_desc();
    product_ = dnnl::matmul(found);
    if (b_ != plain_b_) reorder_ = dnnl::reorder(dnnl::reorder::primitive_desc(engine(), plain_b_, engine(), b_));
  }

  static dnnl_exec_arg_t bind(int argument, const dnnl::memory& memory, const void* data) {
    dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(data));
    return {argument, memory.get()};
  }

  void execute(const dnnl::primitive& primitive, const dnnl_exec_arg_t* arguments, int count) {
    const auto status = dnnl_primitive_execute(primitive.get(), stream_.get(), count, arguments);
    if (status != dnnl_success) fail("oneDNN could not run a prepared product: status ", static_cast<int>(status));
  }

  Desc plain_b_, a_, b_, y_, bias_, scratchpad_;
  dnnl::primitive product_, reorder_;
  dnnl::stream stream_;
  dnnl::memory a_memory_, b_memory_, y_memory_, bias_memory_, scratch_memory_, from_memory_;
};

// ---- float64

template <>
class GemmState<double> {
 public:
  GemmState(const GemmShape& s, const GemmState*) : shape(s) {
    if (std::max({s.m, s.n, s.k}) > INT_MAX) fail("a matrix is larger than BLAS can count");
  }

  static size_t packed_bytes() { return 0; }
  static size_t scratch_bytes() { return 0; }
  static void make_memories() {}
  static const double* pack(const double* b, void*) { return b; }

  void run(const double* a, const double* b, double* y, void*, const double* bias) const {
    const GemmShape& s = shape;
    if (s.bias) {
      for (int64_t i = 0; i < s.m; ++i) std::copy(bias, bias + s.n, y + i * s.y_row);
    }
    const auto size = [](int64_t n) { return static_cast<blasint>(n); };
    const bool a_rows = s.a_column == 1, b_rows = s.b_column == 1;
    cblas_dgemm(CblasRowMajor, a_rows ? CblasNoTrans : CblasTrans, b_rows ? CblasNoTrans : CblasTrans, size(s.m),
                size(s.n), size(s.k), 1, a, size(a_rows ? std::max(s.a_row, s.k) : std::max(s.a_column, s.m)), b,
                size(b_rows ? std::max(s.b_row, s.n) : std::max(s.b_column, s.k)), s.accumulate || s.bias ? 1 : 0, y,
                size(std::max(s.y_row, s.n)));
  }

  GemmShape shape;
};

// ---- All

template <typename T>
Gemm<T>::Gemm(const GemmShape& shape) : state_(std::make_unique<GemmState<T>>(shape, nullptr)) {}

template <typename T>
Gemm<T>::Gemm(std::unique_ptr<GemmState<T>> state) : state_(std::move(state)) {}

template <typename T>
Gemm<T>::Gemm(const Gemm& other) : state_(std::make_unique<GemmState<T>>(*other.state_)) {
  state_->make_memories();
}

template <typename T>
Gemm<T>::~Gemm() = default;

template <typename T>
Gemm<T> Gemm<T>::with_rows(int64_t m) const {
  GemmShape shape = state_->shape;
  shape.m = m;
  return Gemm(std::make_unique<GemmState<T>>(shape, is_empty(state_->shape) ? nullptr : state_.get()));
}

template <typename T>
size_t Gemm<T>::packed_bytes() const {
  return state_->packed_bytes();
}

template <typename T>
size_t Gemm<T>::scratch_bytes() const {
  return state_->scratch_bytes();
}

template <typename T>
const T* Gemm<T>::pack(const T* b, void* buffer) {
  return state_->pack(b, buffer);
}

template <typename T>
void Gemm<T>::run(const T* a, const T* b, Computed<T>* y, void* scratch, const Computed<T>* bias) {
  if (is_empty(state_->shape)) return fill_empty(state_->shape, y, bias);
  state_->run(a, b, y, scratch, bias);
}

template class Gemm<float>;
template class Gemm<double>;
template class Gemm<BFloat16>;

}  // namespace onnx_train::cpu
