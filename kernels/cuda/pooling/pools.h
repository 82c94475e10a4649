// Pools on CUDA devices: the geometry that their kernels read, and the functions that prepare them, by file.
#pragma once

#include "kernels/cuda/support/images.h"
#include "kernels/geometry/pools.h"

namespace onnx_train::cuda {

// The windows of a pool, and the traversal of its outputs or, for gradients, of its inputs. A plain value.
struct PoolPlan {
  WindowGeometry axes;
  int64_t in_size, out_size;  // elements of a plane of x and of y
  bool include_pad;

  explicit PoolPlan(const Pooling& pool)
      : axes(pool.geometry),
        in_size(in_spatial_size(axes)),
        out_size(out_spatial_size(axes)),
        include_pad(pool.include_pad) {}
};

// The elements of planes of these sizes: PlacedElement::image is the plane. The sizes must be above 0.
inline ImageIndexing planes_of(int64_t depth, int64_t height, int64_t width) {
  return {Divider(1), Divider(depth), Divider(height), Divider(width)};
}
inline ImageIndexing in_planes(const WindowGeometry& g) { return planes_of(g[0].in, g[1].in, g[2].in); }
inline ImageIndexing out_planes(const WindowGeometry& g) { return planes_of(g[0].out, g[1].out, g[2].out); }

Prepared prepare_max_pool(const NodeSpec& spec);  // maxima.cu
Prepared prepare_max_pool_grad(const NodeSpec& spec);
Prepared prepare_average_pool(const NodeSpec& spec);  // averages.cu
Prepared prepare_average_pool_grad(const NodeSpec& spec);
Prepared prepare_lp_pool(const NodeSpec& spec);
Prepared prepare_global_average(const NodeSpec& spec);  // global_pools.cu
Prepared prepare_global_max(const NodeSpec& spec);
Prepared prepare_max_unpool(const NodeSpec& spec);  // max_unpool.cu

}  // namespace onnx_train::cuda
