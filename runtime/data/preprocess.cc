#include "runtime/data/preprocess.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/expression.h"
#include "onnx_passes/passes.h"
#include "runtime/data/dataset.h"
#include "runtime/options.h"

namespace onnx_train {
namespace {

// X or X/Y.
double read_number(ExpressionReader* reader) {
  const size_t column = reader->column();
  const double x = reader->number();
  const double value = reader->take('/') ? x / reader->number() : x;
  const auto narrow = static_cast<float>(value);
  if (!(value > 0) || !std::isfinite(narrow) || narrow == 0) reader->fail_at(column, "a scale is a number above 0");
  return value;
}

double parse_number(const std::string& text) {
  ExpressionReader reader("--scale", text);
  const double value = read_number(&reader);
  if (!reader.at_end()) reader.fail_at(reader.column(), "expected the end");
  return value;
}

// "INPUT=X": names may contain '=', numbers do not. "" for X alone.
std::pair<std::string, std::string> split(const std::string& text) {
  const size_t at = text.rfind('=');
  if (at == std::string::npos) return {"", text};
  return {text.substr(0, at), text.substr(at + 1)};
}

bool takes_data(const InputSpec& spec) { return !spec.from_loss && !spec.has_default && spec.role.empty(); }

const InputSpec& input_of(const std::string& name, const std::vector<InputSpec>& inputs) {
  std::vector<std::string> names;
  std::vector<const InputSpec*> found;
  for (const InputSpec& spec : inputs) {
    if (!name.empty() && spec.name == name) {
      if (spec.from_loss)
        throw UsageError(concat("--scale: '", name, "' is a target; inputs of the network alone are scaled"));
      if (!is_float(spec.type.dtype)) {
        throw UsageError(concat("--scale: '", name, "' takes ", to_string(spec.type), "; floats alone are scaled"));
      }
    }
    if (!takes_data(spec) || !is_float(spec.type.dtype)) continue;
    names.push_back(spec.name);
    if (name.empty() || spec.name == name) found.push_back(&spec);
  }
  if (found.size() == 1) return *found[0];
  std::string list;
  for (const std::string& known : names) list += concat(list.empty() ? "'" : ", '", known, "'");
  if (names.empty()) throw UsageError("--scale: the network has no float input");
  if (!name.empty())
    throw UsageError(concat("--scale: the network has no input '", name, "'; its float inputs are ", list));
  throw UsageError(concat("--scale: the network has the float inputs ", list, "; name those to scale, as in --scale ",
                          names[0], "=1/255"));
}

}  // namespace

void Preprocess::add(const std::string& input, const std::string& number, double scale) {
  if (inputs_.count(input) > 0) throw UsageError(concat("--scale: '", input, "' is given twice"));
  if (scale != 1) inputs_[input] = {number, scale};
}

Preprocess::Preprocess(const Model& model) {
  const std::string text = model.metadata(kPreprocess);
  if (text.empty()) return;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) fail("the metadata '", kPreprocess, "' are no JSON object: ", text);
  for (const auto& [input, steps] : json.items()) {
    if (!steps.is_string()) fail("the metadata '", kPreprocess, "': the steps of '", input, "' are no text");
    ExpressionReader reader(concat(kPreprocess, " of '", input, "'"), steps.get<std::string>());
    Input read{"", 1};
    do {
      const Word step = reader.word("a step");
      if (step.text != "scale") {
        reader.fail_at(step.column, concat("this version does not know the step '", step.text, "'; there is scale(X)"));
      }
      reader.expect('(', "a number");
      read.scale *= read_number(&reader);
      reader.expect(')', "the end of the step");
    } while (reader.take(','));
    if (!reader.at_end()) reader.fail_at(reader.column(), "expected the end");
    const std::string written = steps.get<std::string>();
    const bool is_one = std::count(written.begin(), written.end(), '(') == 1;
    read.number = is_one ? written.substr(written.find('(') + 1, written.find(')') - written.find('(') - 1)
                         : number_text(read.scale);
    inputs_[input] = read;
  }
}

Preprocess::Preprocess(const std::vector<std::string>& scales, const std::vector<InputSpec>& inputs) {
  for (const std::string& text : scales) {
    if (text == "1") continue;  // of every input, however many there are
    const auto [name, number] = split(text);
    add(input_of(name, inputs).name, number, parse_number(number));
  }
}

