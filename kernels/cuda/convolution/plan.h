// The geometry of a convolution as its kernels read it. Plain values, made by the host.
#pragma once

#include "kernels/cuda/support/images.h"
#include "kernels/geometry/convolutions.h"
#include "kernels/geometry/windows.h"

namespace onnx_train::cuda {

struct ConvPlan {
  WindowGeometry axes;
  int64_t images, groups, ins, outs;  // channels in one group
  int64_t in_size, out_size, taps;    // elements of a plane of x, of y, and of a window
  Divider in_group, out_group;        // divide by ins and by outs
  Divider strides[3];
  ImageIndexing x, y, w;
  ImageIndexing windows;  // of y without channels

  // All tensors have elements.
  explicit ConvPlan(const Convolution& c)
      : axes(make_geometry(c.windows, c.x, c.y)),
        images(c.batch()),
        groups(c.group),
        ins(c.in_channels()),
        outs(c.out_channels()),
        in_size(in_spatial_size(axes)),
        out_size(out_spatial_size(axes)),
        taps(onnx_train::taps(axes)),
        in_group(ins),
        out_group(outs),
        strides{Divider(axes[0].stride), Divider(axes[1].stride), Divider(axes[2].stride)},
        x{Divider(groups * ins), Divider(axes[0].in), Divider(axes[1].in), Divider(axes[2].in)},
        y{Divider(groups * outs), Divider(axes[0].out), Divider(axes[1].out), Divider(axes[2].out)},
        w{Divider(ins), Divider(axes[0].kernel), Divider(axes[1].kernel), Divider(axes[2].kernel)},
        windows{Divider(1), y.depth, y.height, y.width} {}

  // The window of `axis` that reads position q at tap k, or -1.
  __device__ int64_t window(int axis, int64_t q, int64_t k) const {
    const WindowAxis& a = axes[axis];
    const int64_t way = q + a.begin - k * a.dilation;
    if (way < 0) return -1;
    const int64_t o = strides[axis].quotient(way);
    return o * a.stride == way && o < a.out ? o : -1;
  }
};

}  // namespace onnx_train::cuda
