// The types that a file declares for its values. Where inference does not reach, they are facts that passes build on;
// elsewhere they are compared with what follows from contents and graph. Values of one thread; the graph must outlive
// them.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "onnx_passes/import/sizes.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// A declaration that cannot be true.
struct Contradiction {
  std::string what;  // "output 'y'"
  TensorType declared, found;
};

// Whether no value can have both types. Symbolic and unknown sizes match everything; 16-bit floats count as widened.
bool contradict(const TensorType& declared, const TensorType& found);

class Declarations {
 public:
  // Reads the declarations of `graph` and its subgraphs, and sets the types of initializers from their contents.
  // `sizes` are those that the user gives to symbolic dimensions. Without `trust_shapes`, only element types are taken
  // from the file: its shapes are known to be wrong.
  Declarations(Graph* graph, const Sizes& sizes, bool trust_shapes);

  // Adds to the inferred types of the node's outputs what only the file says. Sizes of the file are no longer used from
  // the first value on whose declaration is narrower than what is inferred: somebody has given the inputs other sizes,
  // and has left the declarations as they were.
  void refine(const Node& node);
  // Gives values of a subgraph, before they are inferred, their declared element types and ranks.
  void seed(const Graph& subgraph) const;
  // What the file says of a value; null if nothing.
  const TensorType* of(const Value& value) const;
  // Keeps, in the model, the types that the file has completed, and which these are: a plan checks them.
  void record(Model* model) const;

  // Checks initializers and, once the graph's types are inferred, outputs: declarations that users rely on.
  std::vector<Contradiction> of_interface(const Graph& graph) const;
  // Checks intermediate values, whose types inference recomputes anyway.
  std::vector<Contradiction> of_intermediates(const Graph& graph) const;

 private:
  using Types = std::unordered_map<std::string, TensorType>;

  TensorType trusted(TensorType declared) const;
  void read(const Graph& graph, const std::vector<Value*>& inputs, const Sizes& sizes);

  std::vector<Contradiction> initializers_;
  std::vector<TensorType> outputs_;
  std::vector<std::pair<std::string, TensorType>> intermediates_;
  std::unordered_map<const Graph*, Types> types_;
  std::vector<std::string> completed_;  // values of the main graph
  enum { kElementTypes, kRanks, kSizes } trusted_;
};

// The types of values that a model takes from the file's declarations: those that Declarations::record has kept. To be
// read before a plan forgets types that hold for all sizes.
class DeclaredFacts {
 public:
  explicit DeclaredFacts(const Model& model);
  // Throws Error if a value has become something else than declared. `sizes` are those of the symbols of inputs.
  void expect(const Graph& graph, const Sizes& sizes) const;

 private:
  std::vector<std::pair<std::string, TensorType>> types_;
};

// "output 'y' is declared as float[N,10], but it is float[N,20]; ..."
std::string describe(const std::vector<Contradiction>& contradictions);

}  // namespace onnx_train
