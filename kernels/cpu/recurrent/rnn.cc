// RNN and its gradient (functions/recurrent.cc has the formulas).
#include "kernels/cpu/recurrent/gates.h"
#include "kernels/cpu/recurrent/recurrent.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// Inputs x w r b lens h0; outputs y y_h.
template <typename T, typename Operand>
class RnnForward {
 public:
  explicit RnnForward(const NodeSpec& spec)
      : e_{spec.in_shape(0)[0], spec.in_shape(0)[1], spec.in_shape(2)[0], spec.in_shape(2)[2], 1},
        recurrence_(find_recurrence(spec.node())),
        order_{recurrence_.backwards, e_.steps},
        parts_(cut_batch(e_)),
        inputs_(spec),
        input_product_(e_, spec.in_shape(0)[2], inputs_.has(3), {true}, &workspace_),
        step_(parts_, product_with_transpose(e_, e_.hidden, e_.gate_stride()), e_.directions, &workspace_),
        h0_(spec, 5, e_, &workspace_),
        state_(spec, e_, parts_.size(), &workspace_),
        y_(spec, 0) {
    sums_ = workspace_.reserve(static_cast<size_t>(e_.samples() * e_.gate_stride()) * sizeof(T));
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    T* sums = static_cast<T*>(address(sums_, launch));
    const Operand* h0 = h0_.get(launch);
    input_product_.run(launch, launch.in<Operand>(0), launch.in<Operand>(1), inputs_.get<T>(launch, 3), sums);
    step_.pack(launch, launch.in<Operand>(2), e_.hidden * e_.hidden);
    for_each_part<T>(parts_, [&](const Part& part) { run_part(launch, part, h0, sums); });
  }

 private:
  void run_part(const Launch& launch, const Part& part, const Operand* h0, T* sums) {
    const int64_t d = part.direction, n = e_.hidden;
    const int32_t* lengths = inputs_.get<int32_t>(launch, 4);
    const Stored<T> y = y_.get(launch);
    Operand* h = state_.start(launch, part, h0);
    for (int64_t i = 0; i < e_.steps; ++i) {
      const int64_t t = order_.step(d, i);
      step_.run(launch, part, h + e_.state(d, part.first), sums + e_.gate(t, d, part.first));
      for (int64_t b = part.first; b < part.first + part.rows; ++b) {
        Operand* h_row = h + e_.state(d, b);
        const bool live = is_live(lengths, t, b);
        if (live) {
          T* fresh = state_.fresh(launch, part, h_row);
          activate(recurrence_.activation(d, 0), recurrence_.clip, n, sums + e_.gate(t, d, b), fresh);
          state_.store(fresh, h_row);
        }
        if (y) y.write(live, e_.value(t, d, b), n, h_row);
      }
    }
    state_.finish(launch, part);
  }

  Extents e_;
  Recurrence recurrence_;
  Order order_;
  std::vector<Part> parts_;
  OptionalInputs inputs_;
  Workspace workspace_;
  InputProduct<Operand> input_product_;
  StepProduct<Operand> step_;
  FirstState<Operand> h0_;
  HiddenState<T, Operand> state_;
  StoredOutput<T> y_;
  Place sums_;
};

