// Products inside of other kernels by oneDNN (kernels/cpu/products/gemm.h).
#include <omp.h>

#include <dnnl.hpp>

#include "kernels/cpu/products/onednn.h"
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

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

template <typename T>
class OneDnnGemm : public GemmState<T> {
 public:
  // With `like`, b uses the packed layout of that state.
  OneDnnGemm(const GemmShape& s, const OneDnnGemm* like) : GemmState<T>(s) {
    try {
      make(like ? &like->b_ : nullptr);
      make_memories();
    } catch (const dnnl::error& error) {
      fail("oneDNN refuses a product of ", s.m, " x ", s.k, " and ", s.k, " x ", s.n, ": ", error.what());
    }
  }
  // Each copy has its own memory objects, because data addresses change from run to run.
  std::unique_ptr<GemmState<T>> copy() const override {
    auto copied = std::make_unique<OneDnnGemm>(*this);
    copied->make_memories();
    return copied;
  }
  std::unique_ptr<GemmState<T>> with_rows(int64_t m) const override {
    GemmShape rows = this->shape;
    rows.m = m;
    return std::make_unique<OneDnnGemm>(rows, this);
  }

  size_t packed_bytes() const override { return b_ == plain_b_ ? 0 : b_.get_size(); }
  size_t scratch_bytes() const override { return scratchpad_.get_size(); }

  const T* pack(const T* b, void* buffer) override {
    if (packed_bytes() == 0) return b;
    const dnnl_exec_arg_t arguments[] = {bind(DNNL_ARG_FROM, from_memory_, b), bind(DNNL_ARG_TO, b_memory_, buffer)};
    execute(reorder_, arguments, 2);
    return static_cast<const T*>(buffer);
  }

  void run(const T* a, const T* b, float* y, void* scratch, const float* bias) override {
    dnnl_exec_arg_t arguments[5] = {bind(DNNL_ARG_SRC, a_memory_, a), bind(DNNL_ARG_WEIGHTS, b_memory_, b),
                                    bind(DNNL_ARG_DST, y_memory_, y)};
    int count = 3;
    if (this->shape.bias) arguments[count++] = bind(DNNL_ARG_BIAS, bias_memory_, bias);
    if (scratch_memory_) arguments[count++] = bind(DNNL_ARG_SCRATCHPAD, scratch_memory_, scratch);
    execute(product_, arguments, count);
  }

 private:
  static constexpr Type kType = std::is_same_v<T, BFloat16> ? Type::bf16 : Type::f32;

  void make(const Desc* packed) {
    const GemmShape& s = this->shape;
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

  void make_memories() {
    const auto memory = [](const Desc& desc) { return dnnl::memory(desc, engine(), DNNL_MEMORY_NONE); };
    a_memory_ = memory(a_), b_memory_ = memory(b_), y_memory_ = memory(y_);
    if (this->shape.bias) bias_memory_ = memory(bias_);
    if (scratchpad_.get_size() > 0) scratch_memory_ = memory(scratchpad_);
    if (b_ != plain_b_) from_memory_ = memory(plain_b_);
    stream_ = dnnl::stream(engine());
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

}  // namespace

template <typename T>
std::unique_ptr<GemmState<T>> make_onednn_gemm(const GemmShape& shape) {
  return std::make_unique<OneDnnGemm<T>>(shape, nullptr);
}
template std::unique_ptr<GemmState<float>> make_onednn_gemm(const GemmShape& shape);
template std::unique_ptr<GemmState<BFloat16>> make_onednn_gemm(const GemmShape& shape);

}  // namespace onnx_train::cpu
