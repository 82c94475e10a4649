#include "onnx_passes/import/fix_inputs.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <unordered_set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(':', start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

template <typename T>
bool read(const std::string& text, T* value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

template <typename T>
bool put(const std::string& text, int64_t index, Tensor* tensor) {
  T value{};
  if (!read(text, &value)) return false;
  tensor->data<T>()[index] = value;
  return true;
}

// Whether the text is a value of the tensor's type; std::from_chars rejects values out of the type's range.
bool put(const std::string& text, int64_t index, Tensor* tensor) {
  switch (tensor->dtype()) {
    case DType::kInt8: return put<int8_t>(text, index, tensor);
    case DType::kInt16: return put<int16_t>(text, index, tensor);
    case DType::kInt32: return put<int32_t>(text, index, tensor);
    case DType::kInt64: return put<int64_t>(text, index, tensor);
    case DType::kUint8: return put<uint8_t>(text, index, tensor);
    case DType::kUint16: return put<uint16_t>(text, index, tensor);
    case DType::kUint32: return put<uint32_t>(text, index, tensor);
    case DType::kUint64: return put<uint64_t>(text, index, tensor);
    case DType::kFloat: return put<float>(text, index, tensor) && std::isfinite(tensor->at(index));
    case DType::kDouble: return put<double>(text, index, tensor) && std::isfinite(tensor->at(index));
    case DType::kBool: {
      const bool yes = text == "true" || text == "1";
      tensor->data<bool>()[index] = yes;
      return yes || text == "false" || text == "0";
    }
    default: return false;
  }
}

Tensor parse(const Value& input, const std::string& text) {
  const TensorType& type = input.type();
  const std::vector<std::string> parts = split(text);
  const auto count = static_cast<int64_t>(parts.size());
  bool fits = type.dims && (type.rank() == 1 || count == 1);
  for (size_t i = 0; fits && i < type.dims->size(); ++i) {
    const Dim& dim = (*type.dims)[i];
    fits = !dim.known() || dim.value() == count;
  }
  if (!fits)
    fail("--set ", input.name(), "=", text, ": the input is ", to_string(type), ", ", count,
         count == 1 ? " value is given" : " values are given", "; only inputs of one value or one axis can be set");
  Tensor tensor(type.dtype, Shape(type.dims->size(), count));
  for (int64_t i = 0; i < count; ++i) {
    if (!put(parts[static_cast<size_t>(i)], i, &tensor))
      fail("--set ", input.name(), "=", text, ": '", parts[static_cast<size_t>(i)], "' is no ", name(type.dtype),
           "; the input is ", to_string(type));
  }
  return tensor;
}

Value* find_input(const Graph& graph, const std::string& setting, const std::string& name) {
  std::vector<std::string> names;
  std::string all;
  for (Value* input : graph.inputs()) {
    if (input->name() == name) return input;
    names.push_back(input->name());
    all += concat(all.empty() ? "'" : ", '", input->name(), "'");
  }
  const std::string similar = similar_names(name, names);
  fail("--set ", setting, ": the model has no input '", name, "'; ",
       similar.empty() ? "its inputs are " : "did you mean ", similar.empty() ? all : similar,
       similar.empty() ? "" : "?");
}

// Floats become a Constant, which no option can select for training.
void fix(Graph* graph, Value* input, const Tensor& tensor) {
  input->set_type({tensor.dtype(), Dims(tensor.shape().begin(), tensor.shape().end())});
  if (!is_float(tensor.dtype())) {
    graph->set_initializer(input, tensor);
    graph->remove_input(input);
    return;
  }
  const std::string name = input->name();
  graph->rename(input, graph->unique_name(name + "/input"));
  Node* node = graph->add_node("Constant", {}, {name}, "", graph->first());
  node->set_attr("value", tensor);
  node->output()->set_type(input->type());
  graph->replace(input, node->output());
  graph->remove_input(input);
}

// The inputs of `outer` that nodes of the graph or within it read.
void add_inputs_read(const Graph& graph, const Graph& outer, std::set<const Value*>* read) {
  for (const Node* node = graph.first(); node; node = node->next()) {
    for (const Value* input : node->inputs()) {
      if (input && &input->graph() == &outer && outer.is_input(input)) read->insert(input);
    }
    for (const auto& subgraph : node->subgraphs()) add_inputs_read(*subgraph.graph, outer, read);
  }
}

bool is_cache(const Value* input) { return is_float(input->dtype()) && input->name().starts_with("past"); }

// Whether `more` reads what `less` does, and a cache besides.
bool adds_a_cache(const std::set<const Value*>& less, const std::set<const Value*>& more) {
  std::vector<const Value*> added;
  std::set_difference(more.begin(), more.end(), less.begin(), less.end(), std::back_inserter(added));
  return !added.empty() && std::all_of(added.begin(), added.end(), is_cache) &&
         std::includes(more.begin(), more.end(), less.begin(), less.end());
}

// The value of the input with which no If reads a cache that it reads with the other value; nothing if there is none.
std::optional<bool> value_without_cache(const Graph& graph, const Value& input) {
  std::optional<bool> value;
  for (const Use& use : input.uses()) {
    const Node& node = *use.node;
    const Graph *yes = node.subgraph("then_branch"), *no = node.subgraph("else_branch");
    if (!node.is("If") || &node.graph() != &graph || !yes || !no) return std::nullopt;
    std::set<const Value*> read_if_so, read_if_not;
    add_inputs_read(*yes, graph, &read_if_so);
    add_inputs_read(*no, graph, &read_if_not);
    const bool chosen = adds_a_cache(read_if_so, read_if_not);
    if (!chosen && !adds_a_cache(read_if_not, read_if_so)) return std::nullopt;
    if (value && *value != chosen) return std::nullopt;
    value = chosen;
  }
  return value;
}

}  // namespace

std::vector<std::string> choose_branches_without_cache(Graph* graph) {
  std::vector<std::string> settings;
  const std::vector<Value*> inputs = graph->inputs();
  for (Value* input : inputs) {
    if (input->dtype() != DType::kBool || input->is_initializer() || !input->has_rank() || input->rank() > 1) continue;
    const std::optional<bool> value = value_without_cache(*graph, *input);
    if (!value) continue;
    settings.push_back(concat(input->name(), *value ? "=true" : "=false"));
    fix(graph, input, Tensor::full(DType::kBool, Shape(static_cast<size_t>(input->rank()), 1), *value ? 1 : 0));
  }
  return settings;
}

void fix_inputs(Graph* graph, const std::vector<std::string>& settings) {
  std::unordered_set<std::string> names;
  for (const std::string& setting : settings) {
    const size_t equals = setting.rfind('=');
    if (equals == std::string::npos || equals == 0) fail("--set takes NAME=VALUE, not '", setting, "'");
    const std::string name = setting.substr(0, equals);
    if (!names.insert(name).second) fail("--set gives '", name, "' twice");
    Value* input = find_input(*graph, setting, name);
    fix(graph, input, parse(*input, setting.substr(equals + 1)));
  }
}

}  // namespace onnx_train
