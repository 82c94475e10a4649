#include "onnx_passes/functions/body.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string joined(const std::vector<int64_t>& numbers) {
  std::vector<std::string> words;
  for (const int64_t number : numbers) words.push_back(std::to_string(number));
  return joined(words);
}

constexpr const char* kInt64 = "int64 ";  // before an input of a signature

// The words between two characters of the text, from `*at` on, which becomes the position after them.
std::vector<std::string> words_between(const std::string& text, char open, char close, size_t* at) {
  const size_t begin = text.find(open, *at) + 1, end = text.find(close, begin);
  *at = end + 1;
  std::vector<std::string> words;
  for (size_t from = begin; from < end;) {
    const size_t to = std::min(text.find(',', from), end);
    words.push_back(stripped(text.substr(from, to - from)));
    from = to + 1;
  }
  return words;
}

// "onnx_train.ReduceMean" as "reduce_mean".
std::string value_name(const std::string& op) {
  std::string name;
  for (const char c : op.substr(op.find('.') + 1)) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isupper(byte) && !name.empty() && std::islower(static_cast<unsigned char>(name.back()))) name += '_';
    name += c;
  }
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

// As ONNX's text wants numbers of the type.
std::string digits_of(double value, DType dtype) {
  if (!is_float(dtype)) return std::to_string(static_cast<int64_t>(value));
  const std::string digits = number_text(value);
  return digits.find_first_of(".en") == std::string::npos ? digits + ".0" : digits;
}

}  // namespace

Body::Body(const std::string& signature, const FunctionCall& call) : call_(call), head_(signature) {
  depths_.push_back(0);
  const size_t attributes = signature.find('<');
  size_t at = 0;
  if (attributes < signature.find('(')) {
    for (const std::string& word : words_between(signature, '<', '>', &at)) {
      const size_t colon = word.find(':');
      if (colon == std::string::npos) continue;
      attribute_types_[word.substr(0, colon)] = stripped(word.substr(colon + 1, word.find('=') - colon - 1));
    }
  }
  const size_t begin = signature.find('(', at);
  for (std::string name : words_between(signature, '(', ')', &at)) {
    const bool is_int = name.starts_with(kInt64);
    if (is_int) name = name.substr(name.find(' ') + 1);
    values_.push_back(
        {is_int ? Type{DType::kInt64} : Type{DType::kUndefined, static_cast<int>(values_.size())}, 0, -1, name});
    inputs_.push_back(name);
  }
  outputs_ = words_between(signature, '(', ')', &at);
  results_.assign(outputs_.size(), -1);
  head_ = concat(signature.substr(0, begin), "(", joined(inputs_), ") => (", joined(outputs_), ")");
}

Term Body::input(const std::string& name) {
  const size_t i = index_of(name);
  if (i == inputs_.size()) fail("there is no input '", name, "' of ", head_);
  return term(static_cast<int>(i));
}

Terms Body::inputs() {
  Terms all;
  for (size_t i = 0; i < inputs_.size(); ++i) all.push_back(term(static_cast<int>(i)));
  return all;
}

Terms Body::inputs_of(size_t count) {
  if (count > 0 && count != inputs_.size())
    fail(head_, " has ", inputs_.size(), " inputs, of which ", count, " are taken");
  return inputs();
}

size_t Body::index_of(const std::string& input) const {
  return static_cast<size_t>(std::find(inputs_.begin(), inputs_.end(), input) - inputs_.begin());
}

const Var& Body::given(const std::string& input) const { return call_.inputs.at(index_of(input)); }

bool Body::has(const std::string& input) const {
  const size_t i = index_of(input);
  return i < inputs_.size() && i < call_.inputs.size() && call_.inputs[i];
}

Term Body::attribute(const std::string& name) {
  const Attr* attr = call_.find(name);
  const auto declared = attribute_types_.find(name);
  std::string type = declared == attribute_types_.end() ? "tensor" : declared->second;
  if (declared == attribute_types_.end() && attr) {
    constexpr const char* kTypes[] = {"int", "float", "string", "ints", "tensor"};
    type = kTypes[attr->value.index()];
  }
  DType dtype = DType::kInt64;
  if (type == "float") dtype = DType::kFloat;
  if (type == "tensor") dtype = attr ? std::get<Tensor>(attr->value).dtype() : DType::kDouble;
  const std::string field = type == "tensor" ? "value" : "value_" + type;
  return term(add("Constant", {}, concat(field, ": ", type, " = @", name), {{dtype, -1, is_float(dtype)}})[0]);
}

