// The walk of RNN, GRU and LSTM over time, forward and backward. It has two forms, between which `fastest` chooses: a
// product and a cell's kernels for each step of each direction, like the CPU's, whose loop does not run on the host
// again when the step is captured as a graph; and one persistent kernel for all steps (persistent.h). What needs no
// step, the products with W and the gradient of R, is one product in both.
//
// A walk owns its cell and belongs to one prepared kernel, which runs on one thread at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/cuda/choices/fastest.h"
#include "kernels/cuda/choices/noise.h"
#include "kernels/cuda/recurrent/persistent.h"
#include "kernels/cuda/recurrent/products.h"
#include "kernels/dispatch.h"
#include "kernels/place.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {

// The node as a walk and its cell see it. In a gradient, input `y` has the shape of y [T, D, B, H]; forward `y` is -1.
struct Sequence {
  Sequence(const NodeSpec& spec, int y)
      : recurrence(find_recurrence(spec.node())),
        e(extents_of(spec, recurrence, y)),
        order(order_of(recurrence, e.steps)),
        types(types_of(spec)) {
    for (int i = 0; i < spec.num_inputs(); ++i) has_input.push_back(spec.has_input(i));
    for (int i = 0; i < spec.num_outputs(); ++i) has_output.push_back(spec.has_output(i));
  }

  // Returns null if the input is absent.
  template <typename T>
  const T* in(const Launch& launch, size_t i) const {
    return i < has_input.size() && has_input[i] ? static_cast<const T*>(launch.inputs[i]) : nullptr;
  }
  template <typename T>
  T* out(const Launch& launch, size_t i) const {
    return i < has_output.size() && has_output[i] ? static_cast<T*>(launch.outputs[i]) : nullptr;
  }
  // `lens` is the number of the input with the samples' lengths.
  CellNode cell_node(const Launch& launch, size_t lens) const {
    return CellNode(e, order, recurrence, in<int32_t>(launch, lens));
  }
  template <int kPhase, typename Cell>
  void enqueue_cell(const Launch& launch, const char* name, const Cell& cell, int64_t t, int64_t d) const {
    enqueue_each(launch, name, cell_step<kPhase, Cell>, e.batch * e.hidden, cell, t, d, Divider(e.hidden));
  }
  // The rows of R of a direction, from a gate's first one on.
  template <typename T>
  const T* rows_of(const void* r, int64_t d, int64_t gate) const {
    return static_cast<const T*>(r) + (d * e.gate_row() + gate * e.hidden) * e.hidden;
  }

  // y = h rᵀ for `rows` rows of R, or dh = dy r. Rows of y and dy are `row` elements apart.
  InnerProduct with_transpose(int64_t rows, int64_t y_row, bool accumulate) const {
    Product p;
    p.m = e.batch, p.n = rows, p.k = e.hidden, p.accumulate = accumulate;
    p.a.row_stride = e.hidden;
    p.b.row_stride = 1, p.b.column_stride = e.hidden;
    p.y.row_stride = y_row;
    return InnerProduct(p, types, e.hidden);
  }
  InnerProduct with_rows(int64_t rows, int64_t dy_row, bool accumulate) const {
    Product p;
    p.m = e.batch, p.n = e.hidden, p.k = rows, p.accumulate = accumulate;
    p.a.row_stride = dy_row;
    p.b.row_stride = p.y.row_stride = e.hidden;
    return InnerProduct(p, types, e.hidden);
  }
  // Σ over steps and samples of aᵀ h: a is `rows` columns, `a_row` elements between samples; h is [T B, H].
  InnerProduct outer(int64_t rows, int64_t a_row) const {
    Product p;
    p.m = rows, p.n = e.hidden, p.k = e.samples();
    p.a.row_stride = 1, p.a.column_stride = a_row;
    p.b.row_stride = p.y.row_stride = e.hidden;
    return InnerProduct(p, types, e.hidden);
  }

  Recurrence recurrence;
  Extents e;
  Order order;
  ProductTypes types;
  std::vector<bool> has_input, has_output;
};

// to = from, or zeros if `from` is null.
template <typename T>
void start_state(const Launch& launch, const Extents& e, const T* from, T* to) {
  const size_t bytes = static_cast<size_t>(e.state_size()) * sizeof(T);
  if (bytes == 0) return;
  if (from) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(launch)), "cudaMemcpyAsync");
  } else {
    set_bytes(launch, to, 0, bytes);
  }
}

