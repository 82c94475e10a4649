// A batch of matrix products by cuBLASLt, with all descriptors and the algorithm chosen when it is made. One thread at
// a time runs it.
#pragma once

#include <memory>

#include "kernels/cuda/support/pack.h"
#include "kernels/geometry/products.h"

namespace onnx_train::cuda {

// Whether cuBLASLt multiplies operands of type `in` into results of type `out`.
bool has_library_product(DType in, DType out);

class LibraryProduct {
 public:
  // Sizes are above 0. With `bias`, run() adds a row of n numbers of type `out` to each row. The addresses that run()
  // gets are multiples of `alignment` bytes. Throws Error when the library has no algorithm.
  LibraryProduct(const Product& product, DType in, DType out, bool bias, int64_t alignment = kVectorBytes);
  ~LibraryProduct();
  LibraryProduct(LibraryProduct&&) noexcept;

  size_t workspace() const;  // bytes
  // Addresses of the first elements; `bias` is null without one.
  void run(const Launch& launch, const void* a, const void* b, void* y, const void* bias, void* workspace) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onnx_train::cuda
