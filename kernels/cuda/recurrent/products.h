// Matrix products inside a recurrent kernel: y = a b, or y + a b. One thread at a time runs one.
#pragma once

#include <numeric>
#include <optional>

#include "kernels/cuda/products/cublas.h"
#include "kernels/cuda/support/launch.h"

namespace onnx_train::cuda {

class InnerProduct {
 public:
  // Operands and results have one type. Every address that run() gets is a multiple of `row` elements after an aligned
  // one.
  InnerProduct(const Product& product, ProductTypes types, int64_t row) {
    const int64_t results = product.m * product.n;
    if (results == 0) return;
    const auto bytes = static_cast<int64_t>(size_of(types.out));
    if (product.k > 0) {
      product_.emplace(product, types, ProductVector::kNone, row * bytes);
    } else if (!product.accumulate) {
      zeros_ = static_cast<size_t>(results * bytes);
    }
  }

  size_t workspace() const { return product_ ? product_->workspace() : 0; }  // bytes
  void run(const Launch& launch, const void* a, const void* b, void* y, void* workspace) const {
    if (product_) product_->run(launch, a, b, y, nullptr, workspace);
    set_bytes(launch, y, 0, zeros_);
  }

 private:
  std::optional<LibraryProduct> product_;  // absent if the sum is empty
  size_t zeros_ = 0;                       // bytes of y to set to zero in that case
};

}  // namespace onnx_train::cuda