// Starts the gate sums as b: W's half, plus R's half for the first `whole_gates` elements of a direction.
template <typename T>
__global__ void start_sums(int64_t sums, Divider row, Divider gate_row, int64_t whole_gates, const T* b, T* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= sums) return;
  const int64_t column = i - row.quotient(i) * row.divisor(), d = gate_row.quotient(column);
  const int64_t g = column - d * gate_row.divisor();
  const T* of_direction = b + 2 * d * gate_row.divisor();
  to[i] = g < whole_gates ? of_direction[g] + of_direction[gate_row.divisor() + g] : of_direction[g];
}

// h before each step of each direction, [D, T, B, H]: an operand of the products with the gates' gradients.
template <typename T>
__global__ void copy_h_before(int64_t elements, Extents e, Order order, Divider hidden, Divider batch, Divider steps,
                              const int32_t* lengths, const T* y, const T* h0, T* h_before) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= elements) return;
  const int64_t row = hidden.quotient(i), j = i - row * e.hidden;
  const int64_t td = batch.quotient(row), b = row - td * e.batch;
  const int64_t d = steps.quotient(td), t = td - d * e.steps;
  const int64_t before = order.before(d, t);
  // y is zero in steps that a sample lacks; backwards such steps precede its first one.
  const bool first = order.is_first(d, t) || (order.backwards[d] && !is_live(lengths, before, b));
  const T initial = h0 ? h0[e.state(d, b) + j] : T{0};
  h_before[i] = first ? initial : y[e.value(before, d, b) + j];
}

inline constexpr int kNone = 1 << 20;  // the number of an output that an operator does not have

// ---- Forward: inputs x w r b lens h0; outputs y y_h, and the gates' values as output Cell::kGates. The first
// Cell::kStepGates gates sum h Rᵀ of the step before.
//
//   workspace()                  bytes for its products
//   start(launch)                once per run
//   with_type(recurrence, f)     calls f with the type of the cell (cells.h)
//   with_cell(launch, values, f)   calls f(cell) with the cell of a persistent kernel
//   step(launch, t, d, values)   enqueues a step of a direction: computes h and the gates' values from the sums

template <typename T>
struct ForwardValues {
  T *gates, *h, *y;  // y is null if absent
  bool keeps_gates;  // whether `gates` is read after the step
  void* scratch;     // for products
};

template <template <typename> typename Cell, typename T>
class ForwardWalk {
 public:
  static constexpr int kY = -1, kR = 2, kLengths = 4;

  ForwardWalk(const NodeSpec& spec, const std::optional<PersistentPlan>& plan)
      : s_(spec, kY),
        plan_(plan),
        cell_(spec, s_, &workspace_),
        has_b_(spec.num_inputs() > 3 && spec.has_input(3)),
        input_(input_product(spec.in_shape(0)[2])),
        step_(s_.with_transpose(Cell<T>::kStepGates * s_.e.hidden, s_.e.gate_stride(), true)),
        h_(output_or_scratch(spec, 1, static_cast<size_t>(s_.e.state_size()) * sizeof(T), &workspace_)),
        sums_(output_or_scratch(spec, Cell<T>::kGates,
                                static_cast<size_t>(s_.e.samples() * s_.e.gate_stride()) * sizeof(T), &workspace_)),
        scratch_(workspace_.reserve(std::max({input_.workspace(), step_.workspace(), cell_.workspace()}))),
        exchange_(workspace_.reserve(plan ? plan->workspace(s_.e) : 0)) {}

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) const {
    const Extents& e = s_.e;
    T *sums = static_cast<T*>(address(sums_, launch)), *h = static_cast<T*>(address(h_, launch));
    T* const y = s_.out<T>(launch, 0);
    void* const scratch = address(scratch_, launch);
    if (has_b_) start(launch, sums);
    input_.run(launch, launch.inputs[0], launch.inputs[1], sums, scratch);
    start_state(launch, e, s_.in<T>(launch, 5), h);
    cell_.start(launch);
    if (e.state_size() == 0) return;
    const ForwardValues<T> values{sums, h, y, sums_.kind == OperandPlace::kOutput, scratch};
    if constexpr (std::is_same_v<T, float>) {
      if (plan_) {
        return cell_.with_cell(launch, values, [&](const auto& cell) {
          run_persistent(launch, *plan_, cell, launch.inputs[kR], address(exchange_, launch));
        });
      }
    }
    for (int64_t d = 0; d < e.directions; ++d) {
      for (int64_t i = 0; i < e.steps; ++i) {
        const int64_t t = s_.order.step(d, i);
        step_.run(launch, h + e.state(d, 0), s_.rows_of<T>(launch.inputs[kR], d, 0), sums + e.gate(t, d, 0), scratch);
        cell_.step(launch, t, d, values);
      }
    }
  }

 private:
  // x Wᵀ for all steps and directions.
  InnerProduct input_product(int64_t input) const {
    Product p;
    p.m = s_.e.samples(), p.n = s_.e.gate_stride(), p.k = input, p.accumulate = has_b_;
    p.a.row_stride = input;
    p.b.row_stride = 1, p.b.column_stride = input;
    p.y.row_stride = p.n;
    return InnerProduct(p, s_.types, kVectorBytes);  // whole tensors
  }

  // With linear_before_reset GRU multiplies the last gate's bias of R by r, so the cell adds it.
  void start(const Launch& launch, T* sums) const {
    const Extents& e = s_.e;
    const int64_t count = e.samples() * e.gate_stride();
    const bool whole = Cell<T>::kStepGates == e.gates || !s_.recurrence.linear_before_reset;
    if (count == 0) return;
    enqueue_each(launch, "start_sums", start_sums<T>, count, Divider(e.gate_stride()), Divider(e.gate_row()),
                 whole ? e.gate_row() : Cell<T>::kStepGates * e.hidden, launch.in<T>(3), sums);
  }

  const Sequence s_;
  const std::optional<PersistentPlan> plan_;  // of the persistent kernel; nothing for a walk step by step
  Workspace workspace_;
  const Cell<T> cell_;
  const bool has_b_;
  const InnerProduct input_, step_;
  const OperandPlace h_, sums_, scratch_, exchange_;
};

