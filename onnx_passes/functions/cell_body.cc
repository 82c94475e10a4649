#include "onnx_passes/functions/cell_body.h"

#include <memory>
#include <sstream>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// The call's attributes, read as those of a node.
Recurrence recurrence_of(const char* op, const Attrs& attrs) {
  Graph graph(std::make_shared<Context>());
  Node* node = graph.add_node(op, {}, {}, kDomain);
  for (const Attr& attr : attrs) {
    std::visit([&](const auto& value) { node->set_attr(attr.name, value); }, attr.value);
  }
  return find_recurrence(*node);
}

// As ONNX's text wants a float: with a point or an exponent, and all its digits.
std::string float_text(double value) {
  std::ostringstream out;
  out.precision(9);
  out << value;
  std::string text = out.str();
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string cell_signature(const char* op, const std::string& inputs, const std::string& outputs, const Attrs& attrs) {
  std::string names;
  for (const Attr& attr : attrs) names += (names.empty() ? "" : ", ") + attr.name;
  return concat(op, " <", names, "> (", inputs, ") => (", outputs, ")");
}

}  // namespace

CellBody::CellBody(const char* op, const std::string& inputs, const std::string& outputs, const FunctionCall& call)
    : Body(cell_signature(op, inputs, outputs, call.attrs), call), recurrence_(recurrence_of(op, call.attrs)) {
  depends_on(recurrence_.directions() == 2 ? "bidirectional" : recurrence_.backwards[0] ? "reverse" : "forward");
  for (const std::string& name : input_names()) {
    if (name != "lens") same_type(name, "r");
    if (has(name)) depends_on(name);
  }
  for (const GateActivation& a : recurrence_.activations) {
    depends_on(
        concat(a.name(), a.has_alpha() ? float_text(a.alpha) : "", a.has_beta() ? "_" + float_text(a.beta) : ""));
  }
  if (recurrence_.input_forget) depends_on("input_forget");
  if (recurrence_.linear_before_reset) depends_on("linear_before_reset");
  if (recurrence_.round_operands) depends_on("round_operands");
  if (recurrence_.round_gates) depends_on("round_gates");
}

// ---- Values around the steps

Term CellBody::of_direction(const Term& x, int64_t direction, int axis) { return gather(x, direction, axis); }

Term CellBody::first_state(const std::string& name, int64_t direction) {
  if (has(name)) return of_direction(input(name), direction, 0);
  const Term batch = has("x") ? shape(input("x"), 1, 2) : shape(input("y"), 2, 3);
  return expand(as(0, input("r")), concat({batch, shape(input("r"), 2, 3)}, 0));
}

Term CellBody::previous(const Term& values, const Term& first, int64_t direction) {
  const Term start = unsqueeze(first, {0});
  if (backwards(direction)) return concat({slice(values, {1}, {INT64_MAX}, {0}), start}, 0);
  return concat({start, slice(values, {0}, {-1}, {0})}, 0);
}

Term CellBody::live() {
  const Term steps = range(squeeze(shape(sequence(), 0, 1), {0}));
  return unsqueeze(steps, {1, 2}) < unsqueeze(cast(input("lens"), DType::kInt64), {0, 2});
}

Terms CellBody::steps(const Terms& states, Terms inputs, bool backwards, const Step& step) {
  if (has("lens")) inputs.push_back(live());
  return scan(states, inputs, backwards, [&](const Terms& now, const Terms& elements) {
    live_now_ = elements.back();
    return step(now, elements);
  });
}

Term CellBody::where_live(const Term& value, const Term& otherwise) {
  return has("lens") ? where(live_now_, value, otherwise) : value;
}

// ---- Gates

Term CellBody::activate(const GateActivation& a, const Term& x) {
  using Kind = GateActivation::Kind;
  switch (a.kind) {
    case Kind::kScaledTanh: return a.alpha * tanh(a.beta * x);
    case Kind::kAffine: return a.alpha * x + a.beta;
    case Kind::kHardSigmoid:
      return op("HardSigmoid", {x}, concat("alpha = ", float_text(a.alpha), ", beta = ", float_text(a.beta)));
    default: return op(a.name(), {x}, a.has_alpha() ? concat("alpha = ", float_text(a.alpha)) : "");
  }
}

// y' in terms of y.
Term CellBody::slope(const GateActivation& a, const Term& y) {
  using Kind = GateActivation::Kind;
  switch (a.kind) {
    case Kind::kSigmoid: return y * (1 - y);
    case Kind::kTanh: return 1 - y * y;
    case Kind::kRelu: return cast_like(y > 0, y);
    case Kind::kLeakyRelu: return where(y < 0, as(a.alpha, y), 1);
    case Kind::kThresholdedRelu: return where(equal(y, 0), as(0, y), 1);
    case Kind::kElu: return where(y < 0, y + a.alpha, 1);
    case Kind::kHardSigmoid: return where(logical_and(y > 0, y < 1), as(a.alpha, y), 0);
    case Kind::kScaledTanh: return a.beta * (a.alpha - y * y / a.alpha);
    case Kind::kAffine: return a.alpha;
    case Kind::kSoftsign: return (1 - abs(y)) * (1 - abs(y));
    case Kind::kSoftplus: return 1 - exp(-y);
  }
  return 1;
}

Term CellBody::differentiate(const GateActivation& a, const Term& y, const Term& dy) { return dy * slope(a, y); }

// ---- All directions

Term stacked(Terms values, int axis) {
  for (Term& value : values) value = unsqueeze(value, {axis});
  return concat(values, axis);
}

Terms split(const Term& x, int parts, int axis) {
  return x.body()->ops("Split", parts, {x}, concat("num_outputs = ", parts, ", axis = ", axis));
}

}  // namespace onnx_train
