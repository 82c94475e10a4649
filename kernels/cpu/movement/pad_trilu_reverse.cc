// Operators that build their output row by row from rows of the input: Pad, Trilu, ReverseSequence.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/pad_trilu_reverse.h"

namespace onnx_train::cpu {
namespace {

// ---- Pad

// One axis of a Pad. Offsets are computed, not tabulated: an output axis may be long.
struct PadAxis {
  PadMode mode = PadMode::kConstant;
  int64_t in = 0, out = 0;  // sizes
  int64_t before = 0;       // padding
  int64_t stride = 1;       // stride in the input

  // The offset of the input element that output position `i` takes, or kBorder.
  int64_t offset(int64_t i) const {
    const int64_t at = shown(mode, i - before, in);
    return at == kBorder ? kBorder : at * stride;
  }
};

struct PadPlan {
  std::vector<PadAxis> outer;  // all axes except the last
  PadAxis inner = {};
  int64_t inside_begin = 0, inside_end = 0;  // positions of `inner` that take the input's row in order

  // The offset of the input row that output row `row` takes, or kBorder.
  int64_t row_offset(int64_t row) const {
    int64_t offset = 0;
    for (size_t k = outer.size(); k-- > 0;) {
      const int64_t at = outer[k].offset(row % outer[k].out);
      if (at == kBorder) return kBorder;
      offset += at;
      row /= outer[k].out;
    }
    return offset;
  }
};

PadPlan plan_pad(const NodeSpec& spec) {
  const auto [in, out, before, mode] = padding_of(spec);
  PadPlan plan;
  int64_t stride = 1;
  for (size_t k = in.size(); k-- > 0;) {
    const PadAxis axis = {mode, in[k], out[k], before[k], stride};
    stride *= in[k];
    if (k + 1 < in.size()) {
      plan.outer.insert(plan.outer.begin(), axis);
      continue;
    }
    plan.inside_begin = std::clamp<int64_t>(before[k], 0, out[k]);
    plan.inside_end = std::clamp<int64_t>(before[k] + in[k], plan.inside_begin, out[k]);
    plan.inner = axis;
  }
  return plan;
}

template <typename T>
void pad_row(const PadPlan& plan, const T* in, T value, T* out) {
  const auto edge = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = plan.inner.offset(i);
      out[i] = at == kBorder ? value : in[at];
    }
  };
  edge(0, plan.inside_begin);
  const int64_t inside = plan.inside_end - plan.inside_begin;
  if (inside > 0) {
    const int64_t first = plan.inner.offset(plan.inside_begin);
    std::memcpy(out + plan.inside_begin, in + first, static_cast<size_t>(inside) * sizeof(T));
  }
  edge(plan.inside_end, plan.inner.out);
}

Prepared prepare_pad(const NodeSpec& spec) {
  const int64_t all = spec.out_size();
  Prepared prepared;
  if (all == 0) return {[](const Launch&) {}};
  prepared.run = dispatch_size(size_of(spec.in_type(0)), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [plan = plan_pad(spec), all, given = spec.has_input(2)](const Launch& launch) {
      const T value = given ? *launch.in<T>(2) : T{0};
      const int64_t width = plan.inner.out;
      parallel_for(all / width, kElementGrain / width + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          T* out = launch.out<T>() + row * width;
          const int64_t offset = plan.row_offset(row);
          if (offset == kBorder) {
            std::fill(out, out + width, value);
          } else {
            pad_row(plan, launch.in<T>(0) + offset, value, out);
          }
        }
      });
    };
  });
  return prepared;
}

// ---- Trilu

Prepared prepare_trilu(const NodeSpec& spec) {
  const Triangle triangle = triangle_of(spec);
  const int64_t columns = triangle.columns, all = spec.in_size(0);
  const int64_t bytes = static_cast<int64_t>(size_of(spec.in_type(0)));
  Prepared prepared;
  prepared.run = [=, given = spec.has_input(1)](const Launch& launch) {
    if (all == 0) return;
    const int64_t k = given ? *launch.in<int64_t>(1) : 0;
    parallel_for(all / columns, kElementGrain / columns + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const auto [first, last] = triangle.columns_of(row % triangle.rows, k);
        const char* in = launch.in<char>(0) + row * columns * bytes;
        char* out = launch.out<char>() + row * columns * bytes;
        std::memset(out, 0, static_cast<size_t>(first * bytes));
        std::memcpy(out + first * bytes, in + first * bytes, static_cast<size_t>((last - first) * bytes));
        std::memset(out + last * bytes, 0, static_cast<size_t>((columns - last) * bytes));
      }
    });
  };
  return prepared;
}

// ---- ReverseSequence

Prepared prepare_reverse_sequence(const NodeSpec& spec) {
  const auto [batch, time, batch_stride, time_stride, row] = reversal_of(spec);
  Prepared prepared;
  prepared.explain = explain_length(time);
  prepared.run = [batch = batch, time = time, batch_stride = batch_stride, time_stride = time_stride,
                  row = row](const Launch& launch) {
    const int64_t* lengths = launch.in<int64_t>(1);
    for (int64_t b = 0; b < batch; ++b) {
      if (lengths[b] < 0 || lengths[b] > time) return launch.report(1, b, lengths[b]);
    }
    parallel_for(batch * time, 4 * kElementGrain / (row + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / time, t = i % time, from = t < lengths[b] ? lengths[b] - 1 - t : t;
        std::memcpy(launch.out<char>() + (b * batch_stride + t * time_stride) * row,
                    launch.in<char>(0) + (b * batch_stride + from * time_stride) * row, static_cast<size_t>(row));
      }
    });
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

}  // namespace onnx_train::cpu