// ---- Types

// Of the first tensor, else of the first number.
Body::Type Body::common_type(const Terms& terms) const {
  const Type* type = nullptr;
  for (const Term& t : terms) {
    if (t.kind_ != Term::Kind::kValue) continue;
    const Type& own = type_of(t.value_);
    if (!own.is_number) return own;
    if (!type) type = &own;
  }
  return type ? *type : Type();
}

int Body::literal(double number, const Type& type) {
  if (type.dtype == DType::kUndefined && type.like < 0) fail("a literal of ", head_, " meets nothing that has a type");
  if (type.like >= 0) {
    const int wide = literal(number, {DType::kDouble, -1, true});
    return add("CastLike", {wide, type.like}, "", {type})[0];
  }
  return add("Constant", {}, concat("value = ", name(type.dtype), " {", digits_of(number, type.dtype), "}"), {type})[0];
}

int Body::value_of(const Term& term, const Type& type) {
  switch (term.kind_) {
    case Term::Kind::kNone: return -1;
    case Term::Kind::kNumber: return literal(term.number_, type);
    case Term::Kind::kList:
      return add("Constant", {}, concat("value_ints = [", joined(term.list_), "]"), {{DType::kInt64}})[0];
    case Term::Kind::kValue: break;
  }
  if (term.body_ != this) fail("a term of another body in ", head_);
  const Type& own = type_of(term.value_);
  if (!own.is_number || type.is_number) return term.value_;
  if (type.like >= 0) return add("CastLike", {term.value_, type.like}, "", {type})[0];
  if (type.dtype == DType::kUndefined || type.dtype == own.dtype) return term.value_;
  return add("Cast", {term.value_}, concat("to = ", static_cast<int>(type.dtype)), {type})[0];
}

Term Body::constant(DType dtype, double value) { return term(literal(value, {dtype})); }

Term Body::constant(DType dtype, const std::vector<double>& values) {
  std::vector<std::string> words;
  for (const double value : values) words.push_back(digits_of(value, dtype));
  const std::string text = concat("value = ", name(dtype), "[", values.size(), "] {", joined(words), "}");
  return term(add("Constant", {}, text, {{dtype}})[0]);
}

Term Body::number(const Term& x) {
  const Type type = {DType::kDouble, -1, true};
  const int value = value_of(x, type);
  if (x.kind_ != Term::Kind::kValue || type_of(value).is_number) return term(value);
  return term(add("Cast", {value}, concat("to = ", static_cast<int>(DType::kDouble)), {type})[0]);
}

Term Body::as(const Term& x, DType dtype) {
  return x.kind_ == Term::Kind::kNumber ? term(literal(x.number_, {dtype})) : x;
}

Term Body::as(const Term& x, const Term& like) { return term(value_of(x, common_type({like}))); }

Term Body::cast(const Term& x, DType dtype) {
  return term(add("Cast", {value_of(x, {})}, concat("to = ", static_cast<int>(dtype)), {{dtype}})[0]);
}

Term Body::cast_like(const Term& x, const Term& other) {
  const Type type = common_type({other});
  if (x.kind_ == Term::Kind::kNumber) return term(value_of(x, type));
  return term(add("CastLike", {value_of(x, {}), type.like >= 0 ? type.like : other.value_}, "", {type})[0]);
}

// ---- Nodes

int Body::new_value(const Type& type, int scope, int node) {
  const int value = static_cast<int>(values_.size());
  const bool is_own = type.dtype == DType::kUndefined && type.like < 0;
  values_.push_back({is_own ? Type{DType::kUndefined, value} : type, scope, node});
  return value;
}

int Body::innermost(const std::vector<int>& values) const {
  int innermost = 0;
  for (const int value : values) {
    const int scope = value < 0 ? 0 : values_[static_cast<size_t>(value)].scope;
    if (depths_[static_cast<size_t>(scope)] > depths_[static_cast<size_t>(innermost)]) innermost = scope;
  }
  return innermost;
}

