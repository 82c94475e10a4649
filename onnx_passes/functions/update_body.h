// Writes the body of an update as mathematics:
//
//   UpdateBody f("Adadelta", {"square_avg", "acc_delta"}, call);
//   const UpdateTerm rho = f.attribute("rho"), g = f.gradient();
//   const UpdateTerm v = f.next("square_avg", rho * f.slot("square_avg") + (1 - rho) * g * g);
//   ...
//   return f.text();
//
// Terms are tensors of the weight's type, or numbers: float64 scalars, such as attributes, the step and the learning
// rate. A number that meets a tensor is rounded once to the tensor's type, as PyTorch computes. Slots that the call
// leaves out are inputs without a name; the overload says which, and what else the text depends on. A value of one
// thread; Terms must not outlive their body.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/functions/functions.h"

namespace onnx_train {

class UpdateBody;

struct UpdateTerm {
  UpdateBody* formula;
  std::string name;
  bool number;
};

class UpdateBody {
 public:
  UpdateBody(std::string op, std::vector<std::string> slots, const FunctionCall& call);

  UpdateTerm weight() { return {this, "w", false}; }
  UpdateTerm raw_gradient() { return {this, "g", false}; }
  UpdateTerm scaled_gradient();  // g · grad_scale
  UpdateTerm gradient();         // g · grad_scale + weight_decay · w
  UpdateTerm decayed_weight();   // (1 - learning_rate · weight_decay) · w
  UpdateTerm rate();             // numbers
  UpdateTerm step();             // the number of the update, from 1
  UpdateTerm attribute(const std::string& name);
  UpdateTerm number(double value);
  UpdateTerm constant(const std::string& name, const std::string& value);  // of any type: "int64[1] {-1}"
  UpdateTerm shape_of_weight();

  // What the text may depend on.
  bool has(const std::string& slot);
  bool flag(const std::string& name);      // an integer attribute that is not 0
  int64_t count(const std::string& name);  // an integer attribute
  bool is_zero(const std::string& name);   // a tensor attribute
  const TensorType& weight_type() const { return call_.inputs[0].type(); }
  void depends_on(const std::string& what) { overload_ += overload_.empty() ? what : "_" + what; }

  UpdateTerm slot(const std::string& name) { return {this, name, false}; }
  // The new value of a slot, or of "w", whose text is the last that was written.
  UpdateTerm next(const std::string& slot, const UpdateTerm& value);
  // One node; tensors are the type of the first that is one.
  UpdateTerm op(const std::string& op, const std::vector<UpdateTerm>& inputs, const std::string& attributes = "");
  UpdateTerm as_tensor(const UpdateTerm& term);  // a number in the weight's type

  FunctionText text() const;

 private:
  struct Line {
    std::string name, expression;
  };
  UpdateTerm add(bool number, const std::string& expression);
  UpdateTerm once(const std::string& name, bool number, const std::string& expression);
  const Attr* find(const std::string& name) const;

  std::string op_, overload_;
  std::vector<std::string> slots_;
  std::vector<bool> given_;
  const FunctionCall& call_;
  std::vector<Line> lines_;
};

UpdateTerm operator+(const UpdateTerm& a, const UpdateTerm& b);
UpdateTerm operator-(const UpdateTerm& a, const UpdateTerm& b);
UpdateTerm operator*(const UpdateTerm& a, const UpdateTerm& b);
UpdateTerm operator/(const UpdateTerm& a, const UpdateTerm& b);
UpdateTerm operator+(double a, const UpdateTerm& b);
UpdateTerm operator-(double a, const UpdateTerm& b);
UpdateTerm operator*(double a, const UpdateTerm& b);
UpdateTerm operator/(double a, const UpdateTerm& b);
UpdateTerm operator+(const UpdateTerm& a, double b);
UpdateTerm operator-(const UpdateTerm& a, double b);
UpdateTerm sqrt(const UpdateTerm& x);
UpdateTerm abs(const UpdateTerm& x);
UpdateTerm pow(const UpdateTerm& x, const UpdateTerm& y);
UpdateTerm max(const UpdateTerm& a, const UpdateTerm& b);
UpdateTerm min(const UpdateTerm& a, const UpdateTerm& b);
// a where `x` is above `bound`, else b.
UpdateTerm where_above(const UpdateTerm& x, double bound, const UpdateTerm& a, const UpdateTerm& b);

}  // namespace onnx_train
