#include "kernels/cpu/products/gemm.h"

#include <algorithm>

#include "kernels/cpu/products/blas.h"
#include "kernels/cpu/products/gemm_state.h"
#include "kernels/cpu/products/onednn.h"
#include "kernels/cpu/support/onednn.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// A product with an empty dimension: y, the bias, or 0.
template <typename T>
class EmptyGemm : public GemmState<T> {
 public:
  using GemmState<T>::GemmState;
  std::unique_ptr<GemmState<T>> copy() const override { return std::make_unique<EmptyGemm>(*this); }
  void run(const T*, const T*, Computed<T>* y, void*, const Computed<T>* bias) override {
    const GemmShape& s = this->shape;
    if (s.accumulate) return;
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) y[i * s.y_row + j] = s.bias ? bias[j] : Computed<T>{0};
    }
  }
};

template <typename T>
class BlasGemm : public GemmState<T> {
 public:
  explicit BlasGemm(const GemmShape& s) : GemmState<T>(s) {
    if (std::max({s.m, s.n, s.k}) > kMostOfBlas) fail("a matrix is larger than BLAS can count");
  }
  std::unique_ptr<GemmState<T>> copy() const override { return std::make_unique<BlasGemm>(*this); }
  void run(const T* a, const T* b, T* y, void*, const T* bias) override {
    GemmShape s = this->shape;
    if (s.bias) {
      for (int64_t i = 0; i < s.m; ++i) std::copy(bias, bias + s.n, y + i * s.y_row);
      s.accumulate = true;
    }
    multiply_by_blas(s, 1, a, b, y);
  }
};

template <typename T>
std::unique_ptr<GemmState<T>> make_state(const GemmShape& shape) {
  if (shape.m == 0 || shape.n == 0 || shape.k == 0) return std::make_unique<EmptyGemm<T>>(shape);
  if constexpr (std::is_same_v<T, double>) {
    return std::make_unique<BlasGemm<T>>(shape);
  } else if constexpr (std::is_same_v<T, float>) {
    if (!has_onednn()) return std::make_unique<BlasGemm<T>>(shape);
    return make_onednn_gemm<T>(shape);
  } else {
    return make_onednn_gemm<T>(shape);
  }
}

}  // namespace

template <typename T>
Gemm<T>::Gemm(const GemmShape& shape) : state_(make_state<T>(shape)) {}

template <typename T>
Gemm<T>::Gemm(std::unique_ptr<GemmState<T>> state) : state_(std::move(state)) {}

template <typename T>
Gemm<T>::Gemm(const Gemm& other) : state_(other.state_->copy()) {}

template <typename T>
Gemm<T>::~Gemm() = default;

template <typename T>
Gemm<T> Gemm<T>::with_rows(int64_t m) const {
  GemmShape shape = state_->shape;
  shape.m = m;
  auto state = m == 0 ? nullptr : state_->with_rows(m);
  return Gemm(state ? std::move(state) : make_state<T>(shape));
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
  state_->run(a, b, y, scratch, bias);
}

template class Gemm<float>;
template class Gemm<double>;
template class Gemm<BFloat16>;

}  // namespace onnx_train::cpu
