// GroupNormalization, channels first, on [batch, groups, channels of a group, rest]; a group is contiguous.
// InstanceNormalization is the case of one channel per group.
#include "kernels/cpu/normalization/normalization.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

int64_t grain(const Groups& groups) {
  return std::max<int64_t>(1, kElementGrain / 2 / std::max<int64_t>(groups.group_size(), 1));
}

bool supports_groups(const NodeSpec& s) { return computes_in_one_type(s, {}, {}) && has_groups(s); }

struct GroupStatistics {
  double mean, inv_std;
};

template <typename T>
GroupStatistics group_statistics(const T* x, int64_t n, double epsilon) {
  const T mean = vectorized([&] { return sum(x, n); }) / static_cast<T>(n);
  const double variance =
      static_cast<double>(vectorized([&] { return sum_of_squares(x, mean, n); })) / static_cast<double>(n);
  return {static_cast<double>(mean), math::inverse_deviation(variance, epsilon)};
}

Prepared prepare_forward(const NodeSpec& s) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Groups groups(s);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const auto run = [=](const Launch& a) {
      const T *scale = a.in<T>(1), *bias = a.in<T>(2);
      parallel_for(groups.count(), grain(groups), [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) {
          const T* x = a.in<T>(0) + g * groups.group_size();
          T* y = a.out<T>() + g * groups.group_size();
          const GroupStatistics group = group_statistics(x, groups.group_size(), epsilon);
          for (int64_t i = 0; i < groups.per_group; ++i) {
            const int64_t c = groups.first_channel(g) + i;
            vectorized([&] {
              scale_rows(x + i * groups.rest, static_cast<T>(group.mean),
                         static_cast<T>(group.inv_std * static_cast<double>(scale[c])), bias[c], 1, groups.rest, 0,
                         y + i * groups.rest);
            });
          }
        }
      });
    };
    return {run, 0, {{0, 0}}};
  });
}

// ---- Gradient: the body of GroupNormalizationGrad

// dx = dy a - b - (x - mean) c. dx may be x or dy.
template <typename T>
void differentiate(const T* x, const T* dy, T mean, T a, T b, T c, int64_t n, T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = math::normalized_gradient(x[i], dy[i], mean, a, b, c);
}

// sums[channel of the group] = Σ dy and Σ dy x̂ of the channel. With g = dy scale and n elements in a group:
//   dx = (g - Σ g / n - x̂ Σ g x̂ / n) inv_std
template <typename T>
void differentiate_group(const T* x, const T* dy, const T* scale, const Groups& groups, double epsilon, Sums* sums,
                         T* dx) {
  const GroupStatistics group = group_statistics(x, groups.group_size(), epsilon);
  const T mean = static_cast<T>(group.mean);
  double g_sum = 0, along = 0;
  for (int64_t i = 0; i < groups.per_group; ++i) {
    sums[i] =
        vectorized([&] { return gradient_sums(x + i * groups.rest, dy + i * groups.rest, mean, 1, groups.rest, 0); });
    sums[i].second *= group.inv_std;
    g_sum += static_cast<double>(scale[i]) * sums[i].first;
    along += static_cast<double>(scale[i]) * sums[i].second;
  }
  const double n = static_cast<double>(groups.group_size());
  for (int64_t i = 0; i < groups.per_group; ++i) {
    vectorized([&] {
      differentiate(x + i * groups.rest, dy + i * groups.rest, mean,
                    static_cast<T>(static_cast<double>(scale[i]) * group.inv_std),
                    static_cast<T>(g_sum / n * group.inv_std),
                    static_cast<T>(along / n * group.inv_std * group.inv_std), groups.rest, dx + i * groups.rest);
    });
  }
}

Prepared prepare_gradient(const NodeSpec& s) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Groups groups(s);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const bool has_dscale = s.has_output(1), has_dbias = s.has_output(2);
    const auto run = [=](const Launch& a) {
      auto* sums = a.scratch<Sums>();  // [batch, channels]
      parallel_for(groups.count(), grain(groups), [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) {
          const int64_t at = g * groups.group_size();
          differentiate_group(a.in<T>(0) + at, a.in<T>(2) + at, a.in<T>(1) + groups.first_channel(g), groups, epsilon,
                              sums + g * groups.per_group, a.out<T>(0) + at);
        }
      });
      for (int64_t c = 0; c < groups.channels; ++c) {
        Sums total;
        for (int64_t n = 0; n < groups.batch; ++n) {
          total.first += sums[n * groups.channels + c].first;
          total.second += sums[n * groups.channels + c].second;
        }
        if (has_dscale) a.out<T>(1)[c] = static_cast<T>(total.second);
        if (has_dbias) a.out<T>(2)[c] = static_cast<T>(total.first);
      }
    };
    return {run, static_cast<size_t>(groups.batch * groups.channels) * sizeof(Sums), {{0, 2}, {0, 0}}};
  });
}

}  // namespace

std::vector<Kernel> group_normalization_kernels() {
  return {
      {"GroupNormalization", supports_groups, prepare_forward},
      {"InstanceNormalization", supports_groups, prepare_forward},
      Kernel{"GroupNormalizationGrad", supports_groups, prepare_gradient, kDomain}.on_images(
          ImageLayout::kChannelsFirst),
  };
}

}  // namespace onnx_train::cpu
