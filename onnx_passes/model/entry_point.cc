#include "onnx_passes/model/entry_point.h"

#include <algorithm>
#include <initializer_list>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/build_options.h"

namespace onnx_train {
namespace {

// `value`, if it is the output of a node of the algorithm without another role; else an Identity of it.
Value* own_output(Graph* algorithm, Var value) {
  Value* result = value.value();
  const bool own = &result->graph() == algorithm && result->producer() && !algorithm->is_output(result);
  return own ? result : value.builder().op("Identity", {value}).value();
}

}  // namespace

Value* add_result(EntryPoint* entry, const std::string& role, Var value) {
  Graph* algorithm = entry->algorithm.get();
  value.builder().set_name(role);
  Value* result = own_output(algorithm, value);
  algorithm->claim_name(result, role);
  result->set_role({role, ""});
  std::vector<Value*> outputs = algorithm->outputs();
  auto place = outputs.begin();
  while (place != outputs.end() && !(*place)->has_role(roles::kNext)) ++place;
  outputs.insert(place, result);
  algorithm->set_outputs(std::move(outputs));
  return result;
}

void bind_state(EntryPoint* entry, Value* state, Var next) {
  Graph* algorithm = entry->algorithm.get();
  const std::string name = "next/" + state->name();
  next.builder().set_name(name);
  Value* value = own_output(algorithm, next);
  algorithm->claim_name(value, name);
  value->set_role({roles::kNext, state->name()});
  algorithm->add_output(value);
  entry->update_bindings.push_back({state, value});
}

Value* add_input_with_default(EntryPoint* entry, const std::string& role, const Tensor& otherwise) {
  Graph& algorithm = *entry->algorithm;
  const Dims dims(otherwise.shape().begin(), otherwise.shape().end());
  Value* input = algorithm.add_input(algorithm.unique_name(role), {otherwise.dtype(), dims});
  algorithm.set_initializer(input, otherwise);
  input->set_role({role, ""});
  return input;
}

Value* add_state(const Model& model, Graph* graph, const std::string& name, const Tensor& value, ValueRole role) {
  Value* state = graph->add_initializer(model.unique_name(name), value);
  state->set_role(std::move(role));
  return state;
}

Value* find_state(const EntryPoint& entry, const char* role) {
  for (const Graph* graph = entry.algorithm.get(); graph; graph = graph->parent()) {
    for (Value* value : graph->initializers()) {
      if (value->has_role(role)) return value;
    }
  }
  return nullptr;
}

void assign_roles(Model* model) {
  const auto assign = [](const std::vector<Value*>& values, std::initializer_list<const char*> names) {
    for (Value* value : values) {
      for (const char* name : names) {
        if (value->name() == name && !value->role()) value->set_role({name, ""});
      }
    }
  };
  for (const EntryPoint& entry : model->entry_points) {
    for (const Graph* graph : {entry.algorithm.get(), entry.initialization.get()}) {
      for (const auto* values : {&graph->inputs(), &graph->outputs(), &graph->initializers()}) {
        if (std::any_of(values->begin(), values->end(), [](const Value* v) { return v->role(); })) return;
      }
    }
  }
  for (const EntryPoint& entry : model->entry_points) {
    assign(entry.algorithm->outputs(),
           {roles::kLoss, roles::kLossCount, roles::kAccuracy, roles::kAccuracyCount, roles::kGradNorm});
    assign(entry.algorithm->inputs(), {roles::kLearningRate, roles::kClipNorm});
    assign(entry.initialization->initializers(), {roles::kSeed});
    for (const Binding& b : entry.update_bindings) {
      const bool is_next = b.next->name() == "next/" + b.state->name() && !b.next->role();
      if (is_next) b.next->set_role({roles::kNext, b.state->name()});
    }
  }
}

std::string json_list(const std::vector<std::string>& names) {
  std::string text = "[";
  for (const std::string& name : names) {
    text += text.size() > 1 ? ", \"" : "\"";
    for (const char c : name) {
      const auto code = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text += concat('\\', c);
      } else if (code < 0x20) {
        constexpr char kDigits[] = "0123456789abcdef";
        text += concat("\\u00", kDigits[code >> 4], kDigits[code & 15]);
      } else {
        text += c;
      }
    }
    text += '"';
  }
  return text + "]";
}

}  // namespace onnx_train
