// MaxPool, AveragePool, their gradients (functions/convolutions.cc), LpPool and global pools, channels first. The
// kernels work plane by plane; a plane is one channel of one image.
#include "kernels/cpu/pooling/pooling.h"

#include <limits>
#include <vector>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/support/stored.h"
#include "kernels/dispatch.h"
#include "kernels/math/pools.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// ---- Maximum

template <typename T>
void max_pool(const Pool& pool, const T* x, T* y, int64_t* index, bool columns) {
  const int64_t in = in_spatial_size(pool.geometry), out = out_spatial_size(pool.geometry);
  parallel_for(pool.planes, pool.grain(), [&](int64_t plane, int64_t end) {
    for (; plane < end; ++plane) {
      const T* from = x + plane * in;
      for_each_window(pool, [&](int64_t window, const Span& d, const Span& h, const Span& w, int64_t) {
        const int64_t best = find_largest(pool.geometry, from, d, h, w);
        y[plane * out + window] = best < 0 ? std::numeric_limits<T>::lowest() : from[best];
        if (!index) return;
        const int64_t element = std::max<int64_t>(best, 0);
        index[plane * out + window] = plane * in + (columns ? by_columns(pool.geometry, element) : element);
      });
    }
  });
}

template <typename T>
void max_pool_grad(const Pool& pool, const T* dy, const T* x, T* dx) {
  const int64_t in = in_spatial_size(pool.geometry), out = out_spatial_size(pool.geometry);
  parallel_for(pool.planes, pool.grain(), [&](int64_t plane, int64_t end) {
    std::fill_n(dx + plane * in, (end - plane) * in, T(0));
    for (; plane < end; ++plane) {
      for_each_window(pool, [&](int64_t window, const Span& d, const Span& h, const Span& w, int64_t) {
        const int64_t best = find_largest(pool.geometry, x + plane * in, d, h, w);
        if (best >= 0) dx[plane * in + best] += dy[plane * out + window];
      });
    }
  });
}

// ---- Average

template <typename T>
void average_pool(const Pool& pool, const T* x, T* y) {
  const int64_t in = in_spatial_size(pool.geometry), out = out_spatial_size(pool.geometry);
  parallel_for(pool.planes, pool.grain(), [&](int64_t plane, int64_t end) {
    for (; plane < end; ++plane) {
      const T* from = x + plane * in;
      for_each_window(pool, [&](int64_t window, const Span& d, const Span& h, const Span& w, int64_t count) {
        T sum = 0;
        for_each_element(pool.geometry, d, h, w, [&](int64_t i) { sum += from[i]; });
        y[plane * out + window] = math::average(sum, count);
      });
    }
  });
}

template <typename T>
void average_pool_grad(const Pool& pool, const T* dy, T* dx) {
  const int64_t in = in_spatial_size(pool.geometry), out = out_spatial_size(pool.geometry);
  parallel_for(pool.planes, pool.grain(), [&](int64_t plane, int64_t end) {
    std::fill_n(dx + plane * in, (end - plane) * in, T(0));
    for (; plane < end; ++plane) {
      T* to = dx + plane * in;
      for_each_window(pool, [&](int64_t window, const Span& d, const Span& h, const Span& w, int64_t count) {
        const T share = math::average(dy[plane * out + window], count);
        for_each_element(pool.geometry, d, h, w, [&](int64_t i) { to[i] += share; });
      });
    }
  });
}

// ---- p-norm

template <typename T>
void lp_pool(const Pool& pool, T p, const T* x, T* y) {
  const math::PNorm<T> norm{p};
  const int64_t in = in_spatial_size(pool.geometry), out = out_spatial_size(pool.geometry);
  parallel_for(pool.planes, pool.grain(), [&](int64_t plane, int64_t end) {
    for (; plane < end; ++plane) {
      const T* from = x + plane * in;
      for_each_window(pool, [&](int64_t window, const Span& d, const Span& h, const Span& w, int64_t) {
        T sum = 0;
        for_each_element(pool.geometry, d, h, w, [&](int64_t i) { sum = norm.add(sum, from[i]); });
        y[plane * out + window] = norm.finish(sum);
      });
    }
  });
}

// ---- Rows

template <typename T>
Prepared prepare_max_pool(const NodeSpec& spec) {
  const bool indices = spec.has_output(1), columns = spec.node().attr("storage_order", 0) != 0;
  return {[pool = make_pool(spec, spec.in_shape(), spec.out_shape()), indices, columns](const Launch& launch) {
            max_pool(pool, launch.in<T>(0), launch.out<T>(), indices ? launch.out<int64_t>(1) : nullptr, columns);
          },
          0,
          {}};
}

Prepared prepare_max_pool_grad(const NodeSpec& spec) {
  if (!spec.one_type(2) || spec.out_shape() != spec.in_shape(1))
    fail(spec.node().label(), ": dx must be as large as x");
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {[pool = make_pool(spec, spec.in_shape(1), spec.in_shape(0))](const Launch& launch) {
              max_pool_grad(pool, launch.in<T>(0), launch.in<T>(1), launch.out<T>());
            },
            0,
            {}};
  });
}