// ---- Backward: inputs r lens h0, y as input Cell::kY, dy dy_h from Cell::kDy on; outputs dgates dr dh0. With
// kNeedsStates, the cell reads h of the step before.
//
//   start, with_type, with_cell         as above
//   step(launch, t, d, values)          given dh without dy, writes the gradients of the gate sums, and leaves in dh
//                                       what does not pass through the first kStepGates
//   finish(launch, h_before, scratch)   dr of the other gates, and further outputs

template <typename T>
struct BackwardValues {
  const T *dy, *h_before;  // null if absent; h_before: h before each step, [D, T, B, H]
  T *dh, *dgates;
  void* scratch;
};

template <template <typename> typename Cell, typename T>
class BackwardWalk {
 public:
  static constexpr int kY = Cell<T>::kY, kR = 0, kLengths = 1;

  BackwardWalk(const NodeSpec& spec, const std::optional<PersistentPlan>& plan)
      : s_(spec, kY),
        plan_(plan),
        cell_(spec, s_, &workspace_),
        step_(s_.with_rows(Cell<T>::kStepGates * s_.e.hidden, s_.e.gate_stride(), true)),
        dr_(s_.outer(Cell<T>::kStepGates * s_.e.hidden, s_.e.gate_stride())),
        dh_(output_or_scratch(spec, 2, static_cast<size_t>(s_.e.state_size()) * sizeof(T), &workspace_)),
        h_before_(
            workspace_.reserve(needs_states() ? static_cast<size_t>(s_.e.steps * s_.e.state_size()) * sizeof(T) : 0)),
        scratch_(workspace_.reserve(std::max({step_.workspace(), dr_.workspace(), cell_.workspace()}))),
        exchange_(workspace_.reserve(plan ? plan->workspace(s_.e) : 0)) {}

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) const {
    const Extents& e = s_.e;
    const T* dy = s_.in<T>(launch, Cell<T>::kDy);
    T *dgates = launch.out<T>(0), *dh = static_cast<T*>(address(dh_, launch)), *dr = s_.out<T>(launch, 1);
    void* const scratch = address(scratch_, launch);
    const T* h_before = copy_states(launch);
    start_state(launch, e, s_.in<T>(launch, Cell<T>::kDy + 1), dh);
    cell_.start(launch);
    if (e.state_size() > 0) walk(launch, {dy, h_before, dh, dgates, scratch});
    for (int64_t d = 0; dr && d < e.directions; ++d) {
      dr_.run(launch, dgates + d * e.gate_row(), h_before + d * e.samples() * e.hidden,
              dr + d * e.gate_row() * e.hidden, scratch);
    }
    cell_.finish(launch, h_before, scratch);
  }

 private:
  void walk(const Launch& launch, const BackwardValues<T>& values) const {
    const Extents& e = s_.e;
    if constexpr (std::is_same_v<T, float>) {
      if (plan_) {
        return cell_.with_cell(launch, values, [&](const auto& cell) {
          run_persistent(launch, *plan_, cell, launch.inputs[kR], address(exchange_, launch));
        });
      }
    }
    for (int64_t d = 0; d < e.directions; ++d) {
      for (int64_t i = e.steps; i-- > 0;) {
        const int64_t t = s_.order.step(d, i);
        cell_.step(launch, t, d, values);
        // Samples without this step have dgates of zero and add nothing.
        step_.run(launch, values.dgates + e.gate(t, d, 0), s_.rows_of<T>(launch.inputs[kR], d, 0),
                  values.dh + e.state(d, 0), values.scratch);
      }
    }
  }

  bool needs_states() const { return Cell<T>::kNeedsStates || (s_.has_output.size() > 1 && s_.has_output[1]); }

  const T* copy_states(const Launch& launch) const {
    if (!needs_states()) return nullptr;
    const Extents& e = s_.e;
    T* const to = static_cast<T*>(address(h_before_, launch));
    const int64_t count = e.steps * e.state_size();
    if (count == 0) return to;
    enqueue_each(launch, "copy_h_before", copy_h_before<T>, count, e, s_.order, Divider(e.hidden), Divider(e.batch),
                 Divider(e.steps), s_.in<int32_t>(launch, 1), launch.in<T>(Cell<T>::kY), s_.in<T>(launch, 2), to);
    return to;
  }

  const Sequence s_;
  const std::optional<PersistentPlan> plan_;  // of the persistent kernel; nothing for a walk step by step
  Workspace workspace_;
  const Cell<T> cell_;
  const InnerProduct step_, dr_;
  const OperandPlace dh_, h_before_, scratch_, exchange_;
};

