// Updates of the rows of a table that a batch reads (bodies: kernels/functions/embeddings.cc).
#include "kernels/geometry/sparse_updates.h"

#include <limits>

#include "kernels/cuda/movement/sorted_rows.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/indices.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/device.h"
#include "kernels/dispatch.h"
#include "kernels/math/updates.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// ---- CoalesceRows. Inputs dy, indices, shape; outputs rows, places.

Prepared prepare_coalesce_rows(const NodeSpec& spec) {
  const PlacedRows placed = coalesced_rows(spec);
  const int64_t end = placed.size > 0 ? placed.size : std::numeric_limits<int64_t>::max();
  const CoalescedRows rows(placed.count, end, placed.columns, spec.in_type(0));
  const size_t keys = index_workspace(placed.count);
  Prepared prepared;
  prepared.workspace = keys + rows.workspace();
  prepared.in_place = {{0, 0}};
  prepared.explain = explain_table_index;
  prepared.run = [=, indices = IndexInput{1, spec.in_type(1), placed.count}](const Launch& launch) {
    int64_t* const places = launch.scratch<int64_t>();
    const int64_t* const size = launch.in<int64_t>(2);
    read_indices(launch, indices, size, places, places + indices.count);
    rows.run(launch, places, launch.scratch<char>() + keys, launch.inputs[0], launch.outputs[0], launch.out<int64_t>(1),
             size, guard_of(launch, 1, 1));
  };
  return prepared;
}

bool supports_coalesce_rows(const NodeSpec& spec) {
  return has_places(spec) && is_float_or_double(spec.in_type(0)) && spec.out_type() == spec.in_type(0);
}

// ---- SparseSgd. Inputs w, rows, places, learning_rate, grad_scale.

// A scalar of one of two types in the device's memory.
struct ScalarInput {
  const void* data;
  bool is_double;
  __device__ double get() const {
    return is_double ? *static_cast<const double*>(data) : static_cast<double>(*static_cast<const float*>(data));
  }
};

// Each row has at most one position with a non-negative place. One element per thread.
template <typename T>
__global__ void update_rows(int64_t n, Divider columns, const int64_t* places, const T* rows, ScalarInput rate,
                            ScalarInput scale, const Fault* guard, T* w) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n || stops(guard)) return;
  const int64_t p = columns.quotient(i), place = places[p];
  if (place < 0) return;
  math::Coefficients coefficients{};
  coefficients.scale = scale.get();
  coefficients.rate = rate.get();
  T& element = w[place * columns.divisor() + i - p * columns.divisor()];
  element = math::Sgd<T>(coefficients)(element, rows[i]);
}

Prepared prepare_sparse_sgd(const NodeSpec& spec) {
  const PlacedRows placed = sparsely_updated_rows(spec);
  const int64_t n = placed.count * placed.columns;
  const size_t bytes = static_cast<size_t>(spec.in_size(0)) * size_of(spec.in_type(0));
  Prepared prepared;
  prepared.workspace = index_workspace(0);
  prepared.in_place = {{0, 0}};
  prepared.explain = explain_index(placed.size);
  prepared.run = dispatch_float(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=, double_rate = spec.in_type(3) == DType::kDouble,
            double_scale = spec.in_type(4) == DType::kDouble](const Launch& launch) {
      read_numbers(launch, {2, DType::kInt64, placed.count}, -placed.size, placed.size, nullptr,
                   launch.scratch<int64_t>());
      if (launch.inputs[0] != launch.outputs[0]) launch.stream->copy({launch.outputs[0], launch.inputs[0], bytes});
      if (n == 0) return;
      // Invalid places are not replaced, so the update stops after a fault even if it does not write in place.
      enqueue_each(launch, "update_rows", update_rows<T>, n, Divider(placed.columns), launch.in<int64_t>(2),
                   launch.in<T>(1), ScalarInput{launch.inputs[3], double_rate},
                   ScalarInput{launch.inputs[4], double_scale}, launch.fault, launch.out<T>());
    };
  });
  return prepared;
}

// ---- SparseAdam, SparseAdamRows (geometry/sparse_updates.h)

struct SparseAdamScalars {
  const int64_t* step;
  ScalarInput rate, scale;
};

// One element per thread; each looks for a gradient in its row that is not zero, mostly the first one.
template <typename T>
__global__ void adam_rows(int64_t n, Divider columns, const int64_t* places, const T* rows,
                          math::UpdateParameters parameters, SparseAdamScalars scalars, const Fault* guard, T* w, T* m,
                          T* v) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n || stops(guard)) return;
  const int64_t p = columns.quotient(i), place = places ? places[p] : p, width = columns.divisor();
  if (place < 0) return;
  int64_t c = 0;
  while (c < width && rows[p * width + c] == T{0}) ++c;
  if (c == width) return;
  const math::SparseAdam<T> step(
      math::coefficients_of(parameters, static_cast<double>(*scalars.step), scalars.rate.get(), scalars.scale.get()));
  const int64_t at = place * width + i - p * width;
  w[at] = step(w[at], rows[i], m[at], v[at], m + at, v + at);
}

Prepared prepare_sparse_adam(const NodeSpec& spec) {
  const SparseAdamInputs inputs = sparse_adam_inputs(spec);
  const PlacedRows placed = sparse_adam_rows(spec);
  const int64_t n = placed.count * placed.columns;
  const size_t bytes = static_cast<size_t>(spec.in_size(0)) * size_of(spec.in_type(0));
  const int own[] = {0, inputs.slots, inputs.slots + 1};  // what the outputs were
  Prepared prepared;
  prepared.workspace = index_workspace(0);
  prepared.in_place = {{0, own[0]}, {1, own[1]}, {2, own[2]}};
  prepared.explain = explain_index(placed.size);
  prepared.run = dispatch_float(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return
        [=, parameters = sparse_adam_parameters(spec), double_rate = spec.in_type(inputs.scalars + 1) == DType::kDouble,
         double_scale = spec.in_type(inputs.scalars + 2) == DType::kDouble](const Launch& launch) {
          if (inputs.has_places) {
            read_numbers(launch, {2, DType::kInt64, placed.count}, -placed.size, placed.size, nullptr,
                         launch.scratch<int64_t>());
          }
          for (int i = 0; i < 3; ++i) {
            if (launch.inputs[own[i]] != launch.outputs[i])
              launch.stream->copy({launch.outputs[i], launch.inputs[own[i]], bytes});
          }
          if (n == 0) return;
          const SparseAdamScalars scalars = {launch.in<int64_t>(inputs.scalars),
                                             {launch.inputs[inputs.scalars + 1], double_rate},
                                             {launch.inputs[inputs.scalars + 2], double_scale}};
          enqueue_each(launch, "adam_rows", adam_rows<T>, n, Divider(placed.columns),
                       inputs.has_places ? launch.in<int64_t>(2) : nullptr, launch.in<T>(1), parameters, scalars,
                       launch.fault, launch.out<T>(0), launch.out<T>(1), launch.out<T>(2));
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

}  // namespace onnx_train::cuda
