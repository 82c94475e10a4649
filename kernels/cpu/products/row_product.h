// Products of a few rows with a large matrix, as a language model computes for each token that it writes: b is read
// from memory once and in its order, which is all that such a product takes. float32. Pure functions; any thread.
#pragma once

#include "kernels/cpu/products/products.h"

namespace onnx_train::cpu {

// One product, not a batch, of at most kMostRows rows, whose b has contiguous rows or columns.
bool supports_row_product(const Product& product);
// Whether it is faster than oneDNN, which reads b in strips of columns.
bool is_row_product(const Product& product);

// The product of inputs 0 and 1 into output 0; `bias`: input 2 holds n numbers that are added to each row. The order of
// its sums does not depend on the number of threads.
Prepared prepare_row_product(const Product& product, bool bias);

}  // namespace onnx_train::cpu
