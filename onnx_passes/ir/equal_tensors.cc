#include "onnx_passes/ir/equal_tensors.h"

#include <cstring>

namespace onnx_train {
namespace {

bool have_same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

}  // namespace

bool are_same(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const bool both_packed = a.packed() && b.packed();
  const bool both_narrow = a.narrow() && b.narrow() && a.narrow()->dtype() == b.narrow()->dtype();
  return both_packed || both_narrow ? have_same_bytes(a.stored(), b.stored()) : have_same_bytes(a, b);
}

}  // namespace onnx_train
