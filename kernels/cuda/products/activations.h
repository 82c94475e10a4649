// Products with an activation, or its gradient, as epilogue: what a node computes, and the forms of cuBLASLt. Functions
// run while kernels are chosen and prepared; any thread.
#pragma once

#include <optional>
#include <vector>

#include "kernels/cuda/choices/fastest.h"
#include "kernels/geometry/products.h"

namespace onnx_train::cuda {

enum class Activation { kRelu, kGelu, kGeluTanh };

// y = f(x), where x = a b + bias, or y = f'(x) (a b); f' of Relu reads its result in the place of x. All have one
// 16-bit type.
struct ActivatedProduct {
  Product product;
  Activation activation;
  bool is_gradient;
  int bias, at, kept;  // the inputs bias and x, and the output x; -1 for none
};

// Returns nothing if the node is no such product, or no row is whole vectors. Relu itself is not: cuBLASLt has it.
std::optional<ActivatedProduct> activated_product(const NodeSpec& spec, Product (*product_of)(const NodeSpec&));

// Adds the product followed by a kernel of ours, which rounds x, or the gradient that is multiplied by f', to 16 bits;
// and for GELU with tanh, the only form of it that the library has, its epilogue.
void add_library_forms(const NodeSpec& spec, const ActivatedProduct& p, std::vector<Form>* forms);

}  // namespace onnx_train::cuda
