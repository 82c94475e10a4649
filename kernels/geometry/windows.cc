#include "kernels/geometry/windows.h"

namespace onnx_train {

WindowGeometry make_geometry(const Windows& windows, const Shape& in, const Shape& out) {
  WindowGeometry geometry;
  const size_t rank = windows.kernel.size(), skipped = geometry.size() - rank;
  for (size_t i = 0; i < rank; ++i) {
    geometry[skipped + i] = {in[i + 2],          out[i + 2],           windows.kernel[i],
                             windows.strides[i], windows.dilations[i], windows.pads_begin[i],
                             windows.pads_end[i]};
  }
  return geometry;
}

}  // namespace onnx_train
