// The groups of element-wise nodes that fuse_elementwise outlines.
//
// Each node has a level: the highest level of its inputs, plus one if that input comes from a group that the node
// cannot join. Levels never decrease along a path and increase where a path leaves a group. So no path returns to a
// group that it has left, however the nodes of one level are grouped, and one traversal finds all groups.
//
// The pass owns the groups while it runs; one thread.
#pragma once

#include <functional>
#include <vector>

#include "kernels/geometry/fusion/fusion_region.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// Whether the device's kernel of Fused can compute the node.
using CanFuse = std::function<bool(const Node&)>;

struct Group {
  Space space;
  int level = 0;
  std::vector<Node*> nodes;  // empty after the group has been merged into another or dissolved
};

class FusionGroups {
 public:
  static constexpr size_t kMaxNodes = 128;  // per group, so that its values stay in the cache

  // Builds the groups of the graph's nodes. Both arguments must outlive this object.
  FusionGroups(Graph& graph, const CanFuse& can_fuse);

  Graph& graph() const { return graph_; }
  bool can_fuse(const Node& node) const { return can_fuse_(node); }
  bool is_graph_output(const Value* value) const { return outputs_.contains(value); }
  void add_graph_output(const Value* value) { outputs_.insert(value); }

  // Groups are numbered from 0 to count() - 1.
  int count() const { return static_cast<int>(groups_.size()); }
  Group& operator[](int g) { return groups_[static_cast<size_t>(g)]; }
  // Returns the group of the node, or -1.
  int of(const Node* node) const {
    const int* found = group_of_.find(node);
    return found ? *found : -1;
  }

  void add(Node* node, int g);
  // Sets the node's group but leaves the lists of nodes unchanged.
  void assign(const Node* node, int g) { group_of_[node] = g; }
  void release(const Node* node) { group_of_.erase(node); }
  void dissolve(int g);

  // Numbers the nodes in graph order, for `sort` and `place`.
  void number_nodes();
  void sort(std::vector<Node*>* nodes) const;
  bool is_numbered(const Node* node) const { return position_.contains(node); }
  int position(const Node* node) const { return position_.at(node); }
  // Returns the position of the value's producer, or -1 if there is none.
  int place(const Value* value) const { return value->producer() ? position(value->producer()) : -1; }

  // Returns the values of the space's size that the group reads but does not produce, in the order of their producers.
  std::vector<Value*> full_inputs(int g);

 private:
  void visit(Node* node);
  bool join(Node* node, const std::vector<int>& joined);
  int unite(const std::vector<int>& joined);
  void start_group(Node* node, int level);

  Graph& graph_;
  const CanFuse& can_fuse_;
  Marks<Value> outputs_;
  std::vector<Group> groups_;
  NodeTable<int> group_of_;
  NodeTable<int> level_of_;  // for nodes in no group
  ValueTable<ValueExtent> value_extents_;
  NodeTable<int> position_;
};

// Recomputes values that a group reads from other values that it reads, if the operations are cheaper than reading
// memory. A backward pass then keeps the activations of a network but no intermediate values. The nodes must be
// numbered before the call and are not numbered afterwards. Returns whether the graph changed.
bool rematerialize_in_region(FusionGroups* groups);

}  // namespace onnx_train
