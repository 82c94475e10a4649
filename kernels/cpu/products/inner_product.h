// A product of float matrices inside another kernel, in the way in which a node of its own would compute it
// (products.h): for products that are large enough for that to matter. gemm.h has the one for small ones.
//
// The kernel that prepares it owns it; one thread outside a parallel region runs it. The order of its sums does not
// depend on the number of threads.
#pragma once

#include "kernels/cpu/products/products.h"

namespace onnx_train::cpu {

class InnerProduct {
 public:
  struct Types {
    DType operands, result;  // as of a MatMul: one type, or bfloat16 operands and a float32 result
  };

  // Of the node `spec`, which names it in errors. The product has no batch. With `bias`, run() adds n numbers to each
  // row; float64 has none. Throws Error where the product is refused.
  InnerProduct(const NodeSpec& spec, const Product& product, const Types& types, bool bias = false);

  size_t scratch_bytes() const { return prepared_.workspace; }

  // y = a b. `launch` is that of the kernel; `scratch` has scratch_bytes() and the alignment of a workspace.
  struct Operands {
    const void *a, *b, *bias;
    void *y, *scratch;
  };
  void run(const Launch& launch, const Operands& operands) const;

 private:
  Prepared prepared_;
};

}  // namespace onnx_train::cpu
