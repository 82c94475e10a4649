// Updates of the rows of a table that a batch reads, at a cost that does not depend on the size of the table: finds the
// rows, sums their gradients, updates them. The bodies are in kernels/functions/embeddings.cc.
#include <algorithm>
#include <bit>

#include "kernels/cpu/movement/indices.h"
#include "kernels/cpu/movement/strided_copy.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/cpu/training/sgd.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/sparse_updates.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {
namespace {

// ---- CoalesceRows. Inputs dy, indices, shape; outputs rows, places.

// Finds the first position of each index with an open-addressing hash table of positions, at most half full.
class FirstPlaces {
 public:
  explicit FirstPlaces(int64_t n)
      : n_(n), capacity_(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(2 * n, 2)))) {}

  size_t workspace() const { return (capacity_ + static_cast<uint64_t>(n_)) * sizeof(int64_t); }

  // Returns, for each position, the first position that holds the same index. The result is stored in `workspace`.
  // Subtracts `size` from every repeated index, so that only first positions stay in [0, size).
  int64_t* find(int64_t size, int64_t* places, void* workspace) const {
    int64_t* table = static_cast<int64_t*>(workspace);
    int64_t* firsts = table + capacity_;
    std::fill(table, firsts, kFree);
    const int shift = std::countl_zero(capacity_) + 1;
    for (int64_t p = 0; p < n_; ++p) {
      constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // Fibonacci hashing
      uint64_t slot = static_cast<uint64_t>(places[p]) * kGolden >> shift;
      while (table[slot] != kFree && places[table[slot]] != places[p]) slot = (slot + 1) & (capacity_ - 1);
      if (table[slot] == kFree) {
        table[slot] = firsts[p] = p;
      } else {
        firsts[p] = table[slot];
        places[p] -= size;
      }
    }
    return firsts;
  }

 private:
  static constexpr int64_t kFree = -1;
  int64_t n_;
  uint64_t capacity_;
};

// rows[firsts[p]] += dy[p], starting from zero like a dense gradient; `rows` may be dy. A thread owns columns, not
// rows, and adds the positions in order, so the result does not depend on the number of threads.
template <typename From, typename T>
void sum_rows(int64_t n, int64_t columns, const int64_t* firsts, const From* dy, T* rows) {
  constexpr int64_t kBlock = 16;  // columns per thread at a time
  const int64_t blocks = (columns + kBlock - 1) / kBlock;
  const int64_t grain = kElementGrain / (std::max<int64_t>(n, 1) * std::min(kBlock, columns) + 1) + 1;
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    const int64_t c0 = begin * kBlock, c1 = std::min(end * kBlock, columns);
    for (int64_t p = 0; p < n; ++p) {
      const From* from = dy + p * columns;
      T *own = rows + p * columns, *sum = rows + firsts[p] * columns;
      if (own == sum) {
        for (int64_t c = c0; c < c1; ++c) own[c] = T{0} + static_cast<T>(from[c]);
        continue;
      }
      for (int64_t c = c0; c < c1; ++c) {
        sum[c] += static_cast<T>(from[c]);
        own[c] = T{0};
      }
    }
  });
}

Prepared prepare_coalesce_rows(const NodeSpec& spec) {
  const int64_t n = spec.in_size(1), columns = coalesced_rows(spec).columns;
  const FirstPlaces first_places(n);
  Prepared prepared;
  prepared.workspace = first_places.workspace();
  prepared.in_place = {{0, 0}};
  prepared.explain = explain_table_index;
  const auto make = [&]<typename From, typename T>(From, T) -> std::function<void(const Launch&)> {
    return [=, type = spec.in_type(1)](const Launch& launch) {
      const int64_t size = *launch.in<int64_t>(2);
      int64_t* places = launch.out<int64_t>(1);
      if (!read_indices(launch, 1, type, n, size, places)) return;
      const int64_t* firsts = first_places.find(size, places, launch.workspace);
      sum_rows(n, columns, firsts, launch.in<From>(0), launch.out<T>(0));
    };
  };
  prepared.run = spec.in_type(0) == DType::kBFloat16
                     ? make(BFloat16{}, float{})
                     : dispatch_float(spec.in_type(0), [&](auto t) { return make(t, t); });
  return prepared;
}

// If dy is bfloat16 (kernels/lowering/storage/narrow_storage.cc), its sums are float32.
bool supports_coalesce_rows(const NodeSpec& spec) { return has_places(spec) && computes_in_one_type(spec, {0}, {}); }

// ---- SparseSgd. Inputs w, rows, places, learning_rate, grad_scale.

double number(const Launch& launch, int input, DType dtype) {
  return dtype == DType::kDouble ? *launch.in<double>(input) : static_cast<double>(*launch.in<float>(input));
}

bool check_places(const Launch& launch, int64_t n, int64_t size) {
  const int64_t* places = launch.in<int64_t>(2);
  for (int64_t p = 0; p < n; ++p) {
    if (places[p] >= -size && places[p] < size) continue;
    launch.report(2, p, places[p]);
    return false;
  }
  return true;
}

