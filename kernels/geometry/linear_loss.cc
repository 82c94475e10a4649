#include "kernels/geometry/linear_loss.h"

#include <algorithm>

namespace onnx_train {

LinearLossSpec::LinearLossSpec(const NodeSpec& spec)
    : positions(spec.in_size(2)),
      width(spec.in_shape(0).back()),
      transposed(spec.node().attr("transposed", 0) != 0),
      scale(spec.node().attr_tensor("scale").at(0)),
      cap(spec.node().attr_tensor("cap").at(0)),
      rounding(static_cast<DType>(spec.node().attr("rounding", 0))) {
  classes = spec.in_shape(1)[transposed ? 0 : 1];
}

std::vector<int64_t> LinearLossSpec::chunks() const {
  constexpr int64_t kFew = 32;
  const int64_t least = positions < kLeastChunkedPositions ? 1 : 2;
  const int64_t count = std::max(least, (positions + kMostChunkRows - 1) / kMostChunkRows);
  const int64_t rows = std::max<int64_t>(1, (positions + count - 1) / count), part = (rows + 3) / 4;
  return part < kFew ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, part};
}

}  // namespace onnx_train
