// A whole ONNX model: the inference graph and, for a training model, one entry point per `training_info`. loading.h
// loads and saves models; this header converts from and to protobuf. Movable; one owner; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "onnx_passes/ir/entry.h"
#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// One pair of an update_binding: after the entry point has run, `state` is set to `next`.
struct Binding {
  Value* state;  // an initializer of the model's graph or of the algorithm
  Value* next;   // an output of the algorithm (or, for initialization, of the initialization graph)
};

// The gradient of the loss with respect to a trained weight, both values that an entry point computes with.
struct WeightGradient {
  Value* weight;    // an initializer of the model's graph
  Value* gradient;  // a value of the algorithm
};

// One entry point, stored as an `onnx::TrainingInfoProto`. It executes model.graph followed by `algorithm`; the name of
// the algorithm is the name of the entry point.
struct EntryPoint {
  std::unique_ptr<Graph> initialization;  // has no inputs; computes initial states
  std::unique_ptr<Graph> algorithm;       // its parent is model.graph
  std::vector<Binding> initialization_bindings;
  std::vector<Binding> update_bindings;
  // Stored in files as metadata of the algorithm.
  std::vector<WeightGradient> gradients;
  // The gradients of each part of a loss whose terms have counts of their own (roles.h), by part and then as in
  // `gradients`, null where a part does not depend on the weight; empty for any other loss. For passes only.
  std::vector<std::vector<Value*>> part_gradients;
  // Values of the inference graph -> values of the algorithm that a training step computes instead. For passes only:
  // `simplify`, which may remove such values, clears it, and files do not contain it.
  std::unordered_map<const Value*, Value*> training_versions;

  EntryName name() const { return algorithm->name(); }
  bool is(Entry entry) const { return name() == entry; }
  // The output or input of the algorithm with this role (roles.h); null if there is none.
  Value* output(std::string_view role) const;
  Value* input(std::string_view role) const;
};

class Model {
 public:
  Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  std::shared_ptr<Context> context;
  std::unique_ptr<Graph> graph;
  std::vector<EntryPoint> entry_points;

  EntryPoint& add_entry_point(const EntryName& name);
  EntryPoint* find_entry_point(const EntryName& name);  // null if there is none
  const EntryPoint* find_entry_point(const EntryName& name) const;
  // The one that reads the training data: kStep or, of a model built to accumulate gradients, kAccumulate; null if
  // there is none.
  const EntryPoint* training_entry_point() const;
  // A name that no value of the inference graph or of an entry point has: `base`, or base_1, base_2, ...
  std::string unique_name(const std::string& base) const;

  // metadata_props
  std::string metadata(const std::string& key) const;  // "" if absent
  void set_metadata(const std::string& key, const std::string& value);

  // The message without graph, training_info, functions and opset_import.
  const onnx::ModelProto& shell() const { return *shell_; }
  onnx::ModelProto& shell() { return *shell_; }

 private:
  std::unique_ptr<onnx::ModelProto> shell_;
};

// Throws Error if a node reads a value that is not defined before it, or if a name is defined twice.
Model from_proto(onnx::ModelProto proto);

struct ToProtoOptions {
  bool all_types = false;  // write value_info for every value with a known type, not only for those that had it
  bool contents = true;    // false: omit the data of initializers, except those of nodes' subgraphs
};
// Equal, field by field, to the message that the model was made from, except for what has been changed.
void to_proto(const Model& model, onnx::ModelProto* proto, ToProtoOptions options = {});
void to_proto(const Graph& graph, onnx::GraphProto* proto, ToProtoOptions options = {});

// Copies `proto`'s nodes and values into `graph`, which must be empty.
void from_proto(const onnx::GraphProto& proto, Graph* graph);

// A deep copy.
Model clone(const Model& model);

// The model in ONNX's text syntax. Tensors with more than `max_elements` elements are printed as their shape.
std::string to_text(const Model& model, int64_t max_elements = 16);
// Parses ONNX's text syntax. Throws Error with the parser's message and position.
Model from_text(const std::string& text);

}  // namespace onnx_train
