// Pad, Trilu and ReverseSequence (kernels/geometry/indexing/pad_trilu_reverse.h).
#include "kernels/geometry/indexing/pad_trilu_reverse.h"

#include "kernels/cuda/movement/copy_rows.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/indices.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/dispatch.h"

namespace onnx_train::cuda {
namespace {

// ---- Pad

struct PaddedAxes {
  int rank = 0;
  PadMode mode;
  Divider out[kMaxRank];  // sizes, innermost first
  int64_t in[kMaxRank];
  int64_t before[kMaxRank];
  int64_t strides[kMaxRank];  // in the input

  // Merges neighbouring axes that are not padded.
  explicit PaddedAxes(const NodeSpec& spec) {
    const Padding padding = padding_of(spec);
    mode = padding.mode;
    int64_t stride = 1;
    bool was_whole = false;
    for (size_t k = padding.in.size(); k-- > 0;) {
      const int64_t size = padding.in[k];
      const bool is_whole = padding.before[k] == 0 && size == padding.out[k];
      if (is_whole && was_whole) {
        in[rank - 1] *= size;
        out[rank - 1] = Divider(in[rank - 1]);
      } else {
        if (rank == kMaxRank) fail(spec.node().label(), ": more than ", kMaxRank, " axes that cannot be merged");
        in[rank] = size;
        out[rank] = Divider(padding.out[k]);
        before[rank] = padding.before[k];
        strides[rank++] = stride;
      }
      was_whole = is_whole;
      stride *= size;
    }
  }
};

template <typename T>
__global__ void pad(int64_t n, PaddedAxes axes, const T* x, const T* value, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset = 0, position = i;
  for (int k = 0; k < axes.rank; ++k) {
    const int64_t rest = axes.out[k].quotient(position);
    const int64_t at = shown(axes.mode, position - rest * axes.out[k].divisor() - axes.before[k], axes.in[k]);
    if (at == kBorder) {
      y[i] = value ? *value : T{0};
      return;
    }
    offset += at * axes.strides[k];
    position = rest;
  }
  y[i] = x[offset];
}

Prepared prepare_pad(const NodeSpec& spec) {
  const int64_t n = spec.out_size();
  if (n == 0) return {[](const Launch&) {}};
  Prepared prepared;
  prepared.run = dispatch_size(size_of(spec.in_type(0)), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [n, axes = PaddedAxes(spec), given = spec.has_input(2)](const Launch& launch) {
      enqueue_each(launch, "pad", pad<T>, n, axes, launch.in<T>(0), given ? launch.in<T>(2) : nullptr, launch.out<T>());
    };
  });
  return prepared;
}

// ---- Trilu

template <typename T>
__global__ void copy_triangle(int64_t n, Triangle triangle, Divider columns, Divider rows, const int64_t* k, const T* x,
                              T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t line = columns.quotient(i), column = i - line * columns.divisor();
  const int64_t row = line - rows.quotient(line) * rows.divisor();
  const auto [first, last] = triangle.columns_of(row, k ? *k : 0);
  y[i] = column >= first && column < last ? x[i] : T{0};
}

Prepared prepare_trilu(const NodeSpec& spec) {
  const Triangle triangle = triangle_of(spec);
  const int64_t n = spec.in_size(0);
  if (n == 0) return {[](const Launch&) {}};
  Prepared prepared;
  prepared.run = dispatch_size(size_of(spec.in_type(0)), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=, given = spec.has_input(1)](const Launch& launch) {
      enqueue_each(launch, "copy_triangle", copy_triangle<T>, n, triangle, Divider(triangle.columns),
                   Divider(triangle.rows), given ? launch.in<int64_t>(1) : nullptr, launch.in<T>(0), launch.out<T>());
    };
  });
  return prepared;
}

// ---- ReverseSequence: finds the row of the input for each row of the output, and copies rows.

__global__ void reverse_rows(SequenceReversal reversal, Divider time, const int64_t* lengths, int64_t* rows) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= reversal.batch * reversal.time) return;
  const int64_t b = time.quotient(i), t = i - b * reversal.time;
  const int64_t from = t < lengths[b] ? lengths[b] - 1 - t : t;
  rows[b * reversal.batch_stride + t * reversal.time_stride] = b * reversal.batch_stride + from * reversal.time_stride;
}

Prepared prepare_reverse_sequence(const NodeSpec& spec) {
  const SequenceReversal reversal = reversal_of(spec);
  const int64_t n = reversal.batch * reversal.time;
  const size_t lengths_bytes = index_workspace(reversal.batch);
  Prepared prepared;
  prepared.workspace = lengths_bytes + static_cast<size_t>(n) * sizeof(int64_t);
  prepared.explain = explain_length(reversal.time);
  prepared.run = [=](const Launch& launch) {
    int64_t* const lengths = launch.scratch<int64_t>();
    auto* const rows = reinterpret_cast<int64_t*>(launch.scratch<char>() + lengths_bytes);
    read_numbers(launch, {1, DType::kInt64, reversal.batch}, 0, reversal.time + 1, lengths, lengths + reversal.batch);
    if (n == 0) return;
    enqueue(launch, "reverse_rows", reverse_rows, blocks_for(n), kThreads, 0, reversal, Divider(reversal.time), lengths,
            rows);
    copy_rows(launch, {1, n, n, reversal.row_bytes}, rows, launch.inputs[0], launch.outputs[0]);
  };
  return prepared;
}

}  // namespace

std::vector<Kernel> pad_trilu_reverse_kernels() {
  return {
      {"Pad", supports_pad, prepare_pad},
      {"Trilu", supports_trilu, prepare_trilu},
      {"ReverseSequence", supports_reverse_sequence, prepare_reverse_sequence, "", "", InputCheck::kChecks},
  };
}

}  // namespace onnx_train::cuda
