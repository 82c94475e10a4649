// What the bodies of recurrent operators have in common: activation functions of gates and their slopes, states of one
// direction, the steps that a sequence has. Used by recurrent.cc only.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/functions/body.h"
#include "onnx_passes/operators/recurrent.h"

namespace onnx_train {

// Floats have the type of r.
class CellBody : public Body {
 public:
  // `op` with the given input names, of which the call may leave some out, and output names, separated by commas.
  CellBody(const char* op, const std::string& inputs, const std::string& outputs, const FunctionCall& call);

  const Recurrence& recurrence() const { return recurrence_; }
  bool backwards(int64_t direction) const { return recurrence_.backwards[static_cast<size_t>(direction)]; }

  Term of_direction(const Term& x, int64_t direction, int axis);  // x[.., direction, ..]
  Term of_direction(const char* name, int64_t direction, int axis) {
    return of_direction(input(name), direction, axis);
  }
  // The first state of a direction: the input's, or zeros of [batch, hidden].
  Term first_state(const std::string& name, int64_t direction);
  // x's elements [T, ..] as the step before saw them: behind `first` [..].
  Term previous(const Term& values, const Term& first, int64_t direction);
  Term live();  // bool [T, B, 1]: which samples have a step t; where there are lengths

  Term activate(const GateActivation& activation, const Term& x);
  // dx of y = activation(x), from y and dy.
  Term differentiate(const GateActivation& activation, const Term& y, const Term& dy);
  // In mixed precision, x rounded to bfloat16: what goes into a product, and the gates' values.
  Term operand(const Term& x) { return recurrence_.round_operands ? rounded(x) : x; }
  Term gate_values(const Term& x) { return recurrence_.round_gates ? rounded(x) : x; }

  // Body::scan, in whose step where_live says which samples have the step.
  Terms steps(const Terms& states, Terms inputs, bool backwards, const Step& step);
  // value where the sample has this step, otherwise `otherwise`; `value` itself where there are no lengths.
  Term where_live(const Term& value, const Term& otherwise);

 private:
  Term slope(const GateActivation& activation, const Term& y);
  Term rounded(const Term& x) { return cast_like(cast(x, DType::kBFloat16), x); }
  Term sequence() { return input(has("x") ? "x" : "y"); }

  Recurrence recurrence_;
  Term live_now_;  // in a step
};

// The values of all directions on a new axis, or along one that is there.
Term stacked(Terms values, int axis);
Terms split(const Term& x, int parts, int axis);

}  // namespace onnx_train
