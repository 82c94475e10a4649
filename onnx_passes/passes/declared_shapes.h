// What a file declares of its values' types, compared with what their contents and the graph make of them. Values of
// one thread; the graph outlives none of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// One declaration that cannot be true.
struct Contradiction {
  std::string what;  // "output 'y'"
  TensorType declared, found;
};

class Declarations {
 public:
  // Reads what `graph` declares. Initializers get the types of their contents here.
  explicit Declarations(Graph* graph);

  // Of initializers, and of outputs once the graph's types are inferred: what the model's users see or its weights are.
  std::vector<Contradiction> of_interface(const Graph& graph) const;
  // Of the values between, which inference computes anew anyway.
  std::vector<Contradiction> of_intermediates(const Graph& graph) const;

 private:
  std::vector<Contradiction> initializers_;
  std::vector<TensorType> outputs_;
  std::vector<std::pair<std::string, TensorType>> intermediates_;
};

// "output 'y' is declared as float[N,10], but it is float[N,20]; ..."
std::string describe(const std::vector<Contradiction>& contradictions);

}  // namespace onnx_train
