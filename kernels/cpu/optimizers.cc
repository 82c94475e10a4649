// The updates of functions/optimizers.cc in one pass over weight, gradient and slots, in place where the plan allows.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

double attr(const NodeSpec& spec, const char* name) { return spec.node().attr_tensor(name).at(0); }

double read_scalar(const void* data, DType dtype) {
  return dtype == DType::kDouble ? *static_cast<const double*>(data)
                                 : static_cast<double>(*static_cast<const float*>(data));
}

// The scalar inputs that all optimizers share: step, learning_rate and grad_scale, one after the other.
struct Scalars {
  int first;
  DType rate_type, scale_type;
  Scalars(const NodeSpec& spec, int first_input)
      : first(first_input), rate_type(spec.in_type(first + 1)), scale_type(spec.in_type(first + 2)) {}

  int64_t step(const Args& args) const { return *args.in<int64_t>(first); }
  double rate(const Args& args) const { return read_scalar(args.inputs[first + 1], rate_type); }
  double scale(const Args& args) const { return read_scalar(args.inputs[first + 2], scale_type); }
};

bool has_supported_types(const NodeSpec& spec, int first_scalar) {
  return is_float_or_double(spec.in_type(0)) && spec.in_type(first_scalar) == DType::kInt64 &&
         is_float_or_double(spec.in_type(first_scalar + 1)) && is_float_or_double(spec.in_type(first_scalar + 2));
}

// ---- Sgd

template <typename T>
struct SgdCoefficients {
  T scale, decay, rate, momentum, share;
  bool nesterov;
};

// Outputs may be the inputs of the same name: no restrict, but every element is read before it is written.
template <typename T>
void sgd(int64_t n, const T* w, const T* g, T* next_w, SgdCoefficients<T> k) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) next_w[i] = w[i] - k.rate * (g[i] * k.scale + w[i] * k.decay);
}

template <typename T>
void momentum(int64_t n, const T* w, const T* g, const T* b, T* next_w, T* next_b, SgdCoefficients<T> k) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T gradient = g[i] * k.scale + w[i] * k.decay;
    const T buffer = b[i] * k.momentum + gradient * k.share;
    const T direction = k.nesterov ? gradient + buffer * k.momentum : buffer;
    next_b[i] = buffer;
    next_w[i] = w[i] - k.rate * direction;
  }
}

Prepared prepare_sgd(const NodeSpec& spec) {
  const Scalars scalars(spec, 3);
  const int64_t n = spec.in_size();
  const bool has_momentum = spec.has_input(2);
  const double momentum_value = attr(spec, "momentum"), dampening = attr(spec, "dampening");
  const double decay = attr(spec, "weight_decay");
  const bool nesterov = spec.node().attr("nesterov", 0) != 0;
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const auto run = [=](const Args& args) {
      const double share = scalars.step(args) == 1 ? 1.0 : 1 - dampening;
      const SgdCoefficients<T> k{
          static_cast<T>(scalars.scale(args)), static_cast<T>(decay), static_cast<T>(scalars.rate(args)),
          static_cast<T>(momentum_value),      static_cast<T>(share), nesterov};
      const T *w = args.in<T>(0), *g = args.in<T>(1), *b = has_momentum ? args.in<T>(2) : nullptr;
      T *next_w = args.out<T>(0), *next_b = has_momentum ? args.out<T>(1) : nullptr;
      parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
        const int64_t m = end - begin;
        if (has_momentum) {
          vectorized([&] { momentum(m, w + begin, g + begin, b + begin, next_w + begin, next_b + begin, k); });
        } else {
          vectorized([&] { sgd(m, w + begin, g + begin, next_w + begin, k); });
        }
      });
    };
    std::vector<InPlace> in_place{{0, 0}};
    if (has_momentum) in_place.push_back({1, 2});
    return {.run = run, .in_place = in_place};
  });
}

// ---- Adam, AdamW

template <typename T>
struct AdamCoefficients {
  T scale, decay, keep, beta1, rest1, beta2, rest2, v_scale, epsilon, step_size;
};

// Adam has keep = 1, AdamW decay = 0.
template <typename T>
void adam(int64_t n, const T* w, const T* g, const T* m, const T* v, T* next_w, T* next_m, T* next_v,
          AdamCoefficients<T> k) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T gradient = g[i] * k.scale + w[i] * k.decay;
    const T first = m[i] * k.beta1 + gradient * k.rest1;
    const T second = v[i] * k.beta2 + gradient * gradient * k.rest2;
    next_m[i] = first;
    next_v[i] = second;
    next_w[i] = w[i] * k.keep - k.step_size * (first / (std::sqrt(second) / k.v_scale + k.epsilon));
  }
}

