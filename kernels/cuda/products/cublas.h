// A batch of matrix products by cuBLASLt; the constructor makes all descriptors and chooses the algorithm. One thread
// at a time runs it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/support/pack.h"
#include "kernels/geometry/products.h"
#include "onnx_passes/ir/float8.h"

namespace onnx_train::cuda {

// Whether cuBLASLt multiplies operands of type `in` into results of type `out`.
bool has_library_product(DType in, DType out);
// The same for operands of 8-bit floats, which have a scale each. A device needs compute capability 8.9. Two operands
// of E5M2 have no product.
bool has_8_bit_product(DType a, DType b, DType out);

// The element types of operands and results, and NodeSpec::tf32.
struct ProductTypes {
  DType in, out;
  bool tf32 = false;
  DType in_b = in;  // of the second operand, which differs from the first only in 8 bits
};
inline ProductTypes types_of(const NodeSpec& spec) {
  const DType in = spec.in_type();
  return {in, spec.out_type(), spec.tf32(), is_8_bit_float(in) ? spec.in_type(1) : in};
}

// The addresses of the scales of 8-bit operands, float32 in device memory, by which their elements are multiplied.
struct OperandScales {
  const void *a = nullptr, *b = nullptr;
};

class LibraryProduct {
 public:
  // Sizes are above 0. The vector of the epilogue has the type of results, except that a bias for 8-bit operands is
  // bfloat16; a bias belongs to y's contiguous axis. Matrices of 8 bits are contiguous along k, and their sizes are
  // multiples of 16. The addresses that run() gets are multiples of `alignment` bytes. Throws Error if the library has
  // no algorithm.
  LibraryProduct(const Product& product, ProductTypes types, ProductVector epilogue = ProductVector::kNone,
                 int64_t alignment = kVectorBytes);
  // Returns the product once for each algorithm of the library, at most `most`, by its estimate of their time. The
  // constructor takes the first. Empty if there is none: not all layouts support every epilogue.
  static std::vector<LibraryProduct> find(const Product& product, ProductTypes types, ProductVector epilogue, int most);
  static std::string version();  // of the library

  size_t workspace() const;  // bytes
  // Addresses of the first elements; `vector` is null without an epilogue. A product that accumulates adds to `c`,
  // which has the layout of y, or to y if it is null. `x` is the operand of GELU, if the product writes or reads it, in
  // the layout of y. 8-bit operands need their scales.
  void run(const Launch& launch, const void* a, const void* b, void* y, const void* vector, void* workspace,
           const void* c = nullptr, const void* x = nullptr, OperandScales scales = {}) const;

 private:
  struct State;
  LibraryProduct(std::shared_ptr<State> state, size_t rank);
  std::shared_ptr<State> state_;
  size_t rank_ = 0;  // of the algorithm
};

}  // namespace onnx_train::cuda
