// The roles that values of a training model have (ValueRole): passes and runtime find a value by its role, never by its
// name, which is for people and gives way to the model's own names. Where a name is free, a value is named as its role.
#pragma once

#include <string_view>
#include <unordered_map>

#include "onnx_passes/ir/graph.h"

namespace onnx_train::roles {

// Outputs.
inline constexpr const char* kLoss = "loss";
inline constexpr const char* kAccuracy = "accuracy";
inline constexpr const char* kGradNorm = "grad_norm";
// Inputs with defaults.
inline constexpr const char* kLearningRate = "learning_rate";
inline constexpr const char* kClipNorm = "clip_norm";
inline constexpr const char* kSeed = "seed";
// States. Those of an optimizer have the name of their slot ("momentum_buffer", "exp_avg") and belong to a weight.
inline constexpr const char* kStep = "step";
inline constexpr const char* kRandomKey = "random_key";
inline constexpr const char* kLossScale = "loss_scale";
inline constexpr const char* kGoodSteps = "good_steps";            // since the loss scale has changed
inline constexpr const char* kGradientSum = "grad";                // of a weight
inline constexpr const char* kAccumulated = "accumulated";         // gradients in the sums
inline constexpr const char* kAccumulatedFor = "accumulated_for";  // the step that they are for
// An output that is there for the sake of its binding: the new value of the state that it belongs to.
inline constexpr const char* kNext = "next";

}  // namespace onnx_train::roles

namespace onnx_train {

// The outputs of a flattened entry point that are new values of states. Valid while the graph's outputs are the same.
class NextValues {
 public:
  explicit NextValues(const Graph& graph) {
    for (const Value* output : graph.outputs()) {
      if (output->has_role(roles::kNext)) by_state_.emplace(output->role()->of, output);
    }
  }
  // The new value of the state of this name; null when the entry point does not update it.
  const Value* of(std::string_view state) const {
    const auto found = by_state_.find(state);
    return found == by_state_.end() ? nullptr : found->second;
  }
  // The new value of a state that is an input of the graph; null for any other value.
  const Value* of(const Value& input) const { return input.producer() ? nullptr : of(input.name()); }

 private:
  std::unordered_map<std::string_view, const Value*> by_state_;
};

}  // namespace onnx_train
