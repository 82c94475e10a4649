// A build without oneDNN: has_onednn() is false, so that nothing calls what refuses here.
#include <algorithm>

#include "kernels/cpu/convolution/convolutions.h"
#include "kernels/cpu/products/onednn.h"
#include "kernels/cpu/support/onednn.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

[[noreturn]] void refuse() { fail("this build has no oneDNN: it was made with ONNX_TRAIN_ONEDNN=OFF"); }

}  // namespace

bool has_onednn() { return false; }
std::string onednn_version() { return "no oneDNN"; }
Isa highest_of_onednn(Isa most) { return std::min(most, Isa::kAvx512); }
bool cap_onednn(Isa) { return true; }

bool has_gemm(const NodeSpec&, const Product&) { return false; }
Prepared prepare_onednn(const NodeSpec&, Product, bool, Implementation) { refuse(); }
Prepared prepare_onednn(const NodeSpec&, const Convolution&, const Forward&) { refuse(); }
Prepared prepare_onednn(const NodeSpec&, const Convolution&, const InputGradient&) { refuse(); }
Prepared prepare_onednn(const NodeSpec&, const Convolution&, const WeightGradient&) { refuse(); }

template <typename T>
std::unique_ptr<GemmState<T>> make_onednn_gemm(const GemmShape&) {
  refuse();
}
template std::unique_ptr<GemmState<float>> make_onednn_gemm(const GemmShape& shape);
template std::unique_ptr<GemmState<BFloat16>> make_onednn_gemm(const GemmShape& shape);

}  // namespace onnx_train::cpu
