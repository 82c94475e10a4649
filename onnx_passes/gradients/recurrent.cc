// Gradients of RNN, GRU and LSTM. A function undoes the steps and gives the gradients of the gates' sums for all of
// them (functions/recurrent.cc); what is left are products over all steps at once:
//   dX = dgates W    dW = Σ dgatesᵀ X    dB = Σ dgates, for W and for R
#include "onnx_passes/operators/recurrent.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"

namespace onnx_train {
namespace {

using Kind = GateActivation::Kind;

// Slopes are computed from values: that takes a function whose value tells its slope.
std::string activation_obstacle(const GateActivation& a) {
  const bool folds = (a.kind == Kind::kLeakyRelu && a.alpha < 0) || (a.kind == Kind::kElu && a.alpha < 0);
  const bool constant = a.kind == Kind::kScaledTanh && a.alpha == 0;
  const bool jumps = a.kind == Kind::kThresholdedRelu && a.alpha < 0;
  if (!folds && !constant && !jumps) return "";
  return std::string("its activation ") + a.name() +
         " has an alpha for which the value does not tell the slope; use another alpha";
}

std::string obstacle(const Node& node) {
  const Recurrence r = find_recurrence(node);
  if (r.clip != 0) return "its attribute clip hides where the slope is zero; export it without clip";
  for (const GateActivation& activation : r.activations) {
    if (const std::string reason = activation_obstacle(activation); !reason.empty()) return reason;
  }
  return "";
}

// What the rules of all three have in common. Values are turned to have the sequence first, and gradients back.
class RecurrentGradient {
 public:
  explicit RecurrentGradient(Grad& g) : g_(g), recurrence_(find_recurrence(g.node())) {
    turned_ = recurrence_.batch_major;
    recurrence_.batch_major = false;
  }

  const Recurrence& recurrence() const { return recurrence_; }
  Attrs attrs() const { return attributes_of(recurrence_); }
  // Input i with the sequence first; Var() when it is left out.
  Var x(int i) const {
    const Var value = i < g_.num_inputs() ? g_.x(i) : Var();
    return value && i != 4 && turned_ && (i == 0 || i == 5 || i == 6) ? transpose(value, {1, 0, 2}) : value;
  }
  Var y() const {
    Var y = g_.y(0);
    if (!y) {  // left out: once more, with it
      std::vector<Var> inputs;
      for (int i = 0; i < g_.num_inputs(); ++i) inputs.push_back(g_.x(i));
      y = g_.b().like(g_.node(), inputs)[0];
    }
    return turned_ ? transpose(y, {1, 2, 0, 3}) : y;
  }
  // The outputs of the training form: those of the node itself where mixed precision has made it one.
  std::vector<Var> training_outputs(const char* op, int num_inputs) const {
    const int count = outputs_in_training(recurrence_);
    std::vector<Var> values;
    if (g_.node().domain() == kDomain) {
      for (int i = 0; i < count; ++i) values.push_back(g_.y(i));
    } else {
      for (int i = 0; i < num_inputs; ++i) values.push_back(x(i));
      values = call(g_.b(), op, count, values, attrs());
    }
    return values;
  }
  // Marks a value that a function of ours has rounded already, so that lowering stores 16 bits.
  Var operand(Var value) const { return stored(value, recurrence_.round_operands); }
  Var gate_values(Var value) const { return stored(value, recurrence_.round_gates); }
  Var dy(int i) const {
    const Var value = i < g_.num_outputs() ? g_.dy(i) : Var();
    if (!value || !turned_) return value;
    return i == 0 ? transpose(value, {1, 2, 0, 3}) : transpose(value, {1, 0, 2});
  }
  Var state_gradient(Var dstate) const { return turned_ ? transpose(dstate, {1, 0, 2}) : dstate; }

  // The gradients of `count` inputs from the outputs of the cell's gradient: those of X, W, R, B and the initial h.
  Gradients gradients(size_t count, const std::vector<Var>& steps) const {
    const Var dgates = operand(steps[0]);
    Gradients all(count);
    all[0] = dx(dgates);
    all[1] = dw(dgates);
    all[2] = steps[1];
    const bool has_dn = recurrence_.cell == Recurrence::kGru && recurrence_.linear_before_reset;
    if (g_.needs(3)) all[3] = dbias(dgates, has_dn ? operand(steps[3]) : Var());
    if (g_.needs(5)) all[5] = state_gradient(steps[2]);
    return all;
  }

