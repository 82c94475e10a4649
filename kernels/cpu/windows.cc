#include "kernels/cpu/windows.h"

namespace onnx_train::cpu {

Grid make_grid(const Windows& windows, const Shape& in, const Shape& out) {
  Grid grid;
  const size_t rank = windows.kernel.size(), skipped = grid.size() - rank;
  for (size_t i = 0; i < rank; ++i) {
    grid[skipped + i] = {in[i + 2],          out[i + 2],           windows.kernel[i],
                         windows.strides[i], windows.dilations[i], windows.pads_begin[i],
                         windows.pads_end[i]};
  }
  return grid;
}

}  // namespace onnx_train::cpu
