// A batch of matrix products by cuBLASLt; the constructor makes all descriptors and chooses the algorithm. One thread
// at a time runs it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/support/pack.h"
#include "kernels/geometry/products.h"

namespace onnx_train::cuda {

// Whether cuBLASLt multiplies operands of type `in` into results of type `out`.
bool has_library_product(DType in, DType out);

// The element types of operands and results, and NodeSpec::tf32.
struct ProductTypes {
  DType in, out;
  bool tf32 = false;
};
inline ProductTypes types_of(const NodeSpec& spec) { return {spec.in_type(), spec.out_type(), spec.tf32()}; }

class LibraryProduct {
 public:
  // Sizes are above 0. The vector of the epilogue has the type of results; a bias belongs to y's contiguous axis. The
  // addresses that run() gets are multiples of `alignment` bytes. Throws Error if the library has no algorithm.
  LibraryProduct(const Product& product, ProductTypes types, Epilogue epilogue = Epilogue::kNone,
                 int64_t alignment = kVectorBytes);
  // Returns the product once for each algorithm of the library, at most `most`, by its estimate of their time. The
  // constructor takes the first. Empty if there is none: not all layouts support every epilogue.
  static std::vector<LibraryProduct> find(const Product& product, ProductTypes types, Epilogue epilogue, int most);
  static std::string version();  // of the library

  size_t workspace() const;  // bytes
  // Addresses of the first elements; `vector` is null without an epilogue. A product that accumulates adds to `c`,
  // which has the layout of y, or to y if it is null. `x` is the operand of GELU, if the product writes or reads it, in
  // the layout of y.
  void run(const Launch& launch, const void* a, const void* b, void* y, const void* vector, void* workspace,
           const void* c = nullptr, const void* x = nullptr) const;

 private:
  struct State;
  LibraryProduct(std::shared_ptr<State> state, size_t rank);
  std::shared_ptr<State> state_;
  size_t rank_ = 0;  // of the algorithm
};

}  // namespace onnx_train::cuda
