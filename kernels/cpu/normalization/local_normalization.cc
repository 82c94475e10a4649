// Normalization over the neighbours of an element: LpNormalization along an axis, LRN over neighbouring channels.
#include "kernels/cpu/normalization/normalization.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/axis_view.h"

namespace onnx_train::cpu {
namespace {

bool supports_float(const NodeSpec& s) { return is_float_or_double(s.in_type()); }

// y = x / (Σ |x|^p)^(1/p) for p = 1, 2; zeros stay zeros.
Prepared prepare_lp(const NodeSpec& s) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Shape shape = s.in_shape();
    const AxisView view(shape, s.node().attr("axis", -1));
    const math::LineNorm norm_of{s.node().attr("p", 2) == 1};
    const auto run = [=](const Launch& a) {
      const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(view.size, 1));
      parallel_for(view.lines(), grain, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t start = view.line(r);
          const T* x = a.in<T>(0) + start;
          T total = 0;
          for (int64_t i = 0; i < view.size; ++i) {
            const T v = x[i * view.inner];
            total = norm_of.add(total, v);
          }
          const T norm = norm_of.finish(total);
          for (int64_t i = 0; i < view.size; ++i) {
            a.out<T>()[start + i * view.inner] = norm_of.divide(x[i * view.inner], norm);
          }
        }
      });
    };
    return {run, 0, {{0, 0}}};
  });
}

// y = x / (bias + alpha / size Σ x²)^beta, where the sum covers `size` channels around each channel.
Prepared prepare_lrn(const NodeSpec& s) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const AxisView view(s.in_shape(), 1);
    const Neighbours near(s.node());
    const auto respond = local_response<T>(s.node());
    const auto run = [=](const Launch& a) {
      const int64_t grain = std::max<int64_t>(1, kElementGrain / 32 / std::max<int64_t>(view.inner, 1));
      parallel_for(view.outer * view.size, grain, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t c = r % view.size;
          const int64_t first = std::max<int64_t>(c - near.before, 0) - c,
                        last = std::min(c + near.after, view.size - 1) - c;
          const T* x = a.in<T>(0) + r * view.inner;
          for (int64_t i = 0; i < view.inner; ++i) {
            T squares = 0;
            for (int64_t d = first; d <= last; ++d) squares += x[d * view.inner + i] * x[d * view.inner + i];
            a.out<T>()[r * view.inner + i] = respond(x[i], squares);
          }
        }
      });
    };
    return {run};
  });
}

}  // namespace

std::vector<Kernel> local_normalization_kernels() {
  return {
      {"LpNormalization", supports_float, prepare_lp},
      {"LRN", [](const NodeSpec& s) { return supports_float(s) && s.in_shape().size() > 1; }, prepare_lrn},
  };
}

}  // namespace onnx_train::cpu
