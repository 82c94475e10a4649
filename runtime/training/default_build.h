// A training model of a forward model for given data, with defaults for what the user leaves open. Pure functions; any
// thread.
#pragma once

#include <functional>
#include <string>

#include "runtime/data/dataset.h"
#include "runtime/models/build_settings.h"
#include "runtime/training/loss_guess.h"

namespace onnx_train {

struct DefaultBuild {
  Model model;
  std::string loss;      // as --loss took it: given, or guessed
  std::string why;       // of a guessed loss; "" for one that was given
  std::string sizes;     // a sentence where sizes of the data were needed (sizes_of_data.h); else ""
  bool is_built = true;  // false: the file holds a training model already, and there is no `loss`
};

// Guesses the loss of the imported and adapted model.
using GuessLoss = std::function<LossGuess(const Model& forward)>;
// The data, as the inputs of the imported model.
using ReadInputs = std::function<Dataset(const Model& forward)>;

enum class BuildFor { kTraining, kEvaluation };

// Imports, adapts and builds, as `onnx-train build` does with `settings`, and takes the loss of `guess` where
// `settings` has an empty one. The same arguments give the same bytes. For an evaluation, a model that has the entry
// point "evaluate" alone. Where that fails because of sizes that the model leaves open, those of the data are tried.
// Throws Error with the reason if that is impossible.
DefaultBuild build_for_data(const ModelMessage& forward, const BuildSettings& settings, const GuessLoss& guess,
                            const ReadInputs& read, BuildFor purpose = BuildFor::kTraining);

// The same of a file, or the training model that the file holds.
DefaultBuild load_or_build(const std::string& path, const BuildSettings& settings, const GuessLoss& guess,
                           const ReadInputs& read, BuildFor purpose = BuildFor::kTraining);

}  // namespace onnx_train
