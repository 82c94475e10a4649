// Predictions that hold probabilities already, where a loss has a softmax or a sigmoid of its own: the two together
// train another model. Pure functions of an imported model; any thread; they throw nothing of their own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/model/analysis.h"
#include "onnx_passes/model/build_options.h"

namespace onnx_train {

struct Probabilities {
  const Node* node;     // the Softmax or Sigmoid that makes them
  const Value* scores;  // whose softmax, or sigmoid, they are; null if something between changes numbers or places
  bool of_classes;      // they sum to 1 over the classes; otherwise each is a yes or no
};

// Looks back from a value through nodes that move it or bound it close to 0 and 1, through its division by the sum (as
// scikit-learn's converter writes one-vs-rest classifiers), and through [1 - p, p]. Nothing where it holds no
// probabilities.
std::optional<Probabilities> probabilities_of(const Value& value);

// What a loss compares where the user names nothing: the first float output that follows from an input of the model.
// Outputs before it may be numbers about the file, such as its version. Where none does, it is the first float output;
// null if there is none.
const Value* default_prediction(const Graph& graph);

// The loss where the user names none, of that prediction: itself where it is one number, mse where it has one number
// for each sample, otherwise cross_entropy over classes. Where it holds probabilities, the loss is that of the scores
// that they are made of, or of their logarithms. `finding` says what the expression alone does not.
struct DefaultLoss {
  std::string loss;
  std::optional<Finding> finding;
};
DefaultLoss default_loss(const Graph& graph);

// What is doubled in the loss of `options`, a line for each of its terms: subject "loss".
std::vector<Finding> describe_predictions(const Graph& graph, const BuildOptions& options);

}  // namespace onnx_train
