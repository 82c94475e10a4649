#include "onnx_passes/functions/update_body.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {

UpdateBody::UpdateBody(std::string op, std::vector<std::string> slots, const FunctionCall& call)
    : op_(std::move(op)), slots_(std::move(slots)), call_(call) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    given_.push_back(call.inputs.at(2 + i).value() != nullptr);
    if (!given_[i]) depends_on("no_" + slots_[i]);
  }
}

// ---- Lines

UpdateTerm UpdateBody::add(bool number, const std::string& expression) {
  lines_.push_back({concat("v", lines_.size()), expression});
  return {this, lines_.back().name, number};
}

UpdateTerm UpdateBody::once(const std::string& name, bool number, const std::string& expression) {
  const bool known = std::any_of(lines_.begin(), lines_.end(), [&](const Line& line) { return line.name == name; });
  if (!known) lines_.push_back({name, expression});
  return {this, name, number};
}

UpdateTerm UpdateBody::next(const std::string& slot, const UpdateTerm& value) {
  const std::string name = "next_" + slot;
  if (lines_.empty() || lines_.back().name != value.name) fail("the body of ", op_, " computes ", name, " too early");
  lines_.back().name = name;
  return {this, name, false};
}

UpdateTerm UpdateBody::as_tensor(const UpdateTerm& term) {
  return term.number ? once(term.name + "_of_w", false, concat("CastLike (", term.name, ", w)")) : term;
}

UpdateTerm UpdateBody::op(const std::string& op, const std::vector<UpdateTerm>& inputs, const std::string& attributes) {
  const bool numbers = std::all_of(inputs.begin(), inputs.end(), [](const UpdateTerm& t) { return t.number; });
  std::string names;
  for (const UpdateTerm& term : inputs)
    names += concat(names.empty() ? "" : ", ", (numbers ? term : as_tensor(term)).name);
  return add(numbers, concat(op, attributes.empty() ? " (" : concat(" <", attributes, "> ("), names, ")"));
}

// ---- Values that every formula may read

UpdateTerm UpdateBody::number(double value) {
  std::string digits = number_text(value);
  if (digits.find_first_of(".en") == std::string::npos) digits += ".0";
  return add(true, concat("Constant <value = double {", digits, "}> ()"));
}

UpdateTerm UpdateBody::attribute(const std::string& name) {
  return once(name, true, concat("Constant <value: tensor = @", name, "> ()"));
}

// It is no number of a formula, and is not cast.
UpdateTerm UpdateBody::constant(const std::string& name, const std::string& value) {
  return once(name, false, concat("Constant <value = ", value, "> ()"));
}

UpdateTerm UpdateBody::shape_of_weight() { return once("shape", false, "Shape (w)"); }

UpdateTerm UpdateBody::rate() { return once("rate", true, "Cast <to = 11> (learning_rate)"); }
UpdateTerm UpdateBody::step() { return once("t", true, "Cast <to = 11> (step)"); }

UpdateTerm UpdateBody::scaled_gradient() {
  const UpdateTerm scale = once("scale", false, "CastLike (grad_scale, w)");
  return raw_gradient() * scale;
}

UpdateTerm UpdateBody::gradient() { return scaled_gradient() + weight() * attribute("weight_decay"); }
UpdateTerm UpdateBody::decayed_weight() { return weight() * (1 - rate() * attribute("weight_decay")); }

// ---- What the text depends on

const Attr* UpdateBody::find(const std::string& name) const {
  const auto found =
      std::find_if(call_.attrs.begin(), call_.attrs.end(), [&](const Attr& a) { return a.name == name; });
  return found == call_.attrs.end() ? nullptr : &*found;
}

bool UpdateBody::has(const std::string& slot) {
  return given_[static_cast<size_t>(std::find(slots_.begin(), slots_.end(), slot) - slots_.begin())];
}

int64_t UpdateBody::count(const std::string& name) {
  const Attr* attr = find(name);
  const int64_t value = attr ? std::get<int64_t>(attr->value) : 0;
  depends_on(concat(name, value));
  return value;
}

bool UpdateBody::flag(const std::string& name) {
  const Attr* attr = find(name);
  const bool value = attr && std::get<int64_t>(attr->value) != 0;
  if (value) depends_on(name);
  return value;
}

bool UpdateBody::is_zero(const std::string& name) {
  const Attr* attr = find(name);
  const bool zero = !attr || std::get<Tensor>(attr->value).holds_only(0);
  if (zero) depends_on("no_" + name);
  return zero;
}

FunctionText UpdateBody::text() const {
  std::string attributes, inputs, outputs, body;
  for (const Attr& attr : call_.attrs) attributes += concat(attributes.empty() ? "" : ", ", attr.name);
  for (size_t i = 0; i < slots_.size(); ++i) {
    inputs += slots_[i] + ", ";
    if (given_[i]) outputs += ", next_" + slots_[i];
  }
  for (const Line& line : lines_) body += concat("    ", line.name, " = ", line.expression, "\n");
  return {concat(op_, " <", attributes, "> (w, g, ", inputs, "step, learning_rate, grad_scale) => (next_w", outputs,
                 ") {\n", body, "}"),
          overload_};
}

// ---- Mathematics

namespace {

UpdateTerm binary(const char* op, const UpdateTerm& a, const UpdateTerm& b) { return a.formula->op(op, {a, b}); }

}  // namespace

UpdateTerm operator+(const UpdateTerm& a, const UpdateTerm& b) { return binary("Add", a, b); }
UpdateTerm operator-(const UpdateTerm& a, const UpdateTerm& b) { return binary("Sub", a, b); }
UpdateTerm operator*(const UpdateTerm& a, const UpdateTerm& b) { return binary("Mul", a, b); }
UpdateTerm operator/(const UpdateTerm& a, const UpdateTerm& b) { return binary("Div", a, b); }
UpdateTerm operator+(double a, const UpdateTerm& b) { return b.formula->number(a) + b; }
UpdateTerm operator-(double a, const UpdateTerm& b) { return b.formula->number(a) - b; }
UpdateTerm operator*(double a, const UpdateTerm& b) { return b.formula->number(a) * b; }
UpdateTerm operator/(double a, const UpdateTerm& b) { return b.formula->number(a) / b; }
UpdateTerm operator+(const UpdateTerm& a, double b) { return a + a.formula->number(b); }
UpdateTerm operator-(const UpdateTerm& a, double b) { return a - a.formula->number(b); }
UpdateTerm sqrt(const UpdateTerm& x) { return x.formula->op("Sqrt", {x}); }
UpdateTerm abs(const UpdateTerm& x) { return x.formula->op("Abs", {x}); }
UpdateTerm pow(const UpdateTerm& x, const UpdateTerm& y) { return binary("Pow", x, y); }
UpdateTerm max(const UpdateTerm& a, const UpdateTerm& b) { return binary("Max", a, b); }
UpdateTerm min(const UpdateTerm& a, const UpdateTerm& b) { return binary("Min", a, b); }

UpdateTerm where_above(const UpdateTerm& x, double bound, const UpdateTerm& a, const UpdateTerm& b) {
  UpdateBody& f = *x.formula;
  const UpdateTerm limit = x.number ? f.number(bound) : f.as_tensor(f.number(bound));
  const UpdateTerm above = binary("Greater", x, limit);
  const bool numbers = a.number && b.number;
  return f.op("Where", {{&f, above.name, numbers}, a, b});  // the condition is never cast
}

}  // namespace onnx_train
