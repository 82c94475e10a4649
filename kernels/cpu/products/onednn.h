// The products that oneDNN computes for the CPU's kernels, of float32 and bfloat16 matrices; its convolutions are
// declared with the others (convolution/convolutions.h). A build with ONNX_TRAIN_ONEDNN=ON has
// kernels/cpu/onednn/primitives/, one without it kernels/cpu/onednn/none/, which refuses. Where has_onednn() is false
// (support/onednn.h), kernels use BLAS and call nothing here.
//
// Functions throw Error that names the node, or the product, when oneDNN refuses it. Any thread may call them.
#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/products/gemm_state.h"
#include "kernels/cpu/support/onednn.h"
#include "kernels/geometry/products.h"

namespace onnx_train::cpu {

// What of oneDNN computes a product. Its first implementation for a product is mostly the one by micro-kernels ("brg"),
// which reads a b of many or long rows from memory for every few rows of a. Its general one ("gemm") copies blocks of
// both operands: for 1024 x 3072 x 768 it takes four fifths of the time, for K = 30,522 two thirds.
enum class Implementation { kFirst, kPacked, kGemm };  // kPacked: the first one's, with b in the layout that it prefers

// Whether oneDNN has its general implementation, and another one first.
bool has_gemm(const NodeSpec& spec, const Product& p);

Prepared prepare_onednn(const NodeSpec& spec, Product p, bool bias, Implementation implementation);

// T is float or BFloat16.
template <typename T>
std::unique_ptr<GemmState<T>> make_onednn_gemm(const GemmShape& shape);
extern template std::unique_ptr<GemmState<float>> make_onednn_gemm(const GemmShape& shape);
extern template std::unique_ptr<GemmState<BFloat16>> make_onednn_gemm(const GemmShape& shape);

}  // namespace onnx_train::cpu
