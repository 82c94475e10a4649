#include "onnx_passes/passes/entry_point.h"

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// `value` under `name`, as an output of a node of the algorithm. Intermediate values of the model make room.
Value* named(Graph* algorithm, const std::string& name, Var value) {
  if (Value* taken = algorithm->find(name)) {
    Graph& graph = taken->graph();
    if (taken == value.value() && (&graph == algorithm || graph.is_output(taken))) return taken;
    if (!taken->producer() || graph.is_output(taken)) {
      fail("[", algorithm->name(), "] the model already has a value called '", name,
           "', a name of the training model; rename it in the model");
    }
    graph.rename(taken, graph.unique_name(name + "/inner"));
  }
  Value* result = value.value();
  if (&result->graph() != algorithm || !result->producer() || algorithm->is_output(result)) {
    value.builder().set_name(name);
    return value.builder().op("Identity", {value}).value();
  }
  algorithm->rename(result, name);
  return result;
}

bool is_next(const EntryPoint& entry, const Value* value) {
  for (const Binding& b : entry.update_bindings) {
    if (b.next == value) return true;
  }
  return false;
}

}  // namespace

Value* add_result(EntryPoint* entry, const std::string& name, Var value) {
  Graph* algorithm = entry->algorithm.get();
  Value* result = named(algorithm, name, value);
  std::vector<Value*> outputs = algorithm->outputs();
  auto place = outputs.begin();
  while (place != outputs.end() && !is_next(*entry, *place)) ++place;
  outputs.insert(place, result);
  algorithm->set_outputs(std::move(outputs));
  return result;
}

void bind_state(EntryPoint* entry, Value* state, Var next) {
  Value* value = named(entry->algorithm.get(), "next/" + state->name(), next);
  entry->algorithm->add_output(value);
  entry->update_bindings.push_back({state, value});
}

Value* add_input_with_default(EntryPoint* entry, const std::string& name, const Tensor& otherwise) {
  Graph& algorithm = *entry->algorithm;
  if (algorithm.find(name)) {
    fail("[", entry->name(), "] the model already has a value called '", name,
         "', an input of the training model; rename it in the model");
  }
  Value* input =
      algorithm.add_input(name, {otherwise.dtype(), Dims(otherwise.shape().begin(), otherwise.shape().end())});
  algorithm.set_initializer(input, otherwise);
  return input;
}

std::string json_list(const std::vector<std::string>& names) {
  std::string text = "[";
  for (const std::string& name : names) {
    text += text.size() > 1 ? ", \"" : "\"";
    for (const char c : name) {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    text += '"';
  }
  return text + "]";
}

}  // namespace onnx_train
