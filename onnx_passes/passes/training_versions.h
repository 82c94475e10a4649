// Training versions of nodes: copies of the inference graph's nodes in an entry point's algorithm, made where training
// computes something else. EntryPoint::training_versions lists them; the version of a value `v` is named train/v where
// that is free. Used by one pass at a time; does not outlive the model.
#pragma once

#include <string>
#include <unordered_map>

#include "onnx_passes/passes/entry_point.h"

namespace onnx_train {

inline std::string training_name(const Value* value) { return "train/" + value->name(); }
// The training version of a value of the inference graph, or the value itself where the two do not differ.
Value* training_value(const EntryPoint& entry, Value* inference_value);

class TrainingVersions {
 public:
  // Copies go before `before`, a node of the algorithm; to its end when null.
  explicit TrainingVersions(EntryPoint* entry, Node* before = nullptr) : entry_(*entry), before_(before) {}

  bool empty() const { return versions_.empty(); }
  // The version that was made here; the value itself where there is none.
  Value* of(Value* value) const;
  // Whether the node, or a graph inside it, reads a value that has a version.
  bool are_read_by(const Node& node) const;

  // Makes a copy of the node, which reads versions where there are some, and whose outputs are versions.
  void copy(const Node& node);
  // `made` is the version of `original`.
  void add(Value* original, Value* made);
  // The version of `original` from now on.
  void set(Value* original, Value* made) { versions_[original] = entry_.training_versions[original] = made; }
  // The nodes of `graph`, and of the graphs inside, read versions where there are some.
  void redirect(Graph* graph) const;

 private:
  bool are_read_by(const Graph& graph) const;
  void copy_subgraph(const Node::Subgraph& subgraph, Node* node);

  EntryPoint& entry_;
  Node* before_;
  std::unordered_map<Value*, Value*> versions_;  // of the inference graph -> of the algorithm
};

}  // namespace onnx_train
