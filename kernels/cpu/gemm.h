// A matrix product inside another kernel: y = a b, or y + a b, on row-major matrices or their transposes at addresses
// that are known only while the kernel runs. float32 by oneDNN, float64 by BLAS; bfloat16 operands with float32 sums,
// by oneDNN, where isa() >= Isa::kAvx512Bf16.
//
// A Gemm is made while the kernel is prepared; one that runs on several threads at once needs a copy for each
// (`Gemm` copies cheaply: the primitive is shared). The order of its sums does not depend on `threads`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/stored.h"

namespace onnx_train::cpu {

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;      // y is m x n, a is m x k, b is k x n
  int64_t a_row = 0, a_column = 1;  // distances in elements; one of the two is 1
  int64_t b_row = 0, b_column = 1;
  int64_t y_row = 0;
  bool accumulate = false;
  bool bias = false;        // a row of n numbers is added to each row
  bool packed = false;      // b is read many times: `pack` puts it into the layout that suits the product best
  bool one_thread = false;  // runs inside of a parallel region
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
  // Returns what `run` takes for b: a copy in `buffer` (of packed_bytes()), or b itself where none is needed.
  const T* pack(const T* b, void* buffer);
  // `scratch` has scratch_bytes(), aligned to 64; `bias` is read where the shape says so.
  void run(const T* a, const T* b, Computed<T>* y, void* scratch, const Computed<T>* bias = nullptr);
  // The product of another number of rows that reads the same packed b.
  Gemm with_rows(int64_t m) const;

 private:
  explicit Gemm(std::unique_ptr<GemmState<T>> state);
  std::unique_ptr<GemmState<T>> state_;
};

extern template class Gemm<float>;
extern template class Gemm<double>;
extern template class Gemm<BFloat16>;

}  // namespace onnx_train::cpu
