// Optimizer updates (kernels/geometry/updates.h). One pass over weight, gradient and slots, in place where the memory
// plan allows.
#include <algorithm>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/training/global_norm.h"
#include "kernels/cpu/training/sgd.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/updates.h"
#include "kernels/math/dynamic_map.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

double value_of(const UpdateScalar& scalar, const Launch& launch) {
  if (scalar.input < 0) return scalar.constant;
  switch (scalar.dtype) {
    case DType::kInt64: return static_cast<double>(*launch.in<int64_t>(scalar.input));
    case DType::kDouble: return *launch.in<double>(scalar.input);
    default: return static_cast<double>(*launch.in<float>(scalar.input));
  }
}

math::Coefficients coefficients_of_run(const UpdateRule& rule, const Launch& launch) {
  return math::coefficients_of(rule.parameters, value_of(rule.step, launch), value_of(rule.rate, launch),
                               value_of(rule.scale, launch));
}

// ---- Loops over a piece of one tensor
// Outputs may be the inputs of the same name: no restrict, but every element is read before it is written.

template <typename T>
void momentum(int64_t n, const T* w, const T* g, const T* b, T* next_w, T* next_b, const math::Momentum<T>& step) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) next_w[i] = step(w[i], g[i], b[i], next_b + i);
}

template <typename T>
void adam(int64_t n, const T* w, const T* g, const T* m, const T* v, T* next_w, T* next_m, T* next_v,
          const math::Adam<T>& step) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) next_w[i] = step(w[i], g[i], m[i], v[i], next_m + i, next_v + i);
}

template <typename T>
void update(const TensorUpdate& u, const Launch& launch, const math::UpdateParameters& parameters,
            const math::Coefficients& k, int64_t begin, int64_t end) {
  const auto in = [&](int i) { return launch.in<T>(u.inputs[i]) + begin; };
  const auto out = [&](int i) { return launch.out<T>(u.outputs[i]) + begin; };
  const int64_t n = end - begin;
  switch (parameters.formula) {
    case math::UpdateFormula::kSgd: return vectorized([&] { sgd(n, in(0), in(1), out(0), math::Sgd<T>(k)); });
    case math::UpdateFormula::kMomentum: {
      const math::Momentum<T> step(k, parameters.nesterov);
      return vectorized([&] { momentum(n, in(0), in(1), in(2), out(0), out(1), step); });
    }
    case math::UpdateFormula::kAdam: {
      const math::Adam<T> step(k);
      return vectorized([&] { adam(n, in(0), in(1), in(2), in(3), out(0), out(1), out(2), step); });
    }
  }
}

// Copies unchanged tensors to outputs that are elsewhere.
template <typename T>
void keep(const TensorUpdate& u, const Launch& launch, int64_t begin, int64_t end) {
  for (int o = 0; o < 3 && u.outputs[o] >= 0; ++o) {
    const T* const from = launch.in<T>(u.inputs[o == 0 ? 0 : o + 1]);
    T* const to = launch.out<T>(u.outputs[o]);
    if (from != to) std::copy(from + begin, from + end, to + begin);
  }
}

// ---- All tensors of a node

// Elements per piece. Threads share the pieces of all tensors evenly, whatever the sizes of the tensors: pieces are
// numbered across the tensors.
constexpr int64_t kPiece = 1024;

struct Updates {
  MultiTensorUpdate all;
  std::vector<int64_t> first_piece{0};  // first piece of each tensor, then the total number of pieces

  explicit Updates(MultiTensorUpdate description) : all(std::move(description)) {
    for (const TensorUpdate& u : all.tensors) {
      first_piece.push_back(first_piece.back() + (u.size + kPiece - 1) / kPiece);
    }
  }

  void run(const Launch& launch) const {
    auto* coefficients = launch.scratch<math::Coefficients>();
    for (size_t r = 0; r < all.rules.size(); ++r) coefficients[r] = coefficients_of_run(all.rules[r], launch);
    parallel_for(first_piece.back(), kElementGrain / kPiece, [&](int64_t begin, int64_t end) {
      auto t = static_cast<size_t>(std::upper_bound(first_piece.begin(), first_piece.end(), begin) -
                                   first_piece.begin() - 1);
      for (; t < all.tensors.size() && first_piece[t] < end; ++t) {
        const TensorUpdate& u = all.tensors[t];
        const int64_t from = (std::max(begin, first_piece[t]) - first_piece[t]) * kPiece;
        const int64_t to = std::min((end - first_piece[t]) * kPiece, u.size);
        if (from >= to) continue;
        const UpdateRule& rule = all.rules[u.rule];
        const bool stays = rule.guard >= 0 && !*launch.in<bool>(rule.guard);
        dispatch_float(u.dtype, [&]<typename T>(T) {
          if (stays) return keep<T>(u, launch, from, to);
          update<T>(u, launch, rule.parameters, coefficients[u.rule], from, to);
        });
      }
    });
  }
};

