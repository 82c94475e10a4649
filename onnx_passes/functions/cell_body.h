// What the bodies of recurrent operators have in common: activation functions of gates and their slopes, states of one
// direction, the steps that a sequence has. Used by the bodies of recurrent.cc's families only.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/functions/body_text.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/recurrent.h"

namespace onnx_train {

// The inputs of one call by name, in the function's order; those left out are not there.
class CellBody {
 public:
  // `op` with the given input names, of which the call may leave some out, and output names.
  CellBody(const char* op, std::vector<std::string> inputs, std::vector<std::string> outputs, const FunctionCall& call);

  const Recurrence& recurrence() const { return recurrence_; }
  bool has(const std::string& input) const;
  BodyText& outer() { return outer_; }
  // The lines of the step that the next scan() takes.
  BodyText& step() { return step_; }
  std::string op(const std::string& op, const std::vector<std::string>& inputs, const std::string& attrs = "");
  std::string outer_op(const std::string& op, const std::vector<std::string>& inputs, const std::string& attrs = "");

  // ---- Values around the steps
  std::string constant(double value);                                               // a scalar of the operands' type
  std::string ints(const std::vector<int64_t>& values);                             // int64[n]
  std::string of_direction(const std::string& value, int64_t direction, int axis);  // value[.., direction, ..]
  // The first state of a direction: `input`'s, or zeros of [batch, hidden].
  std::string first_state(const std::string& input, int64_t direction);
  // x's elements [T, ..] as the step before saw them: behind `first` [..].
  std::string previous(const std::string& values, const std::string& first, int64_t direction);
  std::string live() const { return "live"; }  // bool [T, B, 1]: which samples have a step t; where there are lengths

  // ---- One step
  std::string activate(const GateActivation& activation, const std::string& x);
  // dx of y = activation(x), from y and dy.
  std::string differentiate(const GateActivation& activation, const std::string& y, const std::string& dy);
  // value where the sample has this step, otherwise `otherwise`; `value` itself where there are no lengths.
  std::string where_live(const std::string& value, const std::string& otherwise);

  // In mixed precision, x rounded to bfloat16: what goes into a product, in the step and outside, and the gates'
  // values.
  std::string operand(const std::string& x);
  std::string outer_operand(const std::string& x);
  std::string gate_values(const std::string& x);

  // A Scan over the step's lines. `states` are (name in the step, first value, name of the next in the step);
  // `inputs` (name in the step, values); `outputs` names in the step. Returns the last states, then the outputs.
  struct State {
    std::string name, first, next;
  };
  struct Input {
    std::string name, values;
  };
  std::vector<std::string> scan(const std::vector<State>& states, std::vector<Input> inputs,
                                const std::vector<std::string>& outputs, bool backwards);

  // output = the directions' values next to each other on a new axis, or along one that is there.
  void stack(const std::string& output, const std::vector<std::string>& values, int axis);
  void join(const std::string& output, const std::vector<std::string>& values, int axis);

  FunctionText finish() const;

 private:
  std::string slope(const GateActivation& activation, const std::string& y);
  void add_live();

  std::string op_;
  std::vector<std::string> inputs_, outputs_;
  std::vector<bool> given_;
  std::vector<std::string> attributes_;
  Recurrence recurrence_;
  BodyText outer_, step_;
  std::unordered_map<std::string, std::string> constants_;
  int scans_ = 0;
};

}  // namespace onnx_train
