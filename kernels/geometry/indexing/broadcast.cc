#include "kernels/geometry/indexing/broadcast.h"

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// The operand's stride along each dimension of `out`; 0 along repeated ones.
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

std::vector<InPlace> in_place_of_equal_inputs(const NodeSpec& spec, int inputs) {
  std::vector<InPlace> in_place;
  for (int i = 0; i < inputs; ++i) {
    if (!spec.has_input(i) || spec.in_size(i) != spec.out_size()) continue;
    if (size_of(spec.in_type(i)) == size_of(spec.out_type())) in_place.push_back({0, i});
  }
  return in_place;
}

std::vector<InPlace> in_place_of_first_two(const NodeSpec& spec) {
  const auto& operands = spec.node().inputs();
  std::vector<InPlace> in_place = in_place_of_equal_inputs(spec, 2);
  std::erase_if(in_place, [&](const InPlace& pair) {
    const Value* operand = operands[static_cast<size_t>(pair.input)];
    return std::find(operands.begin() + 2, operands.end(), operand) != operands.end();
  });
  return in_place;
}

}  // namespace onnx_train