// Each row has at most one position with a non-negative index, so threads can share the positions.
template <typename T>
void update_rows(int64_t n, int64_t columns, const int64_t* places, const T* rows, double scale, double rate, T* w) {
  math::Coefficients coefficients{};
  coefficients.scale = scale;
  coefficients.rate = rate;
  const math::Sgd<T> step(coefficients);
  constexpr int64_t kAhead = 8;  // rows are scattered over the table: prefetch them this many positions ahead
  parallel_for(n, kElementGrain / std::max<int64_t>(columns, 1) + 1, [&](int64_t begin, int64_t end) {
    vectorized([&] {
      for (int64_t p = begin; p < end; ++p) {
        if (p + kAhead < end && places[p + kAhead] >= 0) __builtin_prefetch(w + places[p + kAhead] * columns, 1);
        if (places[p] < 0) continue;
        T* row = w + places[p] * columns;
        sgd(columns, row, rows + p * columns, row, step);
      }
    });
  });
}

Prepared prepare_sparse_sgd(const NodeSpec& spec) {
  const PlacedRows placed = sparsely_updated_rows(spec);
  const int64_t n = placed.count, columns = placed.columns, size = placed.size;
  Prepared prepared;
  prepared.in_place = {{0, 0}};
  prepared.explain = explain_index(size);
  prepared.run = dispatch_float(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=, copy = StridedCopy({{spec.in_size(0), 1, 1}}, sizeof(T)), rate_type = spec.in_type(3),
            scale_type = spec.in_type(4)](const Launch& launch) {
      const int64_t* places = launch.in<int64_t>(2);
      if (!check_places(launch, n, size)) return;
      if (launch.inputs[0] != launch.outputs[0]) copy.run(launch.inputs[0], launch.outputs[0]);
      update_rows(n, columns, places, launch.in<T>(1), static_cast<T>(number(launch, 4, scale_type)),
                  static_cast<T>(number(launch, 3, rate_type)), launch.out<T>());
    };
  });
  return prepared;
}

// ---- SparseAdam, SparseAdamRows (geometry/sparse_updates.h)

// Row p of `rows` belongs to row places[p], if that is not negative; without places to row p. Rows of zeros change
// nothing.
template <typename T>
void adam_rows(int64_t n, int64_t columns, const int64_t* places, const T* rows, const math::SparseAdam<T>& step, T* w,
               T* m, T* v) {
  parallel_for(n, kElementGrain / std::max<int64_t>(columns, 1) + 1, [&](int64_t begin, int64_t end) {
    vectorized([&] {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t place = places ? places[p] : p;
        const T* g = rows + p * columns;
        if (place < 0 || std::all_of(g, g + columns, [](T x) { return x == T{0}; })) continue;
        T *own_w = w + place * columns, *own_m = m + place * columns, *own_v = v + place * columns;
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) own_w[c] = step(own_w[c], g[c], own_m[c], own_v[c], own_m + c, own_v + c);
      }
    });
  });
}

Prepared prepare_sparse_adam(const NodeSpec& spec) {
  const SparseAdamInputs inputs = sparse_adam_inputs(spec);
  const PlacedRows placed = sparse_adam_rows(spec);
  const int own[] = {0, inputs.slots, inputs.slots + 1};  // what the outputs were
  Prepared prepared;
  prepared.in_place = {{0, own[0]}, {1, own[1]}, {2, own[2]}};
  prepared.explain = explain_index(placed.size);
  prepared.run = dispatch_float(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=, copy = StridedCopy({{spec.in_size(0), 1, 1}}, sizeof(T)), parameters = sparse_adam_parameters(spec),
            rate_type = spec.in_type(inputs.scalars + 1),
            scale_type = spec.in_type(inputs.scalars + 2)](const Launch& launch) {
      if (inputs.has_places && !check_places(launch, placed.count, placed.size)) return;
      for (int i = 0; i < 3; ++i) {
        if (launch.inputs[own[i]] != launch.outputs[i]) copy.run(launch.inputs[own[i]], launch.outputs[i]);
      }
      const auto t = static_cast<double>(*launch.in<int64_t>(inputs.scalars));
      const math::SparseAdam<T> step(math::coefficients_of(parameters, t, number(launch, inputs.scalars + 1, rate_type),
                                                           number(launch, inputs.scalars + 2, scale_type)));
      adam_rows(placed.count, placed.columns, inputs.has_places ? launch.in<int64_t>(2) : nullptr, launch.in<T>(1),
                step, launch.out<T>(0), launch.out<T>(1), launch.out<T>(2));
    };
  });
  return prepared;
}

}  // namespace

std::vector<Kernel> sparse_update_kernels() {
  return {
      {"CoalesceRows", supports_coalesce_rows, prepare_coalesce_rows, kDomain, "", InputCheck::kCheckedUpstream},
      {"SparseSgd", supports_sparse_sgd, prepare_sparse_sgd, kDomain, "", InputCheck::kCheckedUpstream},
      {"SparseAdam", supports_sparse_adam, prepare_sparse_adam, kDomain},
      {"SparseAdamRows", supports_sparse_adam, prepare_sparse_adam, kDomain, "", InputCheck::kCheckedUpstream},
  };
}

}  // namespace onnx_train::cpu