// ---- Rows

// Inputs on which the forms are timed.
template <typename T>
__global__ void scale_elements(int64_t elements, T factor, T* x) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < elements) x[i] *= factor;
}
template <typename T>
__global__ void set_lengths(int64_t samples, int64_t steps, int32_t* lengths) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < samples) lengths[i] = static_cast<int32_t>(steps);
}

// Returns the plan of a persistent kernel for the current device, or nothing if it does not run the node.
template <typename Cell>
std::optional<PersistentPlan> persistent_plan(const Extents& e) {
  constexpr int64_t kMostSteps = int64_t{1} << 22;  // counters count the phases of all blocks in 31 bits
  if (e.steps < 2 || e.steps > kMostSteps || e.state_size() == 0) return std::nullopt;
  if (device_attribute(cudaDevAttrCooperativeLaunch) == 0) return std::nullopt;
  const int multiprocessors = num_multiprocessors();
  std::optional<PersistentPlan> plan = plan_persistent(e, Cell::kForward, Cell::kPhases, multiprocessors);
  return plan && is_resident<Cell>(*plan, e, multiprocessors) ? plan : std::nullopt;
}

// Prepares a kernel of Walk<Cell, T> with the type of input 0.
template <template <template <typename> typename, typename> typename Walk, template <typename> typename Cell>
Prepared prepare_recurrence(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&]<typename T>(T) -> Prepared {
    using WalkOf = Walk<Cell, T>;
    const auto make = [&](const std::optional<PersistentPlan>& plan) {
      const auto walk = std::make_shared<const WalkOf>(spec, plan);
      return std::optional<Prepared>({[walk](const Launch& launch) { walk->run(launch); }, walk->workspace()});
    };
    std::vector<Form> forms = {{"step by step", [&] { return make(std::nullopt); }}};
    const Sequence s(spec, WalkOf::kY);
    if constexpr (std::is_same_v<T, float>) {
      const auto plan =
          Cell<T>::with_type(s.recurrence, [&]<typename C>(std::type_identity<C>) { return persistent_plan<C>(s.e); });
      if (plan) forms.push_back({plan->name(s.e), [&make, plan] { return make(plan); }});
    }
    // Noise in R would make the states chaotic, so that the forms' roundings grow to other results.
    const auto set_inputs = [&](const Launch& launch) {
      T* const r = static_cast<T*>(const_cast<void*>(launch.inputs[WalkOf::kR]));
      const auto scale = static_cast<T>(1 / std::sqrt(static_cast<double>(s.e.hidden)));
      enqueue_each(launch, "scale_elements", scale_elements<T>, s.e.directions * s.e.gate_row() * s.e.hidden, scale, r);
      auto* const lengths = const_cast<int32_t*>(s.in<int32_t>(launch, WalkOf::kLengths));
      if (lengths) enqueue_each(launch, "set_lengths", set_lengths<T>, s.e.batch, s.e.steps, lengths);
    };
    return fastest(spec, LibraryProduct::version(), forms, set_inputs);
  });
}

// Returns the rows of an operator, its training form and its gradient.
template <template <typename> typename Forward, template <typename> typename Backward>
std::vector<Kernel> recurrence_rows(const char* op, const char* train, const char* gradient) {
  const auto forward = prepare_recurrence<ForwardWalk, Forward>;
  const auto backward = prepare_recurrence<BackwardWalk, Backward>;
  return {{op, takes_recurrence, forward},
          {train, takes_recurrence, forward, kDomain},
          {gradient, takes_recurrence, backward, kDomain}};
}

}  // namespace onnx_train::cuda
