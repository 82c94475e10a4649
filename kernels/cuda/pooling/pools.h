// Pools on CUDA devices: the geometry that their kernels read, and the functions that prepare them, by file.
#pragma once

#include "kernels/cuda/support/images.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/convolutions.h"
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

// The index map of planes, each of which is one channel of an image. With channels last, the elements of a plane are
// `step`, the number of channels, apart; with channels first, a plane counts as an image of one channel. All sizes are
// above 0.
struct PlaneIndexing {
  int64_t step;
  ImageIndexing axes;  // its channels are the innermost axis here

  PlaneIndexing(int64_t step_, int64_t depth, int64_t height, int64_t width)
      : step(step_), axes{Divider(depth), Divider(height), Divider(width), Divider(step_)} {}

  __device__ PlacedElement element(int64_t i) const {
    const PlacedElement found = axes.element(i);
    return {found.image, found.x, found.channel, found.z, found.y};
  }
  // The start of the element's plane in images of `size` elements per plane.
  __device__ int64_t start(const PlacedElement& e, int64_t size) const { return e.image * size * step + e.channel; }
};

// The number of channels of channels-last images, else 1.
inline int64_t plane_step(const NodeSpec& spec) { return is_channels_last(spec.node()) ? spec.out_shape().back() : 1; }

inline PlaneIndexing in_planes(const WindowGeometry& g, int64_t step) { return {step, g[0].in, g[1].in, g[2].in}; }
inline PlaneIndexing out_planes(const WindowGeometry& g, int64_t step) { return {step, g[0].out, g[1].out, g[2].out}; }

// The elements of planes, widened when read.
template <typename S>
struct PlaneElements {
  const S* data;
  int64_t step;
  __device__ Computed<S> operator[](int64_t i) const { return widened(data[i * step]); }
};

Prepared prepare_max_pool(const NodeSpec& spec);  // maxima.cu
Prepared prepare_max_pool_grad(const NodeSpec& spec);
Prepared prepare_average_pool(const NodeSpec& spec);  // averages.cu
Prepared prepare_average_pool_grad(const NodeSpec& spec);
Prepared prepare_lp_pool(const NodeSpec& spec);
Prepared prepare_global_average(const NodeSpec& spec);  // global_pools.cu
Prepared prepare_global_max(const NodeSpec& spec);
Prepared prepare_max_unpool(const NodeSpec& spec);  // max_unpool.cu
Prepared prepare_col2im(const NodeSpec& spec);      // col2im.cu

}  // namespace onnx_train::cuda