double Preprocess::scale(const std::string& input) const {
  const auto found = inputs_.find(input);
  return found == inputs_.end() ? 1 : found->second.scale;
}

std::string Preprocess::text() const {
  std::string text;
  for (const auto& [name, input] : inputs_)
    text += concat(text.empty() ? "" : "; ", name, ": scale(", input.number, ")");
  return empty() ? "nothing" : text;
}

std::string Preprocess::option() const {
  std::string text;
  for (const auto& [name, input] : inputs_) text += concat(text.empty() ? "" : ",", name, "=", input.number);
  return empty() ? "1" : text;
}

std::string Preprocess::json() const {
  if (empty()) return "";
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, input] : inputs_) json[name] = concat("scale(", input.number, ")");
  return json.dump();
}

bool Preprocess::same(const Preprocess& other) const {
  const auto equal = [](const auto& a, const auto& b) {
    constexpr double kAsWritten = 1e-5;  // 0.00392157 for 1/255
    return a.first == b.first && std::abs(a.second.scale / b.second.scale - 1) < kAsWritten;
  };
  return std::equal(inputs_.begin(), inputs_.end(), other.inputs_.begin(), other.inputs_.end(), equal);
}

void check_scale(const std::string& text) {
  try {
    parse_number(split(text).second);
  } catch (const Error&) {
    fail("a number above 0 such as 0.5 or 1/255, or INPUT=NUMBER");
  }
}

Preprocess preprocess_of(const Model& model, const std::vector<std::string>& scales,
                         const std::vector<InputSpec>& inputs, std::string* note) {
  Preprocess stored(model);
  if (scales.empty()) return stored;
  Preprocess given(scales, inputs);
  if (given.same(stored)) return stored;
  if (!stored.empty()) {
    *note = concat("--scale ", given.option(), " takes the place of what the model was trained with: ", stored.text());
  }
  return given;
}

void multiply(Tensor* tensor, double factor) {
  dispatch_float(tensor->dtype(), [&](auto tag) {
    auto* values = tensor->data<decltype(tag)>();
    for (int64_t i = 0; i < tensor->size(); ++i) values[i] *= static_cast<decltype(tag)>(factor);
  });
}

void apply(const Preprocess& preprocess, const std::vector<InputSpec>& inputs, TensorMap* batch) {
  if (preprocess.empty()) return;
  for (const InputSpec& spec : inputs) {
    const double scale = preprocess.scale(spec.name);
    const auto found = batch->find(spec.name);
    if (scale == 1 || found == batch->end()) continue;
    Tensor& tensor = found->second;
    if (tensor.is_on_device()) {
      throw UsageError(concat("input '", spec.name, "' is scaled (", preprocess.text(), "), but in a device's memory"));
    }
    tensor = tensor.dtype() == spec.type.dtype ? tensor.clone() : tensor.cast(spec.type.dtype);
    multiply(&tensor, scale);
  }
}

namespace {

// Whether the network itself brings the input into another range: a mean is subtracted, a batch norm follows.
bool is_normalized(const Model& model, const std::string& input) {
  const Value* value = model.graph->find(input);
  if (!value) return false;
  return std::any_of(value->uses().begin(), value->uses().end(), [](const Use& use) {
    const std::string& op = use.node->op();
    return op == "Mul" || op == "Div" || op == "Sub" || op == "Cast" || op == "BatchNormalization" ||
           op == "QuantizeLinear";
  });
}

}  // namespace

std::string bytes_hint(const Dataset& data, const Model& model) {
  constexpr int64_t kLooked = 1 << 16;
  for (const Dataset::Array& array : data.arrays()) {
    const bool is_bytes = !array.rows && array.data.dtype() == DType::kUint8 && is_float(array.dtype) &&
                          array.scale == 1 && array.data.size() > 0;
    const Value* input = model.graph->find(array.name);
    if (!is_bytes || !input || !model.graph->is_input(input) || is_normalized(model, array.name)) continue;
    const uint8_t* values = array.data.data<uint8_t>();
    const uint8_t most = *std::max_element(values, values + std::min(array.data.size(), kLooked));
    if (most <= 1) continue;  // a mask
    return concat("'", array.name,
                  "' holds bytes, which enter the network as 0 to 255: --scale 1/255 makes them 0 to 1",
                  ", --scale 1 leaves this hint out");
  }
  return "";
}

}  // namespace onnx_train