Prepared prepare_average_pool(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {[pool = make_pool(spec, spec.in_shape(), spec.out_shape())](const Launch& launch) {
              average_pool(pool, launch.in<T>(0), launch.out<T>());
            },
            0,
            {}};
  });
}

Prepared prepare_average_pool_grad(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {[pool = make_pool(spec, spec.out_shape(), spec.in_shape(0))](const Launch& launch) {
              average_pool_grad(pool, launch.in<T>(0), launch.out<T>());
            },
            0,
            {}};
  });
}

Prepared prepare_lp_pool(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const T p = static_cast<T>(spec.node().attr("p", 2));
    return {[p, pool = make_pool(spec, spec.in_shape(), spec.out_shape())](const Launch& launch) {
              lp_pool(pool, p, launch.in<T>(0), launch.out<T>());
            },
            0,
            {}};
  });
}

// Calls f(elements of the plane, their number) for each plane and stores the result in y[plane].
template <typename T, typename F>
Prepared prepare_global(const NodeSpec& spec, F f) {
  const int64_t planes = spec.out_size(), spatial_size = planes == 0 ? 0 : spec.in_size() / planes;
  return {[=](const Launch& launch) {
            const T* x = launch.in<T>(0);
            T* y = launch.out<T>();
            parallel_for(planes, std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, spatial_size)),
                         [=](int64_t i, int64_t end) {
                           for (; i < end; ++i) y[i] = f(x + i * spatial_size, spatial_size);
                         });
          },
          0,
          {}};
}

template <typename T>
T mean_of(const T* x, int64_t spatial_size) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < spatial_size; ++i) sum += x[i];
  return sum / static_cast<T>(spatial_size);
}

template <typename T>
T largest_of(const T* x, int64_t spatial_size) {
  T largest = std::numeric_limits<T>::lowest();
  for (int64_t i = 0; i < spatial_size; ++i) largest = x[i] > largest || x[i] != x[i] ? x[i] : largest;
  return largest;
}

Prepared prepare_global_average(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&](auto zero) {
    using T = decltype(zero);
    return prepare_global<T>(spec, mean_of<T>);
  });
}

Prepared prepare_global_max(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&](auto zero) {
    using T = decltype(zero);
    return prepare_global<T>(spec, largest_of<T>);
  });
}

// ---- bfloat16 images

// Runs a pool on bfloat16 planes: converts planes of the first `images` inputs to float32, calls f(pool of one plane,
// planes, result plane), and rounds the result if it is stored as bfloat16.
template <typename F>
Prepared prepare_narrow(const NodeSpec& spec, Pool pool, int images, const F& f) {
  const int64_t planes = pool.planes, result = planes == 0 ? 0 : spec.out_size() / planes;
  int64_t spatial_size[2] = {0, 0}, all = result;
  for (int i = 0; i < images && planes > 0; ++i) all += spatial_size[i] = spec.in_size(i) / planes;
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, all));
  const int64_t shares = std::clamp<int64_t>(planes / grain, 1, spec.threads());
  pool.planes = 1;
  const bool narrows = spec.out_type() == DType::kBFloat16;
  const auto run_plane = [=](const Launch& launch, int64_t plane, float* memory) {
    const float* given[2] = {memory, memory + spatial_size[0]};
    float* made = memory + spatial_size[0] + spatial_size[1];
    vectorized([&] { convert_row(launch.in<BFloat16>(0) + plane * spatial_size[0], spatial_size[0], memory); });
    if (images > 1)
      vectorized([&] {
        convert_row(launch.in<BFloat16>(1) + plane * spatial_size[1], spatial_size[1], memory + spatial_size[0]);
      });
    f(pool, given, made);
    if (narrows) return vectorized([&] { convert_row(made, result, launch.out<BFloat16>() + plane * result); });
    vectorized([&] { convert_row(made, result, launch.out<float>() + plane * result); });
  };
  return {[=](const Launch& launch) {
            parallel_for(shares, 1, [&](int64_t share, int64_t end) {
              for (; share < end; ++share) {
                for (int64_t plane = planes * share / shares; plane < planes * (share + 1) / shares; ++plane) {
                  run_plane(launch, plane, launch.scratch<float>() + share * all);
                }
              }
            });
          },
          static_cast<size_t>(shares * all) * sizeof(float)};
}

Prepared prepare_narrow_max_pool(const NodeSpec& spec) {
  return prepare_narrow(
      spec, make_pool(spec, spec.in_shape(), spec.out_shape()), 1,
      [](const Pool& pool, const float* const* in, float* y) { max_pool(pool, in[0], y, nullptr, false); });
}

Prepared prepare_narrow_max_pool_grad(const NodeSpec& spec) {
  return prepare_narrow(
      spec, make_pool(spec, spec.in_shape(1), spec.in_shape(0)), 2,
      [](const Pool& pool, const float* const* in, float* dx) { max_pool_grad(pool, in[0], in[1], dx); });
}