// Inputs r lens h0 y dy dy_h; outputs dgates dr dh0.
template <typename T, typename Operand>
class RnnBackward {
 public:
  explicit RnnBackward(const NodeSpec& spec)
      : e_{spec.in_shape(3)[0], spec.in_shape(3)[2], spec.in_shape(3)[1], spec.in_shape(3)[3], 1},
        recurrence_(find_recurrence(spec.node())),
        order_{recurrence_.backwards, e_.steps},
        parts_(cut_batch(e_)),
        inputs_(spec),
        step_(parts_, product_with_rows(e_, e_.hidden, e_.gate_stride()), e_.directions, &workspace_),
        dr_(e_, e_.hidden, e_.gate_stride(), &workspace_),
        h0_(spec, 2, e_, &workspace_),
        h_before_(workspace_.reserve(static_cast<size_t>(e_.steps * e_.state_size()) * sizeof(Operand))),
        rows_(workspace_.reserve(parts_.size() * static_cast<size_t>(2 * e_.hidden) * sizeof(T))) {
    dh_ = output_or_scratch(spec, 2, static_cast<size_t>(e_.state_size()) * sizeof(T), &workspace_);
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    Operand* h_before = static_cast<Operand*>(address(h_before_, launch));
    const Operand* h0 = h0_.get(launch);
    step_.pack(launch, launch.in<Operand>(0), e_.hidden * e_.hidden);
    for_each_part<T>(parts_, [&](const Part& part) {
      run_part(launch, part);
      copy_h_before(e_, order_, part, inputs_.get<int32_t>(launch, 1), launch.in<Operand>(3), h0, h_before);
    });
    for (int64_t d = 0; launch.out<T>(1) && d < e_.directions; ++d) {
      dr_.run(launch, launch.out<Operand>(0) + d * e_.hidden, h_before + d * e_.samples() * e_.hidden,
              launch.out<T>(1) + d * e_.hidden * e_.hidden);
    }
  }

 private:
  void run_part(const Launch& launch, const Part& part) {
    const int64_t d = part.direction, n = e_.hidden;
    const int32_t* lengths = inputs_.get<int32_t>(launch, 1);
    const Stored<T> y = inputs_.stored<T>(launch, 3), dy = inputs_.stored<T>(launch, 4);
    Operand* dgates = launch.out<Operand>(0);
    T* dh = static_cast<T*>(address(dh_, launch));
    T *row = static_cast<T*>(address(rows_, launch)) + static_cast<int64_t>(part.index) * 2 * n, *dgate_row = row + n;
    start_state(e_, part, inputs_.get<T>(launch, 5), dh);
    for (int64_t i = e_.steps; i-- > 0;) {
      const int64_t t = order_.step(d, i);
      for (int64_t b = part.first; b < part.first + part.rows; ++b) {
        Operand* dgate = dgates + e_.gate(t, d, b);
        T* dh_row = dh + e_.state(d, b);
        if (!is_live(lengths, t, b)) {
          std::fill(dgate, dgate + n, Operand{});
          continue;
        }
        if (dy) add(n, dy.read(e_.value(t, d, b), n, row), dh_row);
        std::copy(dh_row, dh_row + n, dgate_row);
        differentiate(recurrence_.activation(d, 0), n, y.read(e_.value(t, d, b), n, row), dgate_row);
        to_operand(recurrence_.round_operands, n, dgate_row, dgate);
        std::fill(dh_row, dh_row + n, T{0});
      }
      // Samples without this step have dgates of zero and add nothing.
      step_.run(launch, part, dgates + e_.gate(t, d, part.first), dh + e_.state(d, part.first));
    }
  }

  Extents e_;
  Recurrence recurrence_;
  Order order_;
  std::vector<Part> parts_;
  OptionalInputs inputs_;
  Workspace workspace_;
  StepProduct<Operand> step_;
  OuterProduct<Operand> dr_;
  FirstState<Operand> h0_;
  Place h_before_, rows_, dh_;
};

}  // namespace

std::vector<Kernel> rnn_kernels() {
  const auto takes_bfloat16_gradient = [](const NodeSpec& spec) {
    return takes_bfloat16_backward(spec, 3, {0, 2, 3, 4});
  };
  return {
      {"RNN", takes_recurrence, prepare_recurrence<RnnForward>},
      {"RNNTrain", takes_recurrence, prepare_recurrence<RnnForward>, kDomain},
      {"RNNGrad", takes_recurrence, prepare_recurrence<RnnBackward>, kDomain},
      {"RNNTrain", takes_bfloat16_forward, prepare_recurrence<RnnForward>, kDomain},
      {"RNNGrad", takes_bfloat16_gradient, prepare_recurrence<RnnBackward>, kDomain},
  };
}

}  // namespace onnx_train::cpu