 private:
  Var dx(Var dgates) const {
    if (!g_.needs(0)) return {};
    const Var w = g_.x(1);
    const Var rows = reshape(w, concat({g_.b().ints({-1}), slice(shape_of(w), 2, 3, 0)}, 0));
    const Var dx = matmul(dgates, rows);
    return turned_ ? transpose(dx, {1, 0, 2}) : dx;
  }
  Var dw(Var dgates) const {
    if (!g_.needs(1)) return {};
    const Var drows = flatten_to_2d(dgates, 2);
    return reshape_like(gemm(drows, flatten_to_2d(x(0), 2), true, false), g_.x(1));
  }
  // One half of b's gradient: [D, n].
  Var bias_sum(Var dgates) const {
    return reshape(reduce_sum(dgates, {0, 1}, /*keepdims=*/false), {recurrence_.directions(), -1});
  }
  // R's bias after the reset gate takes its gradient from dn, if there is one.
  Var dbias(Var dgates, Var dn) const {
    const Var sum = bias_sum(dgates);
    if (!dn) return concat({sum, sum}, 1);
    const auto parts = sum.builder().ops("Split", 3, {sum}, {{"axis", 1}, {"num_outputs", 3}});
    return concat({sum, parts[0], parts[1], bias_sum(dn)}, 1);
  }

  static Var stored(Var value, bool rounded) {
    return rounded ? call(value.builder(), "RoundTo", {value}, {{"to", static_cast<int>(DType::kBFloat16)}}) : value;
  }

  Grad& g_;
  Recurrence recurrence_;
  bool turned_ = false;
};

Gradients lstm(Grad& g) {
  const RecurrentGradient rule(g);
  const Attrs attrs = rule.attrs();
  const bool peepholes = static_cast<bool>(rule.x(7));
  const auto forward = rule.training_outputs("LSTMTrain", 8);
  const int wanted = peepholes ? 5 : g.needs(5) || g.needs(6) ? 4 : 2;
  const auto steps = call(g.b(), "LSTMGrad", wanted,
                          {rule.x(2), rule.x(4), rule.x(5), rule.x(6), rule.x(7), rule.operand(forward[0]),
                           rule.gate_values(forward[3]), forward[4], rule.dy(0), rule.dy(1), rule.dy(2)},
                          attrs);
  Gradients gradients = rule.gradients(8, steps);
  if (g.needs(6)) gradients[6] = rule.state_gradient(steps[3]);
  if (peepholes) gradients[7] = steps[4];
  return gradients;
}

Gradients gru(Grad& g) {
  const RecurrentGradient rule(g);
  const Attrs attrs = rule.attrs();
  const bool linear = rule.recurrence().linear_before_reset;
  const auto forward = rule.training_outputs("GRUTrain", 6);
  const Var candidates = linear ? rule.gate_values(forward[3]) : Var();
  const auto steps = call(g.b(), "GRUGrad", linear ? 4 : 3,
                          {rule.x(2), rule.x(4), rule.x(5), rule.operand(forward[0]), rule.gate_values(forward[2]),
                           candidates, rule.dy(0), rule.dy(1)},
                          attrs);
  return rule.gradients(6, steps);
}

Gradients rnn(Grad& g) {
  const RecurrentGradient rule(g);
  const auto steps =
      call(g.b(), "RNNGrad", 3, {rule.x(2), rule.x(4), rule.x(5), rule.operand(rule.y()), rule.dy(0), rule.dy(1)},
           rule.attrs());
  return rule.gradients(6, steps);
}

}  // namespace

std::vector<GradientRule> recurrent_rules() {
  return {
      {"LSTM", lstm, Trait::kNone, "", obstacle},
      {"GRU", gru, Trait::kNone, "", obstacle},
      {"RNN", rnn, Trait::kNone, "", obstacle},
      // What mixed precision makes of them.
      {"LSTMTrain", lstm, Trait::kNone, kDomain, obstacle, 3},
      {"GRUTrain", gru, Trait::kNone, kDomain, obstacle, 2},
      {"RNNTrain", rnn, Trait::kNone, kDomain, obstacle},
  };
}

}  // namespace onnx_train
