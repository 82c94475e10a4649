// The walk of a recurrent kernel over time, forward and backward, which RNN, GRU and LSTM share. A walk multiplies by W
// and R, keeps the states and the optional outputs, and skips the steps that a sample does not have. A cell computes
// one step of one sample; it is constructed from (spec, sequence, workspace). Layouts are those of
// functions/recurrent.cc.
//
// A walk owns its cell and belongs to one prepared kernel, which runs on one thread at a time; within a run, different
// threads walk different parts.
#pragma once

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/cpu/recurrent/recurrent.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {

// The node as a walk and its cell see it. In a gradient, input `y` has the shape of y [T, D, B, H]; forward `y` is -1.
struct Sequence {
  Sequence(const NodeSpec& spec, int y)
      : inputs(spec),
        recurrence(find_recurrence(spec.node())),
        e(extents_of(spec, recurrence, y)),
        order(order_of(recurrence, e.steps)),
        parts(cut_batch(e)) {}

  OptionalInputs inputs;
  Recurrence recurrence;
  Extents e;
  Order order;
  std::vector<BatchPart> parts;
};

constexpr int kNone = 1 << 20;  // the number of an output that an operator does not have

// The argument of a cell: sample b of the part in step t. Calls for all samples of the part pass its first sample.
struct Step {
  const Launch& launch;
  const BatchPart& part;
  int64_t t, b;

  int64_t d() const { return part.direction; }
};

// ---- Forward: inputs x w r b lens h0; outputs y y_h, and the gates' values as output Cell::kGates. The first
// Cell::kStepGates gates sum h Rᵀ of the step before. A cell with kReadsState finds that h in `h`.
//
//   begin(launch)                once per run
//   start(step)                  once per part
//   finish_sums(step, h, sums)   completes the sums of the other gates of all samples
//   forward(step, gate, h)       computes h from the sums in `gate`, which become the gates' values
//   store(step, live)            writes further outputs: zeros if the sample does not have the step

template <typename Cell>
class ForwardWalk {
  using T = typename Cell::T;
  using Operand = typename Cell::Operand;

 public:
  explicit ForwardWalk(const NodeSpec& spec)
      : s_(spec, -1),
        input_product_(s_.e, spec.in_shape(0)[2], s_.inputs.has(3), gates_with_whole_bias(), &workspace_),
        step_(s_.parts, product_with_transpose(s_.e, Cell::kStepGates * s_.e.hidden, s_.e.gate_stride()),
              s_.e.directions, &workspace_),
        h0_(spec, 5, s_.e, &workspace_),
        state_(spec, s_.e, s_.parts.size(), &workspace_),
        y_(spec, 0),
        gates_(spec, Cell::kGates),
        cell_(spec, s_, &workspace_) {
    const size_t all = static_cast<size_t>(s_.e.samples() * s_.e.gate_stride()) * sizeof(T);
    sums_ = gates_.is_narrow() ? workspace_.reserve(all) : output_or_scratch(spec, Cell::kGates, all, &workspace_);
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    T* sums = static_cast<T*>(address(sums_, launch));
    const Operand* h0 = h0_.get(launch);
    input_product_.run(launch, launch.in<Operand>(0), launch.in<Operand>(1), s_.inputs.get<T>(launch, 3), sums);
    step_.pack(launch, launch.in<Operand>(2), s_.e.gate_row() * s_.e.hidden);
    cell_.begin(launch);
    for_each_part<T>(s_.parts, [&](const BatchPart& part) { run_part(launch, part, h0, sums); });
  }

 private:
  // With linear_before_reset GRU multiplies the last gate's bias of R by r, so the cell adds it.
  std::vector<bool> gates_with_whole_bias() const {
    std::vector<bool> whole(static_cast<size_t>(s_.e.gates), true);
    if (Cell::kStepGates < s_.e.gates && s_.recurrence.linear_before_reset) whole.back() = false;
    return whole;
  }

  void run_part(const Launch& launch, const BatchPart& part, const Operand* h0, T* sums) {
    const Extents& e = s_.e;
    const int64_t d = part.direction, n = e.hidden;
    const int32_t* lengths = s_.inputs.get<int32_t>(launch, 4);
    const Stored<T> y = y_.get(launch), gates = gates_.get(launch);
    const bool rounds_gates = gates && s_.recurrence.round_gates && !gates_.is_narrow();
    Operand* h = state_.start(launch, part, h0);
    cell_.start({launch, part, 0, part.first});
    for (int64_t i = 0; i < e.steps; ++i) {
      const int64_t t = s_.order.step(d, i);
      step_.run(launch, part, h + e.state(d, part.first), sums + e.gate(t, d, part.first));
      cell_.finish_sums({launch, part, t, part.first}, h, sums);
      for (int64_t b = part.first; b < part.first + part.rows; ++b) {
        const Step step{launch, part, t, b};
        T* gate = sums + e.gate(t, d, b);
        Operand* h_row = h + e.state(d, b);
        const bool live = is_live(lengths, t, b);
        if (live) {
          T* now = Cell::kReadsState ? state_.load(launch, part, h_row) : state_.fresh(launch, part, h_row);
          cell_.forward(step, gate, now);
          state_.store(now, h_row);
          if (rounds_gates) to_operand(true, e.gate_row(), gate, gate);
        }
        if (gates) gates.write(live, e.gate(t, d, b), e.gate_row(), gate);
        if (y) y.write(live, e.value(t, d, b), n, h_row);
        cell_.store(step, live);
      }
    }
    state_.finish(launch, part);
  }

  const Sequence s_;
  Workspace workspace_;
  InputProduct<Operand> input_product_;
  StepProduct<Operand> step_;
  FirstState<Operand> h0_;
  HiddenState<T, Operand> state_;
  StoredOutput<T> y_, gates_;
  Cell cell_;
  OperandPlace sums_;  // gate sums, then gate values
};

// ---- Backward: inputs r lens h0, y as input Cell::kY, dy dy_h from Cell::kDy on; outputs dgates dr dh0. With
// kNeedsStates, the cell reads h of the step before.
//
//   begin(launch), end(launch)                once per run
//   start(step)                               once per part
//   backward(step, before, dh, dgate, rows)   given dh, writes the gradients of the gate sums, and leaves in dh what
//                                             does not pass through the first kStepGates; `before` is h of the step
//                                             before; 2 gate_row() elements at `rows` are free
//   skip(step)                                the same for a step that the sample does not have; dgate is zero
//   finish_gradients(step, before, dh, rows)  undoes finish_sums, before dh += dgates R
//   add_to_dr(launch, d, before)              dr of the other gates of a direction

template <typename Cell>
class BackwardWalk {
  using T = typename Cell::T;
  using Operand = typename Cell::Operand;

 public:
  explicit BackwardWalk(const NodeSpec& spec)
      : s_(spec, Cell::kY),
        step_(s_.parts, product_with_rows(s_.e, Cell::kStepGates * s_.e.hidden, s_.e.gate_stride()), s_.e.directions,
              &workspace_),
        dr_(s_.e, Cell::kStepGates * s_.e.hidden, s_.e.gate_stride(), &workspace_),
        h0_(spec, 2, s_.e, &workspace_),
        keeps_dr_(spec.num_outputs() > 1 && spec.has_output(1)),
        cell_(spec, s_, &workspace_) {
    dh_ = output_or_scratch(spec, 2, static_cast<size_t>(s_.e.state_size()) * sizeof(T), &workspace_);
    rows_ = workspace_.reserve(s_.parts.size() * static_cast<size_t>(rows_of_part()) * sizeof(T));
    if (needs_states()) {
      h_before_ = workspace_.reserve(static_cast<size_t>(s_.e.steps * s_.e.state_size()) * sizeof(Operand));
    }
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    const Extents& e = s_.e;
    const Operand *h0 = h0_.get(launch), *y = launch.in<Operand>(Cell::kY);
    Operand* h_before = needs_states() ? static_cast<Operand*>(address(h_before_, launch)) : nullptr;
    step_.pack(launch, launch.in<Operand>(0), e.gate_row() * e.hidden);
    cell_.begin(launch);
    for_each_part<T>(s_.parts, [&](const BatchPart& part) {
      if (h_before) copy_h_before(e, s_.order, part, s_.inputs.get<int32_t>(launch, 1), y, h0, h_before);
      run_part(launch, part, h_before);
    });
    for (int64_t d = 0; keeps_dr_ && d < e.directions; ++d) {
      const Operand* of_direction = h_before + d * e.samples() * e.hidden;
      dr_.run(launch, launch.out<Operand>(0) + d * e.gate_row(), of_direction,
              launch.out<T>(1) + d * e.gate_row() * e.hidden);
      cell_.add_to_dr(launch, d, of_direction);
    }
    cell_.end(launch);
  }

 private:
  bool needs_states() const { return Cell::kNeedsStates || keeps_dr_; }
  int64_t rows_of_part() const { return 2 * s_.e.gate_row() + s_.e.hidden; }  // the cell's rows, and dy of a sample

  void run_part(const Launch& launch, const BatchPart& part, const Operand* h_before) {
    const Extents& e = s_.e;
    const int64_t d = part.direction, n = e.hidden;
    const int32_t* lengths = s_.inputs.get<int32_t>(launch, 1);
    const Stored<T> dy = s_.inputs.stored<T>(launch, Cell::kDy);
    Operand* dgates = launch.out<Operand>(0);
    T* dh = static_cast<T*>(address(dh_, launch));
    T* rows = static_cast<T*>(address(rows_, launch)) + static_cast<int64_t>(part.index) * rows_of_part();
    T* dy_row = rows + 2 * e.gate_row();
    start_state(e, part, s_.inputs.get<T>(launch, Cell::kDy + 1), dh);
    cell_.start({launch, part, 0, part.first});
    for (int64_t i = e.steps; i-- > 0;) {
      const int64_t t = s_.order.step(d, i);
      const Operand* before = h_before ? h_before + (d * e.steps + t) * e.batch * n : nullptr;
      for (int64_t b = part.first; b < part.first + part.rows; ++b) {
        Operand* dgate = dgates + e.gate(t, d, b);
        T* dh_row = dh + e.state(d, b);
        if (is_live(lengths, t, b)) {
          if (dy) add(n, dy.read(e.value(t, d, b), n, dy_row), dh_row);
          cell_.backward({launch, part, t, b}, before ? before + b * n : nullptr, dh_row, dgate, rows);
        } else {
          std::fill_n(dgate, e.gate_row(), Operand{});
          cell_.skip({launch, part, t, b});
        }
      }
      cell_.finish_gradients({launch, part, t, part.first}, before, dh, rows);
      // Samples without this step have dgates of zero and add nothing.
      step_.run(launch, part, dgates + e.gate(t, d, part.first), dh + e.state(d, part.first));
    }
  }

  const Sequence s_;
  Workspace workspace_;
  StepProduct<Operand> step_;
  OuterProduct<Operand> dr_;
  FirstState<Operand> h0_;
  bool keeps_dr_;
  Cell cell_;
  OperandPlace dh_, rows_, h_before_;
};

// ---- Rows

// Prepares a kernel of Walk<Cell<T, Operand>> with the types that input 0 asks for.
template <template <typename> typename Walk, template <typename, typename> typename Cell>
Prepared prepare_recurrence(const NodeSpec& spec) {
  const auto prepare = [&]<typename T, typename Operand>(T, Operand) -> Prepared {
    const auto walk = std::make_shared<Walk<Cell<T, Operand>>>(spec);
    return {[walk](const Launch& launch) { walk->run(launch); }, walk->workspace(), {}};
  };
  if (spec.in_type() == DType::kBFloat16) return prepare(float{}, BFloat16{});
  return dispatch_float(spec.in_type(), [&](auto zero) { return prepare(zero, zero); });
}

// Returns the rows of an operator, its training form and its gradient; `bfloat16_gradient` says whether the gradient
// supports bfloat16 operands.
template <template <typename, typename> typename Forward, template <typename, typename> typename Backward>
std::vector<Kernel> recurrence_rows(const char* op, const char* train, const char* gradient,
                                    bool (*bfloat16_gradient)(const NodeSpec&)) {
  const auto forward = prepare_recurrence<ForwardWalk, Forward>;
  const auto backward = prepare_recurrence<BackwardWalk, Backward>;
  return {{op, takes_recurrence, forward},
          {train, takes_recurrence, forward, kDomain},
          {gradient, takes_recurrence, backward, kDomain},
          {train, takes_bfloat16_forward, forward, kDomain},
          {gradient, bfloat16_gradient, backward, kDomain}};
}

}  // namespace onnx_train::cpu
