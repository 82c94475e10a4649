// The types that a file declares for its values, compared with those that follow from contents and graph. Values of one
// thread; the graph must outlive them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// A declaration that cannot be true.
struct Contradiction {
  std::string what;  // "output 'y'"
  TensorType declared, found;
};

class Declarations {
 public:
  // Reads the declarations of `graph` and sets the types of initializers from their contents.
  explicit Declarations(Graph* graph);

  // Checks initializers and, once the graph's types are inferred, outputs: declarations that users rely on.
  std::vector<Contradiction> of_interface(const Graph& graph) const;
  // Checks intermediate values, whose types inference recomputes anyway.
  std::vector<Contradiction> of_intermediates(const Graph& graph) const;

 private:
  std::vector<Contradiction> initializers_;
  std::vector<TensorType> outputs_;
  std::vector<std::pair<std::string, TensorType>> intermediates_;
};

// "output 'y' is declared as float[N,10], but it is float[N,20]; ..."
std::string describe(const std::vector<Contradiction>& contradictions);

}  // namespace onnx_train
