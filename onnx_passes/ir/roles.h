// The roles of values in a training model (ValueRole). Passes and the runtime find a value by its role, never by its
// name: names are for people and may be changed to avoid conflicts with the model's own. If a name is free, a value is
// named after its role. Constants and plain values; any thread.
#pragma once

#include <string_view>
#include <unordered_map>

#include "onnx_passes/ir/graph.h"

namespace onnx_train::roles {

// Outputs.
inline constexpr const char* kLoss = "loss";
inline constexpr const char* kAccuracy = "accuracy";
inline constexpr const char* kGradNorm = "grad_norm";
// What the mean of the loss or the accuracy is over: labels, sums of their weights, elements. Batches are combined by
// it. A loss that sums over the batch has no count. A loss whose terms have different counts has none either: its terms
// are outputs, joined by what they count, each with its own count unless it sums; `of` is the number of the part.
inline constexpr const char* kLossCount = "loss_count";
inline constexpr const char* kAccuracyCount = "accuracy_count";
inline constexpr const char* kLossPart = "loss_part";
inline constexpr const char* kLossPartCount = "loss_part_count";
// What metrics are made of, in "evaluate": doubles that are summed over batches; `of` says which (metrics/metrics.h).
inline constexpr const char* kStatistic = "statistic";
// Inputs with defaults.
inline constexpr const char* kLearningRate = "learning_rate";
inline constexpr const char* kClipNorm = "clip_norm";
inline constexpr const char* kSeed = "seed";
// States. States of an optimizer have the name of their slot ("momentum_buffer", "exp_avg") and belong to a weight.
inline constexpr const char* kStep = "step";
inline constexpr const char* kRandomKey = "random_key";
inline constexpr const char* kRaw = "raw";  // what training reads in the place of a weight, which holds its average
inline constexpr const char* kLossScale = "loss_scale";
inline constexpr const char* kGoodSteps = "good_steps";     // number of finite steps since the loss scale changed
inline constexpr const char* kMagnitudes = "magnitudes";    // of tensors that are rounded to 8 bits, in the last steps
inline constexpr const char* kGradientSum = "grad";         // sum of gradients, belongs to a weight
inline constexpr const char* kAccumulated = "accumulated";  // what counts in the sums
inline constexpr const char* kAccumulating = "accumulating";  // whether the next batch adds to the sums
// Inputs and outputs of the forward and the backward pass as models of their own (differentiate.h).
inline constexpr const char* kOutput = "output";        // the forward pass: belongs to an output of the model
inline constexpr const char* kSaved = "saved";          // computed by the forward, read by the backward pass
inline constexpr const char* kOutputGradient = "dy";    // the backward pass: belongs to an output of the model
inline constexpr const char* kGradient = "gradient";    // the backward pass: belongs to a weight or an input
inline constexpr const char* kWeight = "weight";        // an input whose default is the file's value
inline constexpr const char* kTrainingState = "state";  // statistics and random keys, likewise
// The same of derivatives (derivative.h).
inline constexpr const char* kDirection = "direction";    // an input: belongs to a weight or an input
inline constexpr const char* kDerivative = "derivative";  // an output: belongs to an output, a weight or an input
// An output that exists only for its binding: the new value of the state it belongs to.
inline constexpr const char* kNext = "next";

}  // namespace onnx_train::roles

namespace onnx_train {

// The outputs of a flattened entry point that are new values of states. Valid while the graph's outputs do not change.
class NextValues {
 public:
  explicit NextValues(const Graph& graph) {
    for (const Value* output : graph.outputs()) {
      if (output->has_role(roles::kNext)) by_state_.emplace(output->role()->of, output);
    }
  }
  // The new value of the state of this name; null if the entry point does not update it.
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
