// GatherElements and ScatterElements: where the lines of the data are.
#pragma once

#include "kernels/cuda/support/indexing.h"
#include "kernels/geometry/indexing/indexing.h"

namespace onnx_train::cuda {

// The offset in the data of the line that a position of the indices belongs to.
inline Indexing<1> line_offsets(const ElementLines& lines) {
  std::vector<CopyAxis> axes = {{lines.length, 0, lines.index_stride}};
  for (const CopyAxis& axis : lines.lines) axes.push_back({axis.size, axis.to, axis.from});
  std::vector<IndexedAxis<1>> indexed;
  for (const CopyAxis& axis : merge_axes(axes)) indexed.push_back({axis.size, {axis.from}});
  return Indexing<1>(indexed);
}

}  // namespace onnx_train::cuda
