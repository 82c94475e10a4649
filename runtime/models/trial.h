// What becomes of a model in training, found by doing it: `check` and `build` say what `fit` and `predict` do because
// they do the same, but for the steps themselves. Functions on a model that one caller owns.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"

namespace onnx_train {

class Device;

// One thing in the way: a node or a part of the work, what is wrong, and what can be done.
struct Hindrance {
  std::string place, reason, way_out;
  bool for_all_sizes = false;  // no other sizes of the inputs would change it
  ErrorCode code = ErrorCode::kUnsupported;
};

// The obstacles in one sentence, for the last line of an error; the first of them where there are several.
std::string in_one_sentence(const std::vector<Hindrance>& obstacles);

// The loss that `build` takes without --loss (onnx_passes/loss/probabilities.h). Throws Error when no output is a
// float.
std::string suggest_loss(const Graph& graph);

// How a trial ended.
struct Trial {
  std::vector<Hindrance> obstacles;  // empty: the model can be trained
  std::vector<std::string> sizes;    // NAME=N for each symbolic dimension: what the plans were made for
  std::string unfit;                 // why the sizes that were tried before these do not fit; "" if they were the first
  bool fixed = false;                // only a model whose dimensions have these sizes can be built
};

struct TrialOptions {
  BuildOptions build;
  std::vector<std::string> sizes;  // NAME=N: sizes that are given; others are searched
  // Imports the forward model once more, with these sizes for its symbolic dimensions. May be null: then a model that
  // cannot be built for every size is not tried for single ones.
  std::function<Model(const std::vector<std::string>& dims)> import;
};

// Whether the device has kernels: a build with ONNX_TRAIN_MODELS_ONLY has none, and makes no plans.
bool can_run_models(const Device& device);

// Turns the imported `model` into a training model with the passes of `build`, then makes the plans of its entry points
// on `device`: with the sizes that are given and, for symbolic dimensions without one, with small and customary sizes
// until one fits; the number of attempts has a bound. Plans need no memory for values or state. `obstacles` are every
// node without a gradient, or else the first error. A device without kernels has no plans, so that these are left out.
// A bug of ours is none: throws PassFault.
Trial try_training(Model* model, const TrialOptions& options, Device& device);

// The same for a training model that is built already.
Trial try_plans(const Model& built, const TrialOptions& options, Device& device);

}  // namespace onnx_train
