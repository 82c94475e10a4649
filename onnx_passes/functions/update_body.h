// Writes the body of an update as mathematics:
//
//   UpdateBody f("Adadelta", {"square_avg", "acc_delta"}, call);
//   const Term rho = f.attribute("rho"), g = f.gradient();
//   const Term v = f.next("square_avg", rho * f.slot("square_avg") + (1 - rho) * g * g);
//   ...
//   return f.text();
//
// Tensors have the weight's type; attributes, the step and the learning rate are numbers, so that scalars are computed
// in float64 and rounded once to the weight's type, as PyTorch computes. (They are float64 tensors: an attribute of
// type float would turn 0.999 into 0.99900001.) Slots that the call leaves out are inputs without a name; the overload
// says which, and what else the body depends on.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/functions/body.h"

namespace onnx_train {

class UpdateBody : public Body {
 public:
  UpdateBody(const std::string& op, const std::vector<std::string>& slots, const FunctionCall& call);

  Term weight() { return input("w"); }
  Term scaled_gradient() { return input("g") * cast_like(input("grad_scale"), weight()); }
  Term gradient() { return scaled_gradient() + weight() * attribute("weight_decay"); }
  Term decayed_weight() { return weight() * (1 - rate() * attribute("weight_decay")); }
  Term rate() { return number(input("learning_rate")); }
  Term step() { return number(input("step")); }  // the number of the update, from 1
  Term slot(const std::string& name) { return input(name); }
  Term tensor(const Term& x) { return as(x, weight()); }  // a number in the weight's type
  Term in_shape_of_weight(const Term& x) { return op("Reshape", {x, shape(weight())}); }

  // The new value of a slot, or of "w".
  Term next(const std::string& slot, const Term& value) {
    output("next_" + slot, value);
    return value;
  }

  // What the body may depend on.
  bool flag(const std::string& name);      // an integer attribute that is not 0
  int64_t count(const std::string& name);  // an integer attribute
  bool is_zero(const std::string& name);   // a tensor attribute
  const TensorType& weight_type() const { return given("w").type(); }
};

}  // namespace onnx_train
