// Predictions that hold probabilities already, where a loss has a softmax or a sigmoid of its own: the two together
// train another model. Pure functions of an imported model; any thread; they throw nothing of their own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/passes.h"
#include "onnx_passes/training/analysis.h"

namespace onnx_train {

struct Probabilities {
  const Node* node;     // the Softmax or Sigmoid that makes them
  const Value* scores;  // whose softmax, or sigmoid, they are; null if something between changes numbers or places
  bool of_classes;      // they sum to 1 over the classes; otherwise each is a yes or no
};

// Looks back from a value through nodes that move it or bound it close to 0 and 1, through its division by the sum (as scikit-learn's converter
// writes one-vs-rest classifiers), and through [1 - p, p]. Nothing where it holds no probabilities.
std::optional<Probabilities> probabilities_of(const Value& value);

// The loss where the user names none: over classes, of the first float output or, where that holds probabilities, of
// the scores that they are made of, or of their logarithms. `finding` then says so.
struct DefaultLoss {
  std::string loss;
  std::optional<Finding> finding;
};
DefaultLoss default_loss(const Graph& graph);

// What is doubled in the loss of `options`, a line for each of its terms: subject "loss".
std::vector<Finding> describe_predictions(const Graph& graph, const BuildOptions& options);

}  // namespace onnx_train
