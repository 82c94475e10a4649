#include "kernels/geometry/regions.h"

#include <algorithm>

namespace onnx_train {

RegionPooling find_region_pooling(const NodeSpec& spec, const Shape& x, const Shape& y) {
  const Node& node = spec.node();
  RegionPooling pool;
  pool.regions = y[0];
  pool.images = x[0];
  pool.channels = x[1];
  std::copy_n(x.begin() + 2, 2, pool.sizes);
  std::copy_n(y.begin() + 2, 2, pool.bins);
  pool.scale = node.attr("spatial_scale", 1.0f);
  pool.sampling = node.attr("sampling_ratio", 0);
  pool.whole_pixels = node.op().starts_with("MaxRoiPool");
  pool.half_pixel = node.domain().empty()
                        ? std::string(node.attr("coordinate_transformation_mode", "half_pixel")) == "half_pixel"
                        : node.attr("half_pixel", 1) != 0;
  return pool;
}

}  // namespace onnx_train
