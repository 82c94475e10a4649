#include "onnx_passes/distribution/stage_owners.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "onnx_passes/distribution/stage_placement.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/model/flatten.h"

namespace onnx_train {
namespace {

using Names = std::set<std::string>;

Names names_of_states(const Model& model) {
  Names names;
  for (const EntryPoint& point : model.entry_points) {
    for (const Binding& binding : point.update_bindings) names.insert(binding.state->name());
  }
  return names;
}

// Throws Error for a model whose states do not belong to single stages.
void expect_separable(const Graph& graph) {
  for (const Value* input : graph.inputs()) {
    if (input->has_role(roles::kMagnitudes))
      fail_as(ErrorCode::kUsage,
              "a pipeline does not train 8-bit floats: their scales follow from what all stages compute");
  }
}

// The weights that nodes read: directly, or as values that follow from them and from no batch.
class WeightsRead {
 public:
  explicit WeightsRead(const Graph& graph) {
    Names weights;
    for (const Value* input : graph.inputs()) {
      if (input->has_role(roles::kGradientSum)) weights.insert(input->role()->of);
    }
    for (const Value* input : graph.inputs()) {
      const std::string& weight = input->has_role(roles::kRaw) ? input->role()->of : input->name();
      if (weights.count(weight)) weights_of_[input] = {weight};
    }
  }
  Names of(const Node& node) const {
    Names read;
    for_each_input(node, [&](const Value* v) {
      const auto found = weights_of_.find(v);
      if (found != weights_of_.end()) read.insert(found->second.begin(), found->second.end());
    });
    return read;
  }
  // The outputs of a node that reads no batch follow from `read`.
  void follow(const Node& node, const Names& read) {
    for (const Value* output : node.outputs()) {
      if (output && !read.empty()) weights_of_[output] = read;
    }
  }

 private:
  std::map<const Value*, Names> weights_of_;
};

// Cuts the forward pass where its cost, counted from the start, passes a stage's share. The first stage has the first
// weights, also where much is frozen before them.
StateOwners owners_of_weights(const Graph& graph, const Names& states, int stages, const CostOfNode& cost) {
  const StagePlacement phases(graph, {}, states);
  double total = 0, before = 0;
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (phases.phase(*node) == Phase::kForward) total += cost(*node);
  }
  StateOwners owners;
  WeightsRead weights(graph);
  int last = 0;
  for (const Node* node = graph.first(); node; node = node->next()) {
    const Phase phase = phases.phase(*node);
    if (phase == Phase::kBackward) continue;
    const Names read = weights.of(*node);
    if (phase == Phase::kOnce) {
      weights.follow(*node, read);
      continue;
    }
    const double own = cost(*node), share = total > 0 ? (before + own / 2) / total : 0;
    before += own;
    const bool is_new =
        std::any_of(read.begin(), read.end(), [&](const std::string& weight) { return !owners.count(weight); });
    if (!is_new) continue;
    if (!owners.empty()) last = std::clamp(static_cast<int>(share * stages), last, std::min(stages - 1, last + 1));
    for (const std::string& weight : read) owners.emplace(weight, last);
  }
  if (last < stages - 1) {
    fail_as(ErrorCode::kUsage, "a pipeline of ", stages, " stages: the model's layers with weights make ", last + 1,
            last == 0 ? " stage" : " stages", " of about the same cost; give --pipeline ", last + 1);
  }
  return owners;
}

// States of weights belong to the weights' stages.
void add_states_of_weights(const Model& model, StateOwners* owners) {
  for (const EntryPoint& point : model.entry_points) {
    for (const Binding& binding : point.update_bindings) {
      const Value* state = binding.state;
      const auto owner = state->role() ? owners->find(state->role()->of) : owners->end();
      if (owner != owners->end()) owners->emplace(state->name(), owner->second);
    }
  }
}

// Statistics of batches, and what counts in them, belong to the stages that compute them; then states that follow from
// those.
void add_statistics(const Graph& graph, const Names& states, StateOwners* owners) {
  for (size_t known = 0; known != owners->size();) {
    known = owners->size();
    const StagePlacement placement(graph, *owners, states);
    for (const Value* output : graph.outputs()) {
      if (!output->has_role(roles::kNext) || owners->count(output->role()->of)) continue;
      if (placement.stage(*output) != kEveryStage) (*owners)[output->role()->of] = placement.stage(*output);
    }
  }
}

}  // namespace

StateOwners share_out_stages(const Model& model, int stages, const CostOfNode& cost) {
  Model flat = flatten(model, Entry::kAccumulate);
  Graph& graph = *flat.graph;
  infer_types(&graph);
  expect_separable(graph);
  const Names states = names_of_states(model);
  StateOwners owners = owners_of_weights(graph, states, stages, cost);
  add_states_of_weights(model, &owners);
  add_statistics(graph, states, &owners);
  return owners;
}

}  // namespace onnx_train
