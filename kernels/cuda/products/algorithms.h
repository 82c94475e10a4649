// The algorithms of cuBLASLt for a product, as forms between which a node chooses. Functions run while a node is
// prepared; any thread.
#pragma once

#include "kernels/cuda/choices/fastest.h"
#include "kernels/cuda/products/cublas.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {

inline constexpr int kMostAlgorithms = 8;  // of the library, that are timed for a product

// Adds a form for each algorithm of the library; prepare(product) prepares the node for it.
template <typename Prepare>
void add_algorithms(const NodeSpec& spec, const Product& p, ProductVector vector, const std::string& name,
                    std::vector<Form>* forms, const Prepare& prepare) {
  int rank = 0;
  for (const LibraryProduct& product :
       LibraryProduct::find(p, types_of(spec), vector, has_choices() ? kMostAlgorithms : 1)) {
    forms->push_back({concat(name, "algorithm ", rank++), [=] { return std::optional<Prepared>(prepare(product)); }});
  }
}

}  // namespace onnx_train::cuda
