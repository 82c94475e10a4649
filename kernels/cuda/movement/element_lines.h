// The index map from positions of indices to lines of the data, for GatherElements and ScatterElements.
#pragma once

#include "kernels/cuda/support/indexing.h"
#include "kernels/geometry/indexing/indexing.h"

namespace onnx_train::cuda {

// Maps a position of the indices to the offset of its line in the data.
inline Indexing<1> line_offsets(const ElementLines& lines) {
  std::vector<CopyAxis> axes = {{lines.length, 0, lines.index_stride}};
  for (const CopyAxis& axis : lines.lines) axes.push_back({axis.size, axis.to, axis.from});
  std::vector<IndexedAxis<1>> indexed;
  for (const CopyAxis& axis : merge_axes(axes)) indexed.push_back({axis.size, {axis.from}});
  return Indexing<1>(indexed);
}

}  // namespace onnx_train::cuda
