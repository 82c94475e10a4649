#include "onnx_passes/training/streamed_states.h"

#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/model/liveness.h"

namespace onnx_train {
namespace {

int64_t size_of_state(const Value& state) { return num_elements(state.type().shape()); }

// The states that decide what an entry point returns, beside the new values of states.
void add_states_of_results(const Model& model, const EntryName& entry, std::set<std::string>* names) {
  const Model flat = flatten(model, entry);
  Liveness live;
  for (const Value* output : flat.graph->outputs()) {
    if (!output->has_role(roles::kNext)) live.need(output);
  }
  live.trace(*flat.graph);
  for (const Value* input : flat.graph->inputs()) {
    if (live.needs(input)) names->insert(input->name());
  }
}

}  // namespace

std::set<std::string> streamed_states(const Model& model) {
  std::set<std::string> of_results, streamed;
  for (const EntryPoint& point : model.entry_points) add_states_of_results(model, point.name(), &of_results);
  for (const EntryPoint& point : model.entry_points) {
    for (const Binding& binding : point.update_bindings) {
      const Value& state = *binding.state;
      if (!state.role() || state.role()->of.empty() || of_results.contains(state.name())) continue;
      const Value* weight = model.graph->find(state.role()->of);
      if (weight && size_of_state(state) >= size_of_state(*weight)) streamed.insert(state.name());
    }
  }
  return streamed;
}

}  // namespace onnx_train
