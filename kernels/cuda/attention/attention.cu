// The rows of our kernels for BlockAttention and BlockAttentionGrad (kernels/functions/attention.cc has their
// formulas).
#include <algorithm>

#include "kernels/cuda/attention/prepared_attention.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

using enum AttentionTensor;

// Returns `computed` and the 16-bit type of q, k, v or the first result, if one has such a type.
AttentionTypes types_of(const NodeSpec& spec, DType computed) {
  DType stored = spec.out_type();
  for (const AttentionTensor tensor : {kQ, kK, kV}) {
    const Value* const value = place_of(spec, tensor).of(spec.node());
    if (!is_half(stored) && value) stored = value->dtype();
  }
  return {computed, is_half(stored) && computed == DType::kFloat ? stored : computed};
}

bool supports_rows(const NodeSpec& spec, DType computed) {
  if (!is_float_or_double(computed) || !supports_attention(spec, types_of(spec, computed))) return false;
  const AttentionOperands a = attention_operands(spec);
  constexpr int64_t kMost = 0x7fffffff;  // of rows, and of blocks of at least 16 of them
  return std::max(a.q.rows, a.k.rows) <= kMost - 256 && a.heads() * (std::max(a.q.rows, a.k.rows) / 16 + 1) <= kMost;
}

}  // namespace

size_t most_shared_bytes() { return static_cast<size_t>(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)); }

PreparedMatrices::PreparedMatrices(const NodeSpec& spec, AttentionTensor tensor) : place(place_of(spec, tensor)) {
  const Heads heads = heads_of(spec, tensor);
  const auto is_four = [](int64_t n) { return n % 4 == 0; };
  starts = on_device(heads.starts);
  stride = heads.row_stride;
  stored = place.of(spec.node())->dtype();
  in_fours = is_four(stride) && is_four(heads.width) && std::all_of(heads.starts.begin(), heads.starts.end(), is_four);
}

PreparedAttention::PreparedAttention(const NodeSpec& spec, int64_t rows, int64_t columns)
    : shape(attention_operands(spec)),
      q_(spec, kQ),
      k_(spec, kK),
      v_(spec, kV),
      mask_(mask_of(spec, shape)),
      mask_input_(mask_input(spec)) {
  if (mask_.kind != MaskKind::kNone) planes_ = on_device(mask_.plane);
  key_blocks = onnx_train::key_blocks(mask_, visible_keys(mask_, contents_of_mask(spec), shape), shape, rows, columns);
  keys_ = on_device(key_blocks);
}

std::vector<Kernel> attention_kernels() {
  return {
      {"BlockAttention",
       [](const NodeSpec& spec) {
         return supports_rows(spec, spec.out_type(1)) && has_forward_tiles(spec, spec.out_type(1));
       },
       [](const NodeSpec& spec) { return prepare_forward_attention(spec, spec.out_type(1)); }, kDomain},
      {"BlockAttentionGrad",
       [](const NodeSpec& spec) {
         return supports_rows(spec, spec.in_type(5)) && has_backward_tiles(spec, spec.in_type(5));
       },
       [](const NodeSpec& spec) { return prepare_backward_attention(spec, spec.in_type(5)); }, kDomain},
  };
}

}  // namespace onnx_train::cuda