Prepared prepare_adam(const NodeSpec& spec, bool decoupled) {
  const Scalars scalars(spec, 4);
  const int64_t n = spec.in_size();
  const double beta1 = attr(spec, "beta1"), beta2 = attr(spec, "beta2");
  const double epsilon = attr(spec, "epsilon"), decay = attr(spec, "weight_decay");
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const auto run = [=](const Args& args) {
      const auto t = static_cast<double>(scalars.step(args));
      const double rate = scalars.rate(args);
      const AdamCoefficients<T> k{
          .scale = static_cast<T>(scalars.scale(args)),
          .decay = static_cast<T>(decoupled ? 0 : decay),
          .keep = static_cast<T>(decoupled ? 1 - rate * decay : 1),
          .beta1 = static_cast<T>(beta1),
          .rest1 = static_cast<T>(1 - beta1),
          .beta2 = static_cast<T>(beta2),
          .rest2 = static_cast<T>(1 - beta2),
          .v_scale = static_cast<T>(std::sqrt(1 - std::pow(beta2, t))),
          .epsilon = static_cast<T>(epsilon),
          .step_size = static_cast<T>(rate / (1 - std::pow(beta1, t))),
      };
      const T *w = args.in<T>(0), *g = args.in<T>(1), *m = args.in<T>(2), *v = args.in<T>(3);
      T *next_w = args.out<T>(0), *next_m = args.out<T>(1), *next_v = args.out<T>(2);
      parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
        vectorized([&] {
          adam(end - begin, w + begin, g + begin, m + begin, v + begin, next_w + begin, next_m + begin, next_v + begin,
               k);
        });
      });
    };
    return {.run = run, .in_place = {{0, 0}, {1, 2}, {2, 3}}};
  });
}

// ---- GlobalNorm

// What is summed in one go: the same pieces for any number of threads.
constexpr int64_t kPiece = 4096;

struct Piece {
  int input;
  bool is_double;
  int64_t begin, size;

  double sum_of_squares(const Args& args) const {
    return is_double ? sum_of_squares(args.in<double>(input)) : sum_of_squares(args.in<float>(input));
  }
  template <typename T>
  double sum_of_squares(const T* x) const {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < begin + size; ++i) sum += x[i] * x[i];
    return static_cast<double>(sum);
  }
};

Prepared prepare_global_norm(const NodeSpec& spec) {
  std::vector<Piece> pieces;
  for (int i = 0; i < spec.num_inputs(); ++i) {
    for (int64_t begin = 0; begin < spec.in_size(i); begin += kPiece) {
      pieces.push_back({i, spec.in_type(i) == DType::kDouble, begin, std::min(kPiece, spec.in_size(i) - begin)});
    }
  }
  const auto count = static_cast<int64_t>(pieces.size());
  const bool double_norm = spec.out_type() == DType::kDouble;
  const auto run = [=](const Args& args) {
    double* sums = args.scratch<double>();
    parallel_for(count, kElementGrain / kPiece, [&](int64_t begin, int64_t end) {
      vectorized([&] {
        for (int64_t i = begin; i < end; ++i) sums[i] = pieces[static_cast<size_t>(i)].sum_of_squares(args);
      });
    });
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += sums[i];
    if (double_norm) {
      *args.out<double>() = std::sqrt(total);
    } else {
      *args.out<float>() = static_cast<float>(std::sqrt(total));
    }
  };
  return {.run = run, .workspace = pieces.size() * sizeof(double)};
}

bool norm_supports(const NodeSpec& spec) {
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!is_float_or_double(spec.in_type(i))) return false;
  }
  return true;
}

}  // namespace

std::vector<Kernel> optimizer_kernels() {
  const auto adam_supports = [](const NodeSpec& s) { return has_supported_types(s, 4); };
  return {
      {"Sgd", [](const NodeSpec& s) { return has_supported_types(s, 3); }, prepare_sgd, kDomain},
      {"Adam", adam_supports, [](const NodeSpec& s) { return prepare_adam(s, false); }, kDomain},
      {"AdamW", adam_supports, [](const NodeSpec& s) { return prepare_adam(s, true); }, kDomain},
      {"GlobalNorm", norm_supports, prepare_global_norm, kDomain},
  };
}

}  // namespace onnx_train::cpu
