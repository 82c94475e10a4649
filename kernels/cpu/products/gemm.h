// A matrix product inside another kernel: y = a b, or y + a b, for row-major matrices or their transposes whose
// addresses are known only while the kernel runs. float32 uses oneDNN, or BLAS where there is none; float64 BLAS;
// bfloat16 operands with float32 sums use oneDNN and need isa() >= Isa::kAvx512Bf16.
//
// The kernel that prepares a Gemm owns it. One Gemm runs on one thread at a time; a kernel that runs it on several
// threads copies it for each (copies share the oneDNN primitive). The order of oneDNN's sums does not depend on the
// number of threads, that of OpenBLAS's may. Construction and run() throw Error when oneDNN fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/support/stored.h"

namespace onnx_train::cpu {

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;      // y is m x n, a is m x k, b is k x n
  int64_t a_row = 0, a_column = 1;  // distances in elements; one of row and column is 1
  int64_t b_row = 0, b_column = 1;
  int64_t y_row = 0;
  bool accumulate = false;
  bool bias = false;        // run() adds a row of n numbers to each row
  bool packed = false;      // b is read many times: pack() copies it into the layout that oneDNN prefers
  bool one_thread = false;  // runs inside a parallel region
};

template <typename T>
class GemmState;

template <typename T>
class Gemm {
 public:
  explicit Gemm(const GemmShape& shape);
  ~Gemm();
  Gemm(const Gemm&);
  Gemm& operator=(const Gemm&) = delete;

  size_t packed_bytes() const;
  size_t scratch_bytes() const;
  // Returns the pointer that run() takes for b: a packed copy in `buffer` (packed_bytes() long), or b itself if no copy
  // is needed.
  const T* pack(const T* b, void* buffer);
  // `scratch` has scratch_bytes(), aligned to 64; `bias` is read only if the shape has one.
  void run(const T* a, const T* b, Computed<T>* y, void* scratch, const Computed<T>* bias = nullptr);
  // The same product with another number of rows, sharing the packed b.
  Gemm with_rows(int64_t m) const;

 private:
  explicit Gemm(std::unique_ptr<GemmState<T>> state);
  std::unique_ptr<GemmState<T>> state_;
};

extern template class Gemm<float>;
extern template class Gemm<double>;
extern template class Gemm<BFloat16>;

}  // namespace onnx_train::cpu
