// The operands of BlockAttention and BlockAttentionGrad with their descriptions in the device's memory, and the two
// preparations of our kernels (forward.cu, backward.cu), whose rows are in attention.cu. Called while a kernel is
// prepared.
#pragma once

#include <algorithm>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention/problem.h"
#include "kernels/cuda/support/device_table.h"
#include "kernels/geometry/attention.h"

namespace onnx_train::cuda {

// Whether rows of the node's widths have tiles that fit into the device's shared memory; the preparation of a node that
// is computed as `computed`, float or double.
bool has_forward_tiles(const NodeSpec& spec, DType computed);
bool has_backward_tiles(const NodeSpec& spec, DType computed);
Prepared prepare_forward_attention(const NodeSpec& spec, DType computed);
Prepared prepare_backward_attention(const NodeSpec& spec, DType computed);

// Bytes of shared memory that a block of the current device may ask for.
size_t most_shared_bytes();

// Calls f(tiles) with the first of the tiles whose rows have `width` elements or more, and which fit into the device's
// shared memory. Returns false if there are none.
template <typename T, typename... Tiles, typename F>
bool dispatch_tiles(const std::tuple<Tiles...>&, int64_t width, const F& f) {
  const size_t most = most_shared_bytes();
  return ((width <= Tiles::kWidth && Tiles::kElements * sizeof(T) <= most && (f(Tiles()), true)) || ...);
}

// Calls f(T{}, tiles) for a node that is computed as `computed`, with tiles of the list for doubles or of that for
// floats; of the list for tensor cores if the node may round floats to TF32. Returns false if there are none.
template <typename Doubles, typename Floats, typename OnTensorCores, typename F>
bool dispatch_tiles(const NodeSpec& spec, DType computed, const F& f) {
  const AttentionOperands a = attention_operands(spec);
  const int64_t width = std::max(a.q.width, a.v.width);
  if (computed == DType::kDouble)
    return dispatch_tiles<double>(Doubles(), width, [&](auto tiles) { f(double{}, tiles); });
  const auto on_float = [&](auto tiles) { f(float{}, tiles); };
  if (spec.tf32() && dispatch_tiles<float>(OnTensorCores(), width, on_float)) return true;
  return dispatch_tiles<float>(Floats(), width, on_float);
}

template <typename T>
SharedTable on_device(const std::vector<T>& table) {
  return std::make_shared<const DeviceTable>(table.data(), table.size() * sizeof(T));
}

// A tensor of a node.
struct PreparedMatrices {
  PreparedMatrices(const NodeSpec& spec, AttentionTensor tensor);

  template <typename T>
  Matrices<T> on(const Launch& launch) const {
    return {place.in(launch), starts->data<int64_t>(), stride, stored, in_fours};
  }

  NodePlace place;
  SharedTable starts;
  int64_t stride;
  DType stored;
  bool in_fours;
};

class PreparedAttention {
 public:
  // Tiles have `rows` queries and `columns` keys.
  PreparedAttention(const NodeSpec& spec, int64_t rows, int64_t columns);

  template <typename T>
  AttentionProblem<T> on(const Launch& launch) const {
    AttentionProblem<T> p{q_.on<T>(launch),
                          k_.on<T>(launch),
                          v_.on<T>(launch),
                          static_cast<int>(shape.heads()),
                          static_cast<int>(shape.q.rows),
                          static_cast<int>(shape.k.rows),
                          static_cast<int>(shape.q.width),
                          static_cast<int>(shape.v.width),
                          static_cast<T>(shape.scale),
                          shape.nan_safe,
                          static_cast<T>(shape.nan_safe ? shape.hidden : -INFINITY),
                          {},
                          keys_->data<KeyBlocks>()};
    if (planes_) {
      p.mask = {mask_.kind,    launch.inputs[mask_input_], planes_->data<int64_t>(), mask_.rows,
                mask_.columns, static_cast<T>(mask_.fill)};
    }
    return p;
  }

  AttentionOperands shape;
  std::vector<KeyBlocks> key_blocks;

 private:
  PreparedMatrices q_, k_, v_;
  MaskLayout mask_;
  int mask_input_;
  SharedTable planes_, keys_;
};

}  // namespace onnx_train::cuda
