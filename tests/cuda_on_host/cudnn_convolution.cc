// Convolutions and their gradients, as sums in float64.
#include "tests/cuda_on_host/cudnn_graphs.h"

namespace cudnn_on_host {
namespace {

// The attribute names of a convolution, which differ by direction, and the tensor that is computed: x, w or y.
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

  // Returns an operand, in the order of their names.
  HostTensor operand(int number) const { return tensors[number + (number >= result ? 1 : 0)]; }

  // Returns the result's elements as sums of products of the operands, in float64.
  std::vector<double> run(const std::vector<double>& first, const std::vector<double>& second) const {
    std::vector<double> values[3];
    int number = 0;
    for (int i = 0; i < 3; ++i) {
      if (i == result) {
        values[i].assign(static_cast<size_t>(tensors[i].elements()), 0);
      } else {
        values[i] = number++ == 0 ? first : second;
      }
    }
    double *const x = values[0].data(), *const w = values[1].data(), *const y = values[2].data();
    const int64_t step = stride[2];
    switch (result) {
      case 0:
        for_each_row([&](int64_t i, int64_t j, int64_t k, int64_t n) {
          for (int64_t m = 0; m < n; ++m) x[i + m * step] += y[k + m] * w[j];
        });
        break;
      case 1:
        for_each_row([&](int64_t i, int64_t j, int64_t k, int64_t n) {
          double sum = 0;
          for (int64_t m = 0; m < n; ++m) sum += y[k + m] * x[i + m * step];
          w[j] += sum;
        });
        break;
      default:
        for_each_row([&](int64_t i, int64_t j, int64_t k, int64_t n) {
          for (int64_t m = 0; m < n; ++m) y[k + m] += x[i + m * step] * w[j];
        });
    }
    return values[result];
  }

 private:
  // Calls f(i, j, k, n) for each row of n products, which involve x[i], x[i + stride], ..., the weight w[j], and y[k],
  // y[k + 1], ...: two of the three determine the third.
  template <typename F>
  void for_each_row(const F& f) const {
    const auto &xs = tensors[0].sizes, &ws = tensors[1].sizes, &ys = tensors[2].sizes;
    const int64_t ins = ws[1], outs = ws[0] / (xs[1] / ins);
    for (int64_t n = 0; n < xs[0]; ++n) {
      for (int64_t o = 0; o < ws[0]; ++o) {
        for (int64_t c = 0; c < ins; ++c) {
          for_each_row_of_planes(n * xs[1] + o / outs * ins + c, o * ins + c, n * ys[1] + o, f);
        }
      }
    }
  }

  template <typename F>
  void for_each_row_of_planes(int64_t x_plane, int64_t w_plane, int64_t y_plane, const F& f) const {
    const auto &xs = tensors[0].sizes, &ws = tensors[1].sizes, &ys = tensors[2].sizes;
    int64_t j = w_plane * ws[2] * ws[3] * ws[4];
    for (int64_t kz = 0; kz < ws[2]; ++kz) {
      for (int64_t ky = 0; ky < ws[3]; ++ky) {
        for (int64_t kx = 0; kx < ws[4]; ++kx, ++j) {
          const Windows z = inside(0, kz), y = inside(1, ky), x = inside(2, kx);
          for (int64_t oz = z.begin; oz < z.end; ++oz) {
            for (int64_t oy = y.begin; oy < y.end && x.begin < x.end; ++oy) {
              const int64_t row = (x_plane * xs[2] + oz * stride[0] + z.offset) * xs[3] + oy * stride[1] + y.offset;
              f(row * xs[4] + x.begin * stride[2] + x.offset, j,
                ((y_plane * ys[2] + oz) * ys[3] + oy) * ys[4] + x.begin, x.end - x.begin);
            }
          }
        }
      }
    }
  }

  // The range of windows whose tap is inside the image, at position window * stride + offset.
  struct Windows {
    int64_t begin, end, offset;
  };
  Windows inside(size_t axis, int64_t tap) const {
    const int64_t offset = tap * dilation[axis] - begin[axis], size = tensors[0].sizes[axis + 2];
    const int64_t first = offset < 0 ? (-offset + stride[axis] - 1) / stride[axis] : 0;
    const int64_t end = offset < size ? (size - 1 - offset) / stride[axis] + 1 : 0;
    return {first, std::min(end, tensors[2].sizes[axis + 2]), offset};
  }
};

}  // namespace

std::optional<Convolution> convolution_of(const Given& operation) {
  for (const Names& names : kNames) {
    if (!operation.parts.count(names.windows)) continue;
    const HostConvolution convolution(operation, names);
    return Convolution{{convolution.operand(0), convolution.operand(1)},
                       convolution.tensors[convolution.result],
                       [convolution](const auto& first, const auto& second) { return convolution.run(first, second); }};
  }
  return std::nullopt;
}

}  // namespace cudnn_on_host
