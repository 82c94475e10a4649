// Products of float32 or bfloat16 numbers on AMX, whose tiles multiply bfloat16 numbers and add up in float32.
//
// A float32 number is the sum of three bfloat16 ones, x = x1 + x2 + x3, exactly: 24 bits are 3 times 8. Of the nine
// products of the parts of two numbers six are made,
//
//   a b ~ a1 b1 + (a1 b2 + a2 b1) + (a1 b3 + a2 b2 + a3 b1),
//
// and what is left out is at most 2^-23 of a b, and 2^-26 or so on average: less than float32 sums lose. (G. Henry,
// P. Tang, A. Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
// ARITH 2019.) AMX takes numbers below 2^-126 for 0: parts of numbers below 2^-110 are lost, and so are such products.
// Where numbers are not finite, or overflow, the product is made as without AMX.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/products.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {

// Whether it is worth it: one product of operands of type `from`, or a batch that meets one b, so large that copying
// its operands pays, where isa() is kAmx.
bool is_amx_product(const Product& product, DType from);

// Immutable. The order of its sums does not depend on the number of threads. T is float or BFloat16.
template <typename T>
class AmxProduct {
 public:
  // y is float32, or bfloat16 where T is.
  AmxProduct(const Product& product, DType y, int threads);

  size_t scratch_bytes() const;
  // `scratch` has scratch_bytes(), aligned to 64. `bias`, or null, is n numbers that each row starts with; there is
  // none where the product accumulates.
  void run(const T* a, const T* b, const float* bias, void* y, void* scratch) const;

 private:
  class Run;

  int64_t rows_in_panels() const;  // of all items
  // As long as y, or 0 where it need not be kept before it is rounded.
  int64_t wide_elements() const;

  Product product_;
  int64_t items_ = 1, a_item_ = 0, y_item_ = 0;  // of the batch: their number, and distances in elements
  bool rounds_;                                  // y is bfloat16
  bool shares_a_;  // threads share a, and each has some columns of y; else they share b, and each has some rows
  int64_t depth_, shared_panels_, own_panels_;  // of blocks
  int threads_;
};

extern template class AmxProduct<float>;
extern template class AmxProduct<BFloat16>;

}  // namespace onnx_train::cpu
