#include "kernels/cpu/elementwise/broadcast.h"

#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// The operand's stride along each dimension of `out`; 0 where the operand is repeated.
std::vector<int64_t> strides_in(const Shape& operand, const Shape& out) {
  std::vector<int64_t> strides(out.size(), 0);
  if (operand.size() > out.size())
    fail("an operand ", to_string(operand), " has more dimensions than ", to_string(out));
  const size_t extra = out.size() - operand.size();
  int64_t stride = 1;
  for (size_t i = operand.size(); i-- > 0;) {
    if (operand[i] != 1 && operand[i] != out[extra + i])
      fail(to_string(operand), " does not broadcast to ", to_string(out));
    if (operand[i] != 1) strides[extra + i] = stride;
    stride *= operand[i];
  }
  return strides;
}

}  // namespace

Broadcast::Broadcast(const Shape& out, const std::vector<Shape>& operands) : size_(num_elements(out)) {
  std::vector<std::vector<int64_t>> strides;
  for (const Shape& operand : operands) strides.push_back(strides_in(operand, out));
  if (size_ == 0) return;
  for (size_t d = out.size(); d-- > 0;) {
    if (out[d] == 1) continue;
    bool merges = rank_ > 0;
    for (size_t k = 0; k < strides.size() && merges; ++k) {
      merges = strides[k][d] == strides_[rank_ - 1][k] * dims_[rank_ - 1];
    }
    if (merges) {
      dims_[rank_ - 1] *= out[d];
      continue;
    }
    if (rank_ == kMaxRank) fail("more than ", kMaxRank, " dimensions are broadcast in turns; reshape the operands");
    dims_[rank_] = out[d];
    for (size_t k = 0; k < strides.size(); ++k) strides_[rank_][k] = strides[k][d];
    ++rank_;
  }
}

}  // namespace onnx_train::cpu
