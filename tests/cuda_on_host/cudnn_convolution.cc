// Convolutions and their gradients, as sums in float64.
#include "tests/cuda_on_host/cudnn_graphs.h"

namespace cudnn_on_host {
namespace {

// The names of a convolution's attributes, which differ by direction, and the one that is computed: x, w or y.
struct Names {
  cudnnBackendAttributeName_t tensors[3], windows;
  int result;
};
constexpr Names kNames[] = {
    {{CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     2},
    {{CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     0},
    {{CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     1}};

struct HostConvolution {
  HostTensor tensors[3];
  int result;
  std::vector<int64_t> begin, stride, dilation;

  HostConvolution(const Given& operation, const Names& names)
      : tensors{HostTensor(operation.part(names.tensors[0])), HostTensor(operation.part(names.tensors[1])),
                HostTensor(operation.part(names.tensors[2]))},
        result(names.result) {
    const Given& windows = operation.part(names.windows);
    begin = windows.numbers.at(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    stride = windows.numbers.at(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    dilation = windows.numbers.at(CUDNN_ATTR_CONVOLUTION_DILATIONS);
    begin.insert(begin.begin(), 3 - begin.size(), 0);
    stride.insert(stride.begin(), 3 - stride.size(), 1);
    dilation.insert(dilation.begin(), 3 - dilation.size(), 1);
  }

  // The result's elements are sums of the products of the other two's, in float64.
  void run() const {
    std::vector<double> values[3];
    for (int i = 0; i < 3; ++i) {
      if (i == result) {
        values[i].assign(static_cast<size_t>(tensors[i].elements()), 0);
      } else {
        values[i] = tensors[i].load();
      }
    }
    double *const x = values[0].data(), *const w = values[1].data(), *const y = values[2].data();
    switch (result) {
      case 0: for_each_product([&](int64_t i, int64_t j, int64_t k) { x[i] += y[k] * w[j]; }); break;
      case 1: for_each_product([&](int64_t i, int64_t j, int64_t k) { w[j] += y[k] * x[i]; }); break;
      default: for_each_product([&](int64_t i, int64_t j, int64_t k) { y[k] += x[i] * w[j]; });
    }
    tensors[result].store(values[result]);
  }

 private:
  // Calls f with the positions in x, w and y of each product.
  template <typename F>
  void for_each_product(const F& f) const {
    const auto &xs = tensors[0].sizes, &ws = tensors[1].sizes, &ys = tensors[2].sizes;
    const int64_t ins = ws[1], outs = ws[0] / (xs[1] / ins);
    for (int64_t n = 0; n < xs[0]; ++n) {
      for (int64_t o = 0; o < ws[0]; ++o) {
        for (int64_t c = 0; c < ins; ++c) {
          const int64_t x_plane = n * xs[1] + o / outs * ins + c, w_plane = o * ins + c, y_plane = n * ys[1] + o;
          for_each_place([&](int64_t in, int64_t tap, int64_t out) {
            f(x_plane * xs[2] * xs[3] * xs[4] + in, w_plane * ws[2] * ws[3] * ws[4] + tap,
              y_plane * ys[2] * ys[3] * ys[4] + out);
          });
        }
      }
    }
  }

  // Calls f(position, tap, window) for the windows of one channel.
  template <typename F>
  void for_each_place(const F& f) const {
    const auto &xs = tensors[0].sizes, &ws = tensors[1].sizes, &ys = tensors[2].sizes;
    const auto at = [&](size_t axis, int64_t window, int64_t tap) {
      return window * stride[axis] + tap * dilation[axis] - begin[axis];
    };
    const auto inside = [&](size_t axis, int64_t position) { return position >= 0 && position < xs[axis + 2]; };
    int64_t tap = 0;
    for (int64_t kz = 0; kz < ws[2]; ++kz) {
      for (int64_t ky = 0; ky < ws[3]; ++ky) {
        for (int64_t kx = 0; kx < ws[4]; ++kx, ++tap) {
          for (int64_t oz = 0; oz < ys[2]; ++oz) {
            const int64_t z = at(0, oz, kz);
            for (int64_t oy = 0; inside(0, z) && oy < ys[3]; ++oy) {
              const int64_t y = at(1, oy, ky);
              for (int64_t ox = 0; inside(1, y) && ox < ys[4]; ++ox) {
                const int64_t x = at(2, ox, kx);
                if (inside(2, x)) f((z * xs[3] + y) * xs[4] + x, tap, (oz * ys[3] + oy) * ys[4] + ox);
              }
            }
          }
        }
      }
    }
  }
};

}  // namespace

std::function<void()> convolution_work(const Given& graph, const Addresses& addresses) {
  const Given& operation = graph.part(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  for (const Names& names : kNames) {
    if (!operation.parts.count(names.windows)) continue;
    HostConvolution convolution(operation, names);
    for (HostTensor& tensor : convolution.tensors) tensor.data = addresses.at(tensor.id);
    return [convolution] { convolution.run(); };
  }
  return nullptr;
}

}  // namespace cudnn_on_host
