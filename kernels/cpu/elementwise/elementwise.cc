// The kernels of element-wise operators: the loops of the operators' rows over broadcast operands, in parallel.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "kernels/cpu/elementwise/loops.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/maps.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/geometry/indexing/broadcast.h"

namespace onnx_train::cpu {
namespace {

using Operands = std::array<LoopOperand, Broadcast::kMaxOperands>;

const void* advance(const void* data, int64_t elements, size_t bytes) {
  return static_cast<const char*>(data) + static_cast<size_t>(elements) * bytes;
}

void* advance(void* data, int64_t elements, size_t bytes) {
  return static_cast<char*>(data) + static_cast<size_t>(elements) * bytes;
}

// A loop over operands that are broadcast to the output; operands after those are scalars.
struct BroadcastLoop {
  ElementwiseLoop loop;
  Broadcast broadcast;
  size_t operands;
  std::array<size_t, Broadcast::kMaxOperands> bytes;  // bytes of an element, by operand; 0 for scalars
  size_t result_bytes;

  void run(const Operands& in, void* out) const {
    parallel_for(broadcast.size(), kElementGrain, [&](int64_t begin, int64_t end) {
      Operands run = in;
      broadcast.for_each_run(begin, end, [&](int64_t first, int64_t count, const Broadcast::Offsets& at) {
        for (size_t i = 0; i < run.size(); ++i) run[i].data = advance(in[i].data, at[i], bytes[i]);
        loop(count, run.data(), advance(out, first, result_bytes));
      });
    });
  }
};

Prepared prepare_loop(const ElementwiseRow& row, const NodeSpec& spec) {
  std::vector<Shape> shapes;
  for (int i = 0; i < row.operands; ++i) shapes.push_back(spec.in_shape(i));
  BroadcastLoop loop{
      row.make(spec.node()), Broadcast(spec.out_shape(), shapes), shapes.size(), {}, size_of(spec.out_type())};
  for (size_t i = 0; i < shapes.size(); ++i) loop.bytes[i] = size_of(spec.in_type(static_cast<int>(i)));
  Prepared prepared;
  prepared.run = [loop, inputs = std::min<int>(spec.num_inputs(), std::tuple_size_v<Operands>)](const Launch& launch) {
    Operands in{};
    for (int i = 0; i < inputs; ++i) {
      const auto at = static_cast<size_t>(i);
      in[at] = {launch.inputs[i], at < loop.operands && loop.broadcast.moves(at)};
    }
    loop.run(in, launch.outputs[0]);
  };
  prepared.in_place = in_place_of_equal_inputs(spec, row.operands);
  return prepared;
}

// ---- Variadic: combines the first two operands into the output, then adds one operand at a time.

std::vector<BroadcastLoop> variadic_steps(const ElementwiseRow& row, const NodeSpec& spec) {
  const size_t bytes = size_of(spec.out_type());
  std::vector<BroadcastLoop> steps;
  for (int i = 1; i < spec.num_inputs(); ++i) {
    const Shape before = i == 1 ? spec.in_shape(0) : spec.out_shape();
    steps.push_back(
        {row.make(spec.node()), Broadcast(spec.out_shape(), {before, spec.in_shape(i)}), 2, {bytes, bytes}, bytes});
  }
  return steps;
}

Prepared prepare_variadic(const ElementwiseRow& row, const NodeSpec& spec) {
  Prepared prepared;
  if (spec.num_inputs() == 1) {
    prepared.run = [bytes = static_cast<size_t>(spec.in_size()) * size_of(spec.in_type())](const Launch& launch) {
      if (bytes > 0 && launch.outputs[0] != launch.inputs[0]) std::memcpy(launch.outputs[0], launch.inputs[0], bytes);
    };
    prepared.in_place = {{0, 0}};
    return prepared;
  }
  const ElementwiseLoop scale = row.make_scale(spec.node());
  prepared.run = [steps = variadic_steps(row, spec), scale](const Launch& launch) {
    void* y = launch.outputs[0];
    for (size_t i = 0; i < steps.size(); ++i) {
      const Broadcast& broadcast = steps[i].broadcast;
      steps[i].run({{{i == 0 ? launch.inputs[0] : y, broadcast.moves(0)}, {launch.inputs[i + 1], broadcast.moves(1)}}},
                   y);
    }
    if (!scale) return;
    parallel_for(steps[0].broadcast.size(), kElementGrain, [&](int64_t begin, int64_t end) {
      void* from = advance(y, begin, steps[0].result_bytes);
      const LoopOperand operand{from, true};
      scale(end - begin, &operand, from);
    });
  };
  prepared.in_place = in_place_of_first_two(spec);
  return prepared;
}

Kernel kernel_of(const ElementwiseRow& row) {
  return {row.op, [&row](const NodeSpec& spec) { return row.supports(spec.node()); },
          [&row](const NodeSpec& spec) {
            return row.is_variadic() ? prepare_variadic(row, spec) : prepare_loop(row, spec);
          },
          row.domain};
}

}  // namespace

const std::vector<ElementwiseRow>& elementwise_rows() {
  static const std::vector<ElementwiseRow> rows = [] {
    std::vector<ElementwiseRow> all;
    for (auto* group : {arithmetic_rows, bound_rows, power_rows, function_of_floats_rows, activation_rows,
                        activation_gradient_rows, comparison_rows, logic_rows, cast_rows}) {
      std::vector<ElementwiseRow> part = group();
      std::move(part.begin(), part.end(), std::back_inserter(all));
    }
    return all;
  }();
  return rows;
}

std::vector<Kernel> elementwise_kernels() {
  std::vector<Kernel> kernels;
  for (const ElementwiseRow& row : elementwise_rows()) kernels.push_back(kernel_of(row));
  return kernels;
}

}  // namespace onnx_train::cpu
