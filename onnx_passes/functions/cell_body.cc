#include "onnx_passes/functions/cell_body.h"

#include <algorithm>
#include <memory>

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

std::string list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// As ONNX's text wants a float: with a point or an exponent, and all its digits.
std::string number(double value) {
  std::ostringstream out;
  out.precision(9);
  out << value;
  std::string text = out.str();
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string expression(const std::string& op, const std::vector<std::string>& inputs, const std::string& attrs) {
  return concat(op, attrs.empty() ? "" : concat(" <", attrs, ">"), " (", list(inputs), ")");
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

const std::string kToBfloat16 = concat("to = ", static_cast<int>(DType::kBFloat16));

}  // namespace

CellBody::CellBody(const char* op, std::vector<std::string> inputs, std::vector<std::string> outputs,
                   const FunctionCall& call)
    : op_(op), inputs_(std::move(inputs)), outputs_(std::move(outputs)), recurrence_(recurrence_of(op, call.attrs)) {
  for (size_t i = 0; i < inputs_.size(); ++i) given_.push_back(i < call.inputs.size() && call.inputs[i]);
  for (const Attr& attr : call.attrs) attributes_.push_back(attr.name);
  if (has("lens")) add_live();
}

bool CellBody::has(const std::string& input) const {
  const auto found = std::find(inputs_.begin(), inputs_.end(), input);
  return found != inputs_.end() && given_[static_cast<size_t>(found - inputs_.begin())];
}

std::string CellBody::op(const std::string& op, const std::vector<std::string>& inputs, const std::string& attrs) {
  return step_.let("s_" + lower(op), expression(op, inputs, attrs));
}

std::string CellBody::outer_op(const std::string& op, const std::vector<std::string>& inputs,
                               const std::string& attrs) {
  return outer_.let("v_" + lower(op), expression(op, inputs, attrs));
}

// ---- Values around the steps

std::string CellBody::constant(double value) {
  std::string& name = constants_[number(value)];
  if (name.empty()) {
    const std::string single = outer_op("Constant", {}, "value_float = " + number(value));
    name = outer_op("CastLike", {single, "r"});
  }
  return name;
}

std::string CellBody::ints(const std::vector<int64_t>& values) {
  std::vector<std::string> words;
  for (int64_t value : values) words.push_back(std::to_string(value));
  return outer_op("Constant", {}, concat("value_ints = [", list(words), "]"));
}

std::string CellBody::of_direction(const std::string& value, int64_t direction, int axis) {
  const std::string index = outer_op("Constant", {}, concat("value_int = ", direction));
  return outer_op("Gather", {value, index}, concat("axis = ", axis));
}

std::string CellBody::first_state(const std::string& input, int64_t direction) {
  if (has(input)) return of_direction(input, direction, 0);
  const bool forward = has("x");
  const std::string batch =
      outer_op("Shape", {forward ? "x" : "y"}, forward ? "start = 1, end = 2" : "start = 2, end = 3");
  const std::string hidden = outer_op("Shape", {"r"}, "start = 2, end = 3");
  const std::string shape = outer_op("Concat", {batch, hidden}, "axis = 0");
  return outer_op("Expand", {constant(0), shape});
}

std::string CellBody::previous(const std::string& values, const std::string& first, int64_t direction) {
  const bool backwards = recurrence_.backwards[static_cast<size_t>(direction)];
  const std::string axis = ints({0});
  const std::string start = outer_op("Unsqueeze", {first, axis});
  if (backwards) {
    const std::string rest = outer_op("Slice", {values, ints({1}), ints({INT64_MAX}), axis});
    return outer_op("Concat", {rest, start}, "axis = 0");
  }
  const std::string rest = outer_op("Slice", {values, axis, ints({-1}), axis});
  return outer_op("Concat", {start, rest}, "axis = 0");
}

void CellBody::add_live() {
  const bool forward = has("x");
  outer_.line("steps_first = Constant <value_int = 0> ()");
  outer_.line("steps_one = Constant <value_int = 1> ()");
  outer_.line("steps_list = Shape <start = 0, end = 1> (", forward ? "x" : "y", ")");
  outer_.line("steps_list_axis = Constant <value_ints = [0]> ()");
  outer_.line("steps_end = Squeeze (steps_list, steps_list_axis)");
  outer_.line("steps = Range (steps_first, steps_end, steps_one)");
  outer_.line("steps_axes = Constant <value_ints = [1, 2]> ()");
  outer_.line("steps_column = Unsqueeze (steps, steps_axes)");
  outer_.line("lens_long = Cast <to = 7> (lens)");
  outer_.line("lens_axes = Constant <value_ints = [0, 2]> ()");
  outer_.line("lens_row = Unsqueeze (lens_long, lens_axes)");
  outer_.line("live = Less (steps_column, lens_row)");
}

// ---- One step

std::string CellBody::activate(const GateActivation& a, const std::string& x) {
  using Kind = GateActivation::Kind;
  switch (a.kind) {
    case Kind::kScaledTanh: return op("Mul", {constant(a.alpha), op("Tanh", {op("Mul", {constant(a.beta), x})})});
    case Kind::kAffine: return op("Add", {op("Mul", {constant(a.alpha), x}), constant(a.beta)});
    case Kind::kHardSigmoid:
      return op("HardSigmoid", {x}, concat("alpha = ", number(a.alpha), ", beta = ", number(a.beta)));
    default: return op(a.name(), {x}, a.has_alpha() ? concat("alpha = ", number(a.alpha)) : "");
  }
}

// y' in terms of y.
std::string CellBody::slope(const GateActivation& a, const std::string& y) {
  using Kind = GateActivation::Kind;
  const std::string one = constant(1), zero = constant(0);
  switch (a.kind) {
    case Kind::kSigmoid: return op("Mul", {y, op("Sub", {one, y})});
    case Kind::kTanh: return op("Sub", {one, op("Mul", {y, y})});
    case Kind::kRelu: return op("CastLike", {op("Greater", {y, zero}), y});
    case Kind::kLeakyRelu: return op("Where", {op("Less", {y, zero}), constant(a.alpha), one});
    case Kind::kThresholdedRelu: return op("Where", {op("Equal", {y, zero}), zero, one});
    case Kind::kElu: return op("Where", {op("Less", {y, zero}), op("Add", {y, constant(a.alpha)}), one});
    case Kind::kHardSigmoid: {
      const std::string between = op("And", {op("Greater", {y, zero}), op("Less", {y, one})});
      return op("Where", {between, constant(a.alpha), zero});
    }
    case Kind::kScaledTanh: {
      const std::string square = op("Div", {op("Mul", {y, y}), constant(a.alpha)});
      return op("Mul", {constant(a.beta), op("Sub", {constant(a.alpha), square})});
    }
    case Kind::kAffine: return constant(a.alpha);
    case Kind::kSoftsign: {
      const std::string rest = op("Sub", {one, op("Abs", {y})});
      return op("Mul", {rest, rest});
    }
    case Kind::kSoftplus: return op("Sub", {one, op("Exp", {op("Neg", {y})})});
  }
  return one;
}

std::string CellBody::differentiate(const GateActivation& a, const std::string& y, const std::string& dy) {
  return op("Mul", {dy, slope(a, y)});
}

std::string CellBody::where_live(const std::string& value, const std::string& otherwise) {
  return has("lens") ? op("Where", {"live_now", value, otherwise}) : value;
}

std::string CellBody::operand(const std::string& x) {
  return recurrence_.round_operands ? op("CastLike", {op("Cast", {x}, kToBfloat16), x}) : x;
}

std::string CellBody::outer_operand(const std::string& x) {
  return recurrence_.round_operands ? outer_op("CastLike", {outer_op("Cast", {x}, kToBfloat16), x}) : x;
}

std::string CellBody::gate_values(const std::string& x) {
  return recurrence_.round_gates ? op("CastLike", {op("Cast", {x}, kToBfloat16), x}) : x;
}

std::vector<std::string> CellBody::scan(const std::vector<State>& states, std::vector<Input> inputs,
                                        const std::vector<std::string>& outputs, bool backwards) {
  if (has("lens")) inputs.push_back({"live_now", live()});
  std::vector<std::string> formals, actuals, results, names;
  for (const State& s : states) formals.push_back(s.name), actuals.push_back(s.first), results.push_back(s.next);
  for (const Input& i : inputs) formals.push_back(i.name), actuals.push_back(i.values);
  for (const std::string& output : outputs) results.push_back(output);
  // Each result is a value of its own.
  for (std::string& result : results) result = op("Identity", {result});
  for (size_t i = 0; i < results.size(); ++i) names.push_back(concat("scanned_", scans_, "_", i));
  const auto directions = [&](size_t count) { return list(std::vector<std::string>(count, backwards ? "1" : "0")); };
  outer_.line(list(names), " = Scan <body = step_", scans_, " (", list(formals), ") => (", list(results), ") {\n",
              step_.text(), "  }, num_scan_inputs = ", inputs.size(), ", scan_input_directions = [",
              directions(inputs.size()), "], scan_output_directions = [", directions(outputs.size()), "]> (",
              list(actuals), ")");
  step_ = BodyText();
  ++scans_;
  return names;
}

void CellBody::stack(const std::string& output, const std::vector<std::string>& values, int axis) {
  const std::string axes = ints({axis});
  std::vector<std::string> parts;
  for (const std::string& value : values) parts.push_back(outer_op("Unsqueeze", {value, axes}));
  join(output, parts, axis);
}

void CellBody::join(const std::string& output, const std::vector<std::string>& values, int axis) {
  outer_.line(output, " = Concat <axis = ", axis, "> (", list(values), ")");
}

FunctionText CellBody::finish() const {
  const std::string signature =
      concat(op_, " <", list(attributes_), "> (", list(inputs_), ") => (", list(outputs_), ")");
  std::string overload = recurrence_.directions() == 2 ? "bidirectional"
                         : recurrence_.backwards[0]    ? "reverse"
                                                       : "forward";
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (given_[i]) overload += "_" + inputs_[i];
  }
  for (const GateActivation& a : recurrence_.activations) {
    overload += concat("_", a.name(), a.has_alpha() ? number(a.alpha) : "", a.has_beta() ? "_" + number(a.beta) : "");
  }
  if (recurrence_.input_forget) overload += "_input_forget";
  if (recurrence_.linear_before_reset) overload += "_linear_before_reset";
  if (recurrence_.round_operands) overload += "_round_operands";
  if (recurrence_.round_gates) overload += "_round_gates";
  return {concat(signature, "\n{\n", outer_.text(), "}\n"), overload};
}

}  // namespace onnx_train
