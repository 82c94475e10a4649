// A batch of matrix products by cuBLASLt; the constructor makes all descriptors and chooses the algorithm. One thread
// at a time runs it.
#pragma once

#include <memory>
#include <optional>
#include <string>

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
  // Returns nothing instead of throwing if the library has no algorithm: not all layouts support every epilogue. It
  // ranks its algorithms by an estimate of their time; `rank` 0 is the one that the constructor takes.
  static std::optional<LibraryProduct> find(const Product& product, ProductTypes types, Epilogue epilogue,
                                            int rank = 0);
  static std::string version();  // of the library
  ~LibraryProduct();
  LibraryProduct(LibraryProduct&&) noexcept;

  size_t workspace() const;  // bytes
  // Addresses of the first elements; `vector` is null without an epilogue. A product that accumulates adds to `c`,
  // which has the layout of y, or to y if it is null.
  void run(const Launch& launch, const void* a, const void* b, void* y, const void* vector, void* workspace,
           const void* c = nullptr) const;

 private:
  struct State;
  explicit LibraryProduct(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace onnx_train::cuda