Prepared prepare_narrow_average_pool(const NodeSpec& spec) {
  return prepare_narrow(spec, make_pool(spec, spec.in_shape(), spec.out_shape()), 1,
                        [](const Pool& pool, const float* const* in, float* y) { average_pool(pool, in[0], y); });
}

Prepared prepare_narrow_average_pool_grad(const NodeSpec& spec) {
  return prepare_narrow(
      spec, make_pool(spec, spec.out_shape(), spec.in_shape(0)), 1,
      [](const Pool& pool, const float* const* in, float* dx) { average_pool_grad(pool, in[0], dx); });
}

Prepared prepare_narrow_global(const NodeSpec& spec, float (*f)(const float*, int64_t)) {
  Pool pool;
  pool.planes = spec.out_size();
  const int64_t spatial_size = pool.planes == 0 ? 0 : spec.in_size() / pool.planes;
  return prepare_narrow(spec, pool, 1,
                        [=](const Pool&, const float* const* in, float* y) { *y = f(in[0], spatial_size); });
}

// Whether the images are bfloat16 and the one result is bfloat16 or float32.
bool supports_narrow(const NodeSpec& spec, int images) {
  for (int i = 0; i < images; ++i) {
    if (spec.in_type(i) != DType::kBFloat16) return false;
  }
  const bool stores = spec.out_type() == DType::kBFloat16 || spec.out_type() == DType::kFloat;
  return stores && has_spatial_axes(spec.in_shape()) && (spec.num_outputs() == 1 || !spec.has_output(1));
}

bool supports_pool(const NodeSpec& spec) {
  return is_float_or_double(spec.in_type()) && has_spatial_axes(spec.in_shape()) && spec.one_type(1);
}

bool supports_max_pool_grad(const NodeSpec& spec) { return supports_pool(spec) && spec.one_type(2); }

template <DType dtype>
bool supports_max_pool(const NodeSpec& spec) {
  return spec.in_type() == dtype && has_spatial_axes(spec.in_shape()) && spec.one_type(1);
}

}  // namespace

Pool make_pool(const NodeSpec& spec, const Shape& x, const Shape& y) {
  Pool pool;
  static_cast<Pooling&>(pool) = find_pooling(spec, x, y);
  for (size_t i = 0; i < pool.geometry.size(); ++i) {
    const WindowAxis& axis = pool.geometry[i];
    for (int64_t o = 0; o < axis.out; ++o) {
      pool.spans[i].push_back(span_of(axis, o));
      pool.counts[i].push_back(averaged_count(axis, o, pool.include_pad));
    }
  }
  return pool;
}

std::vector<Kernel> pooling_kernels() {
  constexpr auto kChannelsFirst = ImageLayout::kChannelsFirst;
  std::vector<Kernel> kernels = {
      {"MaxPool", supports_max_pool<DType::kFloat>, prepare_max_pool<float>},
      {"MaxPool", supports_max_pool<DType::kDouble>, prepare_max_pool<double>},
      {"MaxPool", supports_max_pool<DType::kInt8>, prepare_max_pool<int8_t>},
      {"MaxPool", supports_max_pool<DType::kUint8>, prepare_max_pool<uint8_t>},
      Kernel{"MaxPoolGrad", supports_max_pool_grad, prepare_max_pool_grad, kDomain}.on_images(kChannelsFirst),
      {"AveragePool", supports_pool, prepare_average_pool},
      Kernel{"AveragePoolGrad", supports_pool, prepare_average_pool_grad, kDomain}.on_images(kChannelsFirst),
      {"LpPool", supports_pool, prepare_lp_pool},
      {"GlobalAveragePool", supports_pool, prepare_global_average},
      {"GlobalMaxPool", supports_pool, prepare_global_max},
  };
  const auto narrow = [&](const char* op, int images, const std::function<Prepared(const NodeSpec&)>& prepare) {
    const Kernel row = {op, [=](const NodeSpec& spec) { return supports_narrow(spec, images); }, prepare, kDomain};
    kernels.push_back(row.on_images(kChannelsFirst));
  };
  narrow("MaxPool", 1, prepare_narrow_max_pool);
  narrow("MaxPoolGrad", 2, prepare_narrow_max_pool_grad);
  narrow("AveragePool", 1, prepare_narrow_average_pool);
  narrow("AveragePoolGrad", 1, prepare_narrow_average_pool_grad);
  narrow("GlobalAveragePool", 1, [](const NodeSpec& spec) { return prepare_narrow_global(spec, mean_of<float>); });
  narrow("GlobalMaxPool", 1, [](const NodeSpec& spec) { return prepare_narrow_global(spec, largest_of<float>); });
  for (auto* family : {channels_last_pooling_kernels, unpooling_kernels, col2im_kernels}) {
    for (Kernel& kernel : family()) kernels.push_back(std::move(kernel));
  }
  return kernels;
}

}  // namespace onnx_train::cpu
