// Where and when the nodes of an entry point run that is cut into the stages of a pipeline (pipeline_stages.h). It
// reads a graph, which stays as it is while the object is used; nothing throws.
#pragma once

#include <map>
#include <set>
#include <string>

#include "onnx_passes/distribution/sharded_states.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

inline constexpr int kEveryStage = -1;  // the stage of what every rank computes

// Once for all micro-batches, or for each, before or after the loss.
enum class Phase { kOnce, kForward, kBackward };

class StagePlacement {
 public:
  // `states` are the names of all states of the model; those that are not in `owners` belong to every stage. Inputs
  // with a default are data where `given` has their names.
  StagePlacement(const Graph& graph, const StateOwners& owners, const std::set<std::string>& states,
                 const std::map<std::string, Shape>& given = {});

  // A data input, or a state that a batch changes.
  bool changes(const Value& input) const {
    if (!graph_.is_input(&input)) return false;
    return is_state(input) ? next_.of(input) != nullptr : !input.is_initializer() || given_.contains(&input);
  }
  bool is_state(const Value& v) const { return states_.contains(&v); }
  const Value* next(const Value& v) const { return next_.of(v); }  // of a state; null for any other value

  int stage(const Value& v) const {
    const int* found = stage_.find(&v);
    return found ? *found : kEveryStage;
  }
  int stage(const Node& node) const {
    const int* found = node_stage_.find(&node);
    return found ? *found : kEveryStage;
  }
  Phase phase(const Node& node) const { return phase_.at(&node); }
  Phase phase(const Value& v) const {
    if (v.producer()) return phase(*v.producer());
    return changes(v) ? Phase::kForward : Phase::kOnce;
  }

 private:
  void find_phases();
  void place(const Node& node);

  const Graph& graph_;
  const NextValues next_;
  Marks<Value> states_, given_;
  NodeTable<Phase> phase_;
  NodeTable<int> node_stage_;                  // none: kEveryStage
  ValueTable<int> stage_;                      // likewise
  std::map<const Value*, std::set<int>> has_;  // the stages that have a value of the forward pass
};

}  // namespace onnx_train
