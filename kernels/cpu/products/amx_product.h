// Matrix products of float32 or bfloat16 operands on AMX, whose tiles multiply bfloat16 numbers and accumulate in
// float32.
//
// A float32 number is exactly the sum of three bfloat16 numbers, x = x1 + x2 + x3: 24 bits are 3 times 8. Of the nine
// products of parts, six are computed:
//
//   a b ~ a1 b1 + (a1 b2 + a2 b1) + (a1 b3 + a2 b2 + a3 b1).
//
// The rest is at most 2^-23 of a b, about 2^-26 on average: less than the rounding error of float32 sums. (G. Henry, P.
// Tang, A. Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// ARITH 2019.) AMX flushes numbers below 2^-126 to 0, so parts of numbers below 2^-110, and products that small, are
// lost. Blocks with operands that are not finite, or with overflow, are recomputed without AMX.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/products/products.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {

// Whether this machine has AMX and the product is one, or a batch that shares one b.
bool supports_amx_product(const Product& product);
// The rule where nothing is timed: whether it is also so large that packing its operands, of type `from`, pays.
bool is_amx_product(const Product& product, DType from);

// One prepared product. It is immutable after construction; any thread outside a parallel region may call run(). The
// order of its sums does not depend on the number of threads. T is float or BFloat16.
template <typename T>
class AmxProduct {
 public:
  // `y` is kFloat, or kBFloat16 when T is BFloat16.
  AmxProduct(const Product& product, DType y, int threads);

  size_t scratch_bytes() const;
  // `scratch` has scratch_bytes(), aligned to 64. `bias` is null or a row of n numbers that is added to every row; it
  // must be null when the product accumulates.
  void run(const T* a, const T* b, const float* bias, void* y, void* scratch) const;

 private:
  class Run;

  int64_t num_row_panels() const;  // counted over all batch items
  // Number of floats that hold y before it is rounded; 0 when y is complete after one block of k.
  int64_t fp32_elements() const;

  Product product_;
  int64_t items_ = 1, a_item_ = 0, y_item_ = 0;  // batch size, and distances between items in elements
  bool rounds_;                                  // y is bfloat16
  bool shares_a_;  // true: threads share a and each owns columns of y; false: they share b and each owns rows
  int64_t depth_, shared_panels_, own_panels_;  // block sizes
  int threads_;
};

extern template class AmxProduct<float>;
extern template class AmxProduct<BFloat16>;

}  // namespace onnx_train::cpu
