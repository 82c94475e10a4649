#include "kernels/lowering/canonical/inputs.h"

#include <utility>
#include <vector>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"

namespace onnx_train {
namespace {

bool accepts(const Dims& declared, const Shape& given) {
  if (declared.size() != given.size()) return false;
  for (size_t i = 0; i < given.size(); ++i) {
    if (declared[i].known() && declared[i].value() != given[i]) return false;
  }
  return true;
}

}  // namespace

bool fix_defaults(Model& model, const PlanInputs& inputs) {
  Graph& graph = *model.graph;
  bool changed = false;
  const std::vector<Value*> all = graph.inputs();
  for (auto it = all.rbegin(); it != all.rend(); ++it) {  // the last input is the cheapest to remove
    Value* input = *it;
    if (!input->is_initializer() || inputs.shapes.contains(input->name())) continue;
    const Shape shape = constant_shape(*input);
    input->set_type({input->dtype(), Dims(shape.begin(), shape.end())});
    if (!inputs.states.contains(input->name())) graph.remove_input(input);
    changed = true;
  }
  return changed;
}

bool set_shapes(Model& model, PlanInputs* inputs) {
  Graph& graph = *model.graph;
  std::map<std::string, std::pair<int64_t, std::string>> symbols;  // symbol -> size, and the input that sets it
  for (Value* input : graph.inputs()) {
    TensorType type = input->type();
    const auto given = inputs->shapes.find(input->name());
    if (given != inputs->shapes.end()) {
      if (type.dims && !accepts(*type.dims, given->second)) {
        fail_as(ErrorCode::kInputShape, "input '", input->name(), "' has shape ", to_string(given->second),
                "; the model takes ", to_string(type));
      }
      for (size_t i = 0; type.dims && i < given->second.size(); ++i) {
        const std::string& symbol = (*type.dims)[i].symbol();
        if (symbol.empty()) continue;
        const auto [known, added] = symbols.try_emplace(symbol, given->second[i], input->name());
        if (!added && known->second.first != given->second[i]) {
          fail_as(ErrorCode::kInputShape, "input '", input->name(), "' has ", given->second[i], " for '", symbol,
                  "', but input '", known->second.second, "' has ", known->second.first, "; give both the same size");
        }
      }
      type.dims.emplace(given->second.begin(), given->second.end());
      input->set_type(type);
    }
    if (!input->type().is_static()) {
      fail_as(ErrorCode::kInputShape, "input '", input->name(), "' (", to_string(input->type()),
              ") needs a shape; none was given");
    }
  }
  for (Node* node = graph.first(); node; node = node->next()) forget_shapes(node);
  for (const auto& [symbol, size] : symbols) inputs->sizes[symbol] = size.first;
  return true;
}

}  // namespace onnx_train