// In the given scope; without one, in that of the inputs, where an equal node may be.
std::vector<int> Body::add(const std::string& op, const std::vector<int>& inputs, const std::string& attributes,
                           const std::vector<Type>& types, int scope) {
  std::string key = concat(op, "<", attributes, ">");
  for (const int input : inputs) key += concat(" ", input);
  if (const auto found = known_.find(key); found != known_.end() && scope < 0) return found->second;
  const int here = scope < 0 ? innermost(inputs) : scope, number = static_cast<int>(nodes_.size());
  Node node = {op, attributes, inputs, {}};
  for (const Type& type : types) node.outputs.push_back(new_value(type, here, number));
  nodes_.push_back(node);
  if (scope < 0) known_[key] = node.outputs;
  return node.outputs;
}

Terms Body::ops(const std::string& op, int num_outputs, const Terms& inputs, const std::string& attributes,
                DType result) {
  const Type type = common_type(inputs);
  std::vector<int> values;
  for (const Term& input : inputs) values.push_back(value_of(input, type));
  while (!values.empty() && values.back() < 0) values.pop_back();
  Terms results;
  const Type own = result != DType::kUndefined || values.empty() ? Type{result} : type_of(values[0]);
  const std::vector<Type> types(static_cast<size_t>(num_outputs), own);
  for (const int value : add(op, values, attributes, types)) results.push_back(term(value));
  return results;
}

Term Body::op(const std::string& op, const Terms& inputs, const std::string& attributes, DType result) {
  return ops(op, 1, inputs, attributes, result)[0];
}

Terms Body::apply(const std::string& op, int num_outputs, const Terms& inputs, const std::string& attributes) {
  inner_ = op;
  return ops(concat(kDomain, ".", op), num_outputs, inputs, attributes);
}

Term Body::apply(const std::string& op, const Terms& inputs, const std::string& attributes) {
  return apply(op, 1, inputs, attributes)[0];
}

Term Body::where(const Term& condition, const Term& a, const Term& b) {
  const Type type = common_type({a, b});
  return term(add("Where", {value_of(condition, {}), value_of(a, type), value_of(b, type)}, "", {type})[0]);
}

Terms Body::scan(const Terms& states, const Terms& inputs, bool backwards, const Step& step) {
  Node scan = {"Scan", "", {}, {}};
  for (const Terms& terms : {states, inputs}) {
    for (const Term& t : terms) scan.inputs.push_back(value_of(t, {}));
  }
  const int outer = innermost(scan.inputs), own = static_cast<int>(depths_.size());
  scan.step = own;
  depths_.push_back(depths_[static_cast<size_t>(outer)] + 1);
  Terms formals;
  for (const int input : scan.inputs) {
    scan.formals.push_back(new_value(type_of(input), own, -1));
    formals.push_back(term(scan.formals.back()));
  }
  const auto middle = formals.begin() + static_cast<std::ptrdiff_t>(states.size());
  const Terms results = step({formals.begin(), middle}, {middle, formals.end()});
  for (const Term& result : results) {
    const int value = value_of(result, {});
    const Type type = type_of(value);
    scan.results.push_back(add("Identity", {value}, "", {type}, own)[0]);  // each is a value of its own
  }
  const std::string direction = backwards ? "1" : "0";
  const std::vector<std::string> in(inputs.size(), direction), out(results.size() - states.size(), direction);
  scan.attributes = concat("num_scan_inputs = ", inputs.size());
  if (backwards) {
    scan.attributes +=
        concat(", scan_input_directions = [", joined(in), "], scan_output_directions = [", joined(out), "]");
  }
  const int node = static_cast<int>(nodes_.size());
  for (const int result : scan.results) {
    scan.outputs.push_back(new_value(type_of(result), outer, node));
  }
  nodes_.push_back(scan);
  Terms all;
  for (const int value : scan.outputs) all.push_back(term(value));
  return all;
}

// ---- Text

void Body::output(const std::string& name, const Term& value) {
  const auto found = std::find(outputs_.begin(), outputs_.end(), name);
  if (found == outputs_.end()) fail("there is no output '", name, "' of ", head_);
  int result = value_of(value, {});
  const Value& given = values_[static_cast<size_t>(result)];
  if (given.node < 0 || !given.name.empty()) result = add("Identity", {result}, "", {given.type}, 0)[0];
  values_[static_cast<size_t>(result)].name = name;
  results_[static_cast<size_t>(found - outputs_.begin())] = result;
}

