// What a Gemm (gemm.h) is inside: one implementation of its product. A Gemm owns it; one runs on one thread at a time.
#pragma once

#include <memory>

#include "kernels/cpu/products/gemm.h"

namespace onnx_train::cpu {

template <typename T>
class GemmState {
 public:
  explicit GemmState(const GemmShape& s) : shape(s) {}
  virtual ~GemmState() = default;

  // A state that another thread may run.
  virtual std::unique_ptr<GemmState> copy() const = 0;
  // The same product with another number of rows, which reads b as this one packs it; null if any state does.
  virtual std::unique_ptr<GemmState> with_rows(int64_t) const { return nullptr; }
  virtual size_t packed_bytes() const { return 0; }
  virtual size_t scratch_bytes() const { return 0; }
  virtual const T* pack(const T* b, void*) { return b; }
  virtual void run(const T* a, const T* b, Computed<T>* y, void* scratch, const Computed<T>* bias) = 0;

  const GemmShape shape;
};

}  // namespace onnx_train::cpu
