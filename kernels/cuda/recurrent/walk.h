// The walk of RNN, GRU and LSTM over time, forward and backward, like the CPU's: a product and a cell's kernels for
// each step of each direction. When the step is captured as a graph, this loop does not run on the host again.
//
// A walk owns its cell and belongs to one prepared kernel, which runs on one thread at a time.
#pragma once

#include <algorithm>
#include <memory>

#include "kernels/cuda/recurrent/cells.h"
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
  CellStep step(int64_t t, const int32_t* lengths) const {
    return {e.batch * e.hidden, Divider(e.hidden),         e.gate_stride(),       lengths, t,
            recurrence.clip,    recurrence.round_operands, recurrence.round_gates};
  }
  unsigned blocks() const { return blocks_for(e.batch * e.hidden); }

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
//   workspace()                          bytes for its products
//   start(launch)                        once per run
//   step(launch, step, now)              enqueues a step: computes h and the gates' values from the sums
//
// `now` holds the addresses of sample 0's rows in this step.

template <typename T>
struct ForwardRows {
  int64_t t, d;
  T *gates, *h, *y;  // y is null if absent
  const T* r;        // R of the direction
  bool keeps_gates;  // whether `gates` is read after the step
  void* scratch;     // for products
};

template <template <typename> typename Cell, typename T>
class ForwardWalk {
 public:
  explicit ForwardWalk(const NodeSpec& spec)
      : s_(spec, -1),
        cell_(spec, s_, &workspace_),
        has_b_(spec.num_inputs() > 3 && spec.has_input(3)),
        input_(input_product(spec.in_shape(0)[2])),
        step_(s_.with_transpose(Cell<T>::kStepGates * s_.e.hidden, s_.e.gate_stride(), true)),
        h_(output_or_scratch(spec, 1, static_cast<size_t>(s_.e.state_size()) * sizeof(T), &workspace_)),
        sums_(output_or_scratch(spec, Cell<T>::kGates,
                                static_cast<size_t>(s_.e.samples() * s_.e.gate_stride()) * sizeof(T), &workspace_)),
        scratch_(workspace_.reserve(std::max({input_.workspace(), step_.workspace(), cell_.workspace()}))) {}

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
    for (int64_t d = 0; d < e.directions; ++d) {
      const T* r = launch.in<T>(2) + d * e.gate_row() * e.hidden;
      for (int64_t i = 0; i < e.steps; ++i) {
        const int64_t t = s_.order.step(d, i);
        const ForwardRows<T> now{t,
                                 d,
                                 sums + e.gate(t, d, 0),
                                 h + e.state(d, 0),
                                 y ? y + e.value(t, d, 0) : nullptr,
                                 r,
                                 sums_.kind == OperandPlace::kOutput,
                                 scratch};
        step_.run(launch, now.h, r, now.gates, scratch);
        cell_.step(launch, s_.step(t, s_.in<int32_t>(launch, 4)), now);
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
  Workspace workspace_;
  const Cell<T> cell_;
  const bool has_b_;
  const InnerProduct input_, step_;
  const OperandPlace h_, sums_, scratch_;
};

// ---- Backward: inputs r lens h0, y as input Cell::kY, dy dy_h from Cell::kDy on; outputs dgates dr dh0. With
// kNeedsStates, the cell reads h of the step before.
//
//   start(launch)                       once per run
//   step(launch, step, now)             given dh without dy, writes the gradients of the gate sums, and leaves in dh
//                                       what does not pass through the first kStepGates
//   finish(launch, h_before, scratch)   dr of the other gates, and further outputs

template <typename T>
struct BackwardRows {
  int64_t t, d;
  const T *dy, *before;  // dy is null if absent; `before` is h of the step before
  T *dh, *dgates;
  const T* r;  // R of the direction
  void* scratch;
};

template <template <typename> typename Cell, typename T>
class BackwardWalk {
 public:
  explicit BackwardWalk(const NodeSpec& spec)
      : s_(spec, Cell<T>::kY),
        cell_(spec, s_, &workspace_),
        step_(s_.with_rows(Cell<T>::kStepGates * s_.e.hidden, s_.e.gate_stride(), true)),
        dr_(s_.outer(Cell<T>::kStepGates * s_.e.hidden, s_.e.gate_stride())),
        dh_(output_or_scratch(spec, 2, static_cast<size_t>(s_.e.state_size()) * sizeof(T), &workspace_)),
        h_before_(
            workspace_.reserve(needs_states() ? static_cast<size_t>(s_.e.steps * s_.e.state_size()) * sizeof(T) : 0)),
        scratch_(workspace_.reserve(std::max({step_.workspace(), dr_.workspace(), cell_.workspace()}))) {}

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) const {
    const Extents& e = s_.e;
    const T* dy = s_.in<T>(launch, Cell<T>::kDy);
    T *dgates = launch.out<T>(0), *dh = static_cast<T*>(address(dh_, launch)), *dr = s_.out<T>(launch, 1);
    void* const scratch = address(scratch_, launch);
    const T* h_before = copy_states(launch);
    start_state(launch, e, s_.in<T>(launch, Cell<T>::kDy + 1), dh);
    cell_.start(launch);
    for (int64_t d = 0; e.state_size() > 0 && d < e.directions; ++d) {
      const T* r = launch.in<T>(0) + d * e.gate_row() * e.hidden;
      for (int64_t i = e.steps; i-- > 0;) {
        const int64_t t = s_.order.step(d, i);
        const BackwardRows<T> now{t,
                                  d,
                                  dy ? dy + e.value(t, d, 0) : nullptr,
                                  h_before ? h_before + (d * e.steps + t) * e.batch * e.hidden : nullptr,
                                  dh + e.state(d, 0),
                                  dgates + e.gate(t, d, 0),
                                  r,
                                  scratch};
        cell_.step(launch, s_.step(t, s_.in<int32_t>(launch, 1)), now);
        // Samples without this step have dgates of zero and add nothing.
        step_.run(launch, now.dgates, r, now.dh, scratch);
      }
    }
    for (int64_t d = 0; dr && d < e.directions; ++d) {
      dr_.run(launch, dgates + d * e.gate_row(), h_before + d * e.samples() * e.hidden,
              dr + d * e.gate_row() * e.hidden, scratch);
    }
    cell_.finish(launch, h_before, scratch);
  }

 private:
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
  Workspace workspace_;
  const Cell<T> cell_;
  const InnerProduct step_, dr_;
  const OperandPlace dh_, h_before_, scratch_;
};

// ---- Rows

// Prepares a kernel of Walk<Cell, T> with the type of input 0.
template <template <template <typename> typename, typename> typename Walk, template <typename> typename Cell>
Prepared prepare_recurrence(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&]<typename T>(T) -> Prepared {
    const auto walk = std::make_shared<const Walk<Cell, T>>(spec);
    return {[walk](const Launch& launch) { walk->run(launch); }, walk->workspace()};
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
