// Operators that build their output row by row from rows of the input: Pad, Trilu, ReverseSequence.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// ---- Pad

constexpr int64_t kBorder = -1;

enum class Padding { kConstant, kEdge, kWrap, kReflect };

Padding padding_of(const Node& node) {
  const std::string mode = node.attr("mode", "constant");
  if (mode == "constant") return Padding::kConstant;
  if (mode == "edge") return Padding::kEdge;
  return mode == "wrap" ? Padding::kWrap : Padding::kReflect;
}

// The element of an axis of `size` that is shown at `place`, which may be outside [0, size).
int64_t shown(Padding mode, int64_t place, int64_t size) {
  if (place >= 0 && place < size) return place;
  if (mode == Padding::kConstant) return kBorder;
  if (mode == Padding::kEdge || size == 1) return std::clamp<int64_t>(place, 0, size - 1);
  const auto modulo = [](int64_t a, int64_t n) { return (a % n + n) % n; };
  if (mode == Padding::kWrap) return modulo(place, size);
  const int64_t in_period = modulo(place, 2 * (size - 1));
  return in_period < size ? in_period : 2 * (size - 1) - in_period;
}

// One axis of a Pad. Offsets are computed, not tabulated: an output axis may be long.
struct PadAxis {
  Padding mode = Padding::kConstant;
  int64_t in = 0, out = 0;  // sizes
  int64_t before = 0;       // padding
  int64_t stride = 1;       // of the input

  // The offset of the element that position `i` of the output shows, or kBorder.
  int64_t offset(int64_t i) const {
    const int64_t at = shown(mode, i - before, in);
    return at == kBorder ? kBorder : at * stride;
  }
};

struct PadPlan {
  std::vector<PadAxis> outer;  // all axes except the last
  PadAxis inner = {};
  int64_t inside_begin = 0, inside_end = 0;  // positions of `inner` that show the input's row in order

  // The offset of the input row that row `row` of the output shows, or kBorder.
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
  Shape in = spec.in_shape(0);
  const Padding mode = padding_of(spec.node());
  const int64_t rank = static_cast<int64_t>(in.size());
  std::vector<int64_t> axes(in.size()), pads = spec.constant(1).to_ints();
  std::iota(axes.begin(), axes.end(), 0);
  if (spec.is_constant(3)) axes = spec.constant(3).to_ints();
  if (pads.size() != 2 * axes.size()) fail(spec.node().label(), ": ", pads.size(), " pads for ", axes.size(), " axes");
  std::vector<int64_t> before(in.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    constexpr int64_t kMost = int64_t{1} << 56;  // offsets fit 64 bits
    if (pads[i] > kMost || pads[i] < -kMost) fail(spec.node().label(), ": a padding of ", pads[i], " is too large");
    before[static_cast<size_t>(normalize_axis(axes[i], rank))] = pads[i];
  }
  Shape out = spec.out_shape();
  if (in.empty()) in = out = {1}, before = {0};
  PadPlan plan;
  int64_t stride = 1;
  for (size_t k = in.size(); k-- > 0;) {
    if (in[k] == 0 && out[k] > 0 && mode != Padding::kConstant) {
      fail(spec.node().label(), ": an axis without elements has none to pad with; use mode constant");
    }
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

bool supports_pad(const NodeSpec& spec) {
  const bool value_fits = !spec.has_input(2) || (spec.in_type(2) == spec.in_type(0) && spec.in_size(2) == 1);
  return is_movable(spec.in_type(0)) && value_fits && spec.is_constant(1) &&
         (!spec.has_input(3) || spec.is_constant(3));
}

// ---- Trilu: copies one side of the k-th diagonal, zeros elsewhere

Prepared prepare_trilu(const NodeSpec& spec) {
  const Shape shape = spec.in_shape(0);
  const int64_t columns = shape.back(), rows = shape[shape.size() - 2], all = spec.in_size(0);
  const int64_t bytes = static_cast<int64_t>(size_of(spec.in_type(0)));
  const bool upper = spec.node().attr("upper", 1) != 0;
  Prepared prepared;
  prepared.run = [=, given = spec.has_input(1)](const Launch& launch) {
    if (all == 0) return;
    // Clamped so that sums with k cannot overflow.
    const int64_t k = given ? std::clamp<int64_t>(*launch.in<int64_t>(1), -rows, columns) : 0;
    parallel_for(all / columns, kElementGrain / columns + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t diagonal = row % rows + k;
        const int64_t first = upper ? std::clamp<int64_t>(diagonal, 0, columns) : 0;
        const int64_t last = upper ? columns : std::clamp<int64_t>(diagonal + 1, 0, columns);
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

bool supports_trilu(const NodeSpec& spec) {
  if (spec.has_input(1) && (spec.in_type(1) != DType::kInt64 || spec.in_size(1) != 1)) return false;
  return is_movable(spec.in_type(0)) && spec.in_shape(0).size() >= 2;
}

// ---- ReverseSequence: reverses the first n elements of each sequence, where n is its length

Prepared prepare_reverse_sequence(const NodeSpec& spec) {
  const Shape shape = spec.in_shape(0);
  const bool batch_first = spec.node().attr("batch_axis", 1) == 0;
  const int64_t batch = shape[batch_first ? 0 : 1], time = shape[batch_first ? 1 : 0];
  const int64_t row =
      spec.in_size(0) / std::max<int64_t>(batch * time, 1) * static_cast<int64_t>(size_of(spec.in_type(0)));
  if (spec.in_size(1) != batch) fail(spec.node().label(), ": ", spec.in_size(1), " lengths for ", batch, " sequences");
  Prepared prepared;
  prepared.explain = [time](const Fault& fault) {
    return concat("sequence ", fault.position, " has length ", fault.value, "; there is room for 0 to ", time);
  };
  prepared.run = [=](const Launch& launch) {
    const int64_t* lengths = launch.in<int64_t>(1);
    for (int64_t b = 0; b < batch; ++b) {
      if (lengths[b] < 0 || lengths[b] > time) return launch.report(1, b, lengths[b]);
    }
    const int64_t batch_stride = batch_first ? time : 1, time_stride = batch_first ? 1 : batch;
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

bool supports_reverse_sequence(const NodeSpec& spec) {
  const int64_t batch = spec.node().attr("batch_axis", 1), time = spec.node().attr("time_axis", 0);
  return is_movable(spec.in_type(0)) && spec.in_type(1) == DType::kInt64 && spec.in_shape(0).size() >= 2 &&
         batch + time == 1 && batch * time == 0;
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
