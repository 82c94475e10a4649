// Training versions of nodes: copies of the inference graph's nodes in an entry point's algorithm, where training
// computes something else. EntryPoint::training_versions lists them; the version of a value `v` is named train/v if
// that is free. Owned by one pass at a time; the model must outlive it.
#pragma once

#include <string>
#include <unordered_map>

#include "onnx_passes/model/entry_point.h"

namespace onnx_train {

inline std::string training_name(const Value* value) { return "train/" + value->name(); }
// The training version of a value of the inference graph; the value itself if there is none.
Value* training_value(const EntryPoint& entry, Value* inference_value);

class TrainingVersions {
 public:
  // Inserts copies before `before`, a node of the algorithm, or at its end if null.
  explicit TrainingVersions(EntryPoint* entry, Node* before = nullptr) : entry_(*entry), before_(before) {}

  bool empty() const { return versions_.empty(); }
  // The version that this object created; the value itself if there is none.
  Value* of(Value* value) const;
  // Whether the node, or a node in its subgraphs, reads a value that has a version.
  bool are_read_by(const Node& node) const;

  // Copies the node. The copy reads versions where they exist, and its outputs are versions.
  void copy(const Node& node);
  // Records that `made` is the version of `original`.
  void add(Value* original, Value* made);
  // Replaces the version of `original`.
  void set(Value* original, Value* made) { versions_[original] = entry_.training_versions[original] = made; }
  // Makes the nodes of `graph` and its subgraphs read versions where they exist.
  void redirect(Graph* graph) const;

 private:
  bool are_read_by(const Graph& graph) const;
  void copy_subgraph(const Node::Subgraph& subgraph, Node* node);

  EntryPoint& entry_;
  Node* before_;
  std::unordered_map<Value*, Value*> versions_;  // value of the inference graph -> value of the algorithm
};

}  // namespace onnx_train
