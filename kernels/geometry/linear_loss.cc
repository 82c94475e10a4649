#include "kernels/geometry/linear_loss.h"

#include <algorithm>

namespace onnx_train {

LinearLossSpec::LinearLossSpec(const NodeSpec& spec)
    : positions(spec.in_size(kLabels)),
      width(spec.in_shape(kH).back()),
      rows(spec.node().attr("rows", 0)),
      transposed(spec.node().attr("transposed", 0) != 0),
      scale(spec.node().attr_tensor("scale").at(0)),
      cap(spec.node().attr_tensor("cap").at(0)),
      rounding(static_cast<DType>(spec.node().attr("rounding", 0))) {
  classes = spec.in_shape(kW)[transposed ? 0 : 1];
}

std::vector<int64_t> LinearLossSpec::chunks() const {
  constexpr int64_t kFew = 32;
  const int64_t least = positions < kLeastChunkedPositions ? 1 : 2;
  const int64_t count = std::max(least, (positions + kMostChunkRows - 1) / kMostChunkRows);
  const int64_t equal = std::max<int64_t>(1, (positions + count - 1) / count), of_chunk = rows > 0 ? rows : equal;
  const int64_t part = (of_chunk + 3) / 4;
  return part < kFew ? std::vector<int64_t>{of_chunk} : std::vector<int64_t>{of_chunk, part};
}

namespace {

// Rows of `columns` elements, or what they are the columns of.
Matrices spread_rows(int64_t columns, int64_t step, bool transposed = false) {
  Matrices m = row_major_matrices({}, 1, columns, transposed);
  (transposed ? m.column_stride : m.row_stride) = step;
  return m;
}

}  // namespace

Product LinearLossSpec::logits_product(int64_t n, int64_t step) const {
  return {.a = row_major_matrices({}, n, width),
          .b = row_major_matrices({}, width, classes, transposed),
          .y = spread_rows(classes, step),
          .m = n,
          .n = classes,
          .k = width};
}

Product LinearLossSpec::dh_product(int64_t n, int64_t step) const {
  return {.a = spread_rows(classes, step),
          .b = row_major_matrices({}, classes, width, !transposed),
          .y = row_major_matrices({}, n, width),
          .m = n,
          .n = width,
          .k = classes};
}

// dlogitsᵀ h, or hᵀ dlogits
Product LinearLossSpec::dw_product(int64_t n, int64_t step, bool accumulate) const {
  const Matrices h = row_major_matrices({}, n, width), h_columns = row_major_matrices({}, width, n, true);
  const int64_t of_rows = transposed ? classes : width, of_columns = transposed ? width : classes;
  return {.a = transposed ? spread_rows(classes, step, /*transposed=*/true) : h_columns,
          .b = transposed ? h : spread_rows(classes, step),
          .y = row_major_matrices({}, of_rows, of_columns),
          .m = of_rows,
          .n = of_columns,
          .k = n,
          .accumulate = accumulate};
}

int64_t chunk_rows_on_gpu(int64_t positions, int64_t width) {
  constexpr int64_t kLeast = 1024, kTile = 64;
  const int64_t count = positions / std::max(kLeast, width);
  if (count < 2) return 0;
  const int64_t equal = (positions + count - 1) / count;
  return (equal + kTile - 1) / kTile * kTile;
}

}  // namespace onnx_train