namespace {

// `base`, base_2, ... The name is new among `taken`.
std::string next_name(const std::string& base, std::map<std::string, int>* counts, std::set<std::string>* taken) {
  while (true) {
    const int count = ++(*counts)[base];
    const std::string name = count == 1 ? base : concat(base, "_", count);
    if (taken->insert(name).second) return name;
  }
}

}  // namespace

// Nodes come in the order in which the outputs need them, the inputs of each from left to right, and not in that of
// their calls: C++ leaves open which operand of an expression is evaluated first.
struct Body::Order {
  std::vector<std::vector<int>> nodes;  // by scope
  std::vector<bool> placed;             // by node
  std::vector<std::string> names;       // by value; "" is not needed
  std::map<int, int> steps = {};        // the number of a step by its scope
  std::map<std::string, int> counts = {};
  std::set<std::string> taken = {};
};

void Body::arrange(int value, Order* order) const {
  const auto name = [&](int v, const std::string& base) {
    std::string& known = order->names[static_cast<size_t>(v)];
    if (known.empty()) known = next_name(base, &order->counts, &order->taken);
  };
  if (value < 0) return;
  const int number = values_[static_cast<size_t>(value)].node;
  if (number < 0) return;
  const Node& node = nodes_[static_cast<size_t>(number)];
  if (order->placed[static_cast<size_t>(number)]) return;
  order->placed[static_cast<size_t>(number)] = true;
  for (const int input : node.inputs) arrange(input, order);
  if (node.step > 0) order->steps.emplace(node.step, static_cast<int>(order->steps.size()) + 1);
  for (const int formal : node.formals) name(formal, "element");
  for (const int result : node.results) arrange(result, order);
  for (const int output : node.outputs) name(output, value_name(node.op));
  order->nodes[static_cast<size_t>(values_[static_cast<size_t>(value)].scope)].push_back(number);
}

std::string Body::lines(int scope, const Order& order) const {
  const auto list = [&](const std::vector<int>& values) {
    std::vector<std::string> words;
    for (const int value : values) words.push_back(value < 0 ? "" : order.names[static_cast<size_t>(value)]);
    return joined(words);
  };
  std::string text;
  for (const int number : order.nodes[static_cast<size_t>(scope)]) {
    const Node& node = nodes_[static_cast<size_t>(number)];
    std::string attributes = node.attributes;
    if (node.step > 0) {
      attributes = concat("body = step_", order.steps.at(node.step), " (", list(node.formals), ") => (",
                          list(node.results), ") {\n", lines(node.step, order), "}, ", attributes);
    }
    if (!attributes.empty()) attributes = concat("<", attributes, "> ");
    text += concat(list(node.outputs), " = ", node.op, " ", attributes, "(", list(node.inputs), ")\n");
  }
  return text;
}

FunctionText Body::text() const {
  Order order{std::vector<std::vector<int>>(depths_.size()), std::vector<bool>(nodes_.size()), {}};
  for (const Value& value : values_) order.names.push_back(value.name);
  order.taken.insert(inputs_.begin(), inputs_.end());
  order.taken.insert(outputs_.begin(), outputs_.end());
  for (size_t i = 0; i < results_.size(); ++i) {
    if (results_[i] < 0) fail("the body of ", head_, " does not compute ", outputs_[i]);
    arrange(results_[i], &order);
  }
  return {concat(head_, " {\n", lines(0, order), "}"), overload_, inner_};
}

FunctionText Body::text(const Terms& outputs) {
  if (outputs.size() != outputs_.size()) fail("the body of ", head_, " gives ", outputs.size(), " outputs");
  for (size_t i = 0; i < outputs.size(); ++i) output(outputs_[i], outputs[i]);
  return text();
}

FunctionRow function_of(const char* signature, std::function<Terms(Body&)> write) {
  const std::string text = signature;
  return {text.substr(0, text.find_first_of(" <(")), [text, write](const FunctionCall& call) {
            Body body(text, call);
            return body.text(write(body));
          }};
}

}  // namespace onnx_train