// ---- AdamW8bit: one block of bytes after the other

template <typename T>
struct MomentMap {
  math::MapPlaces<T> places;
  T numbers[kQuantizedBlock];

  explicit MomentMap(const DynamicMap& map) : places(map) {
    for (int i = 0; i < kQuantizedBlock; ++i) numbers[i] = places.number(static_cast<uint8_t>(i));
  }

  void load(const uint8_t* stored, T most, T* moments) const {
#pragma omp simd
    for (int64_t i = 0; i < kQuantizedBlock; ++i) moments[i] = numbers[stored[i]] * most;
  }

  // Returns the largest magnitude.
  T store(const T* moments, uint8_t* stored) const {
    T most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < kQuantizedBlock; ++i) most = std::max(most, std::abs(moments[i]));
    const T unit = most > 0 ? most : T{1};
    const math::MapPlaces<T> own = places;  // bytes may alias what `this` holds
#pragma omp simd
    for (int64_t i = 0; i < kQuantizedBlock; ++i) stored[i] = own.place(moments[i] / unit);
    return most;
  }
};

template <typename T>
void update_quantized(const Launch& launch, int64_t size, int64_t blocks, const math::Adam<T>& step,
                      const MomentMap<T>& signs, const MomentMap<T>& no_signs) {
  const auto byte = [&](int i) { return launch.in<uint8_t>(i); };
  const auto number = [&](int i) { return launch.in<T>(i); };
  parallel_for(blocks, kElementGrain / kQuantizedBlock + 1, [&](int64_t begin, int64_t end) {
    vectorized([&] {
      T w[kQuantizedBlock], g[kQuantizedBlock], m[kQuantizedBlock], v[kQuantizedBlock];
      for (int64_t b = begin; b < end; ++b) {
        const int64_t first = b * kQuantizedBlock, n = std::min(kQuantizedBlock, size - first);
        std::copy_n(number(0) + first, n, w);
        std::copy_n(number(1) + first, n, g);
        std::fill(w + n, w + kQuantizedBlock, T{0});
        std::fill(g + n, g + kQuantizedBlock, T{0});
        signs.load(byte(2) + first, number(3)[b], m);
        no_signs.load(byte(4) + first, number(5)[b], v);
        adam<T>(kQuantizedBlock, w, g, m, v, w, m, v, step);
        std::copy_n(w, n, launch.out<T>(0) + first);
        launch.out<T>(2)[b] = signs.store(m, launch.out<uint8_t>(1) + first);
        launch.out<T>(4)[b] = no_signs.store(v, launch.out<uint8_t>(3) + first);
      }
    });
  });
}

Prepared prepare_quantized_update(const NodeSpec& spec) {
  Prepared prepared;
  prepared.in_place = quantized_update_in_place();
  prepared.run = dispatch_float(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [rule = quantized_update_rule(spec), size = spec.in_size(0), blocks = spec.in_size(3),
            signs = MomentMap<T>(kSignedMap), no_signs = MomentMap<T>(kUnsignedMap)](const Launch& launch) {
      update_quantized<T>(launch, size, blocks, math::Adam<T>(coefficients_of_run(rule, launch)), signs, no_signs);
    };
  });
  return prepared;
}

}  // namespace

std::vector<Kernel> optimizer_kernels() {
  std::vector<Kernel> kernels;
  for (const UpdateRow& row : update_rows()) {
    const auto prepare = [&row](const NodeSpec& spec) -> Prepared {
      const Updates updates(row.describe(spec));
      return {.run = [updates](const Launch& launch) { updates.run(launch); },
              .workspace = updates.all.rules.size() * sizeof(math::Coefficients),
              .in_place = updates.all.in_place()};
    };
    kernels.push_back({row.op, row.supports, prepare, kDomain});
  }
  kernels.push_back({"AdamW8bit", supports_quantized_update, prepare_quantized_update, kDomain});
  kernels.push_back(global_norm_kernel());
  return kernels;
}

}  // namespace onnx_train::cpu
