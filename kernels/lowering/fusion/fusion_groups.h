// The groups of element-wise nodes that fuse_elementwise outlines, and how they grow.
//
// Each node has a level: the highest level of its inputs, plus one if that input comes from a group that the node
// cannot join. Levels never decrease along a path and increase where a path leaves a group. So no path returns to a
// group that it has left, whichever nodes of one level are grouped, and one traversal finds all groups.
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
  static constexpr size_t kMaxNodes = 128;  // per group: with more, its values would not stay in the cache

  // Builds the groups of the graph's nodes. Both arguments must outlive this object.
  FusionGroups(Graph& graph, const CanFuse& can_fuse);

  Graph& graph() const { return graph_; }
  bool can_fuse(const Node& node) const { return can_fuse_(node); }
  bool is_graph_output(const Value* value) const { return outputs_.contains(value); }
  void add_graph_output(const Value* value) { outputs_.insert(value); }

  // Groups have the numbers 0 to count() - 1.
  int count() const { return static_cast<int>(groups_.size()); }
  Group& operator[](int g) { return groups_[static_cast<size_t>(g)]; }
  // The group of the node; -1 if none.
  int of(const Node* node) const {
    const int* found = group_of_.find(node);
    return found ? *found : -1;
  }

  // Appends a node to the group.
  void add(Node* node, int g);
  // Changes only which group the node belongs to; the lists of nodes stay as they are.
  void assign(const Node* node, int g) { group_of_[node] = g; }
  void release(const Node* node) { group_of_.erase(node); }
  void dissolve(int g);

  // Numbers the nodes in the graph's order, which `sort` and `place` use.
  void number_nodes();
  void sort(std::vector<Node*>* nodes) const;
  bool is_numbered(const Node* node) const { return position_.contains(node); }
  int position(const Node* node) const { return position_.at(node); }
  // The position of the node that produces the value; -1 if there is none.
  int place(const Value* value) const { return value->producer() ? position(value->producer()) : -1; }

  // Values of the size of the group's space that the group reads and does not produce, in the order of their producers.
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
  NodeTable<int> level_of_;  // of nodes in no group
  ValueTable<ValueExtent> value_extents_;
  NodeTable<int> position_;
};

// Recomputes inside a group values that it reads but that follow from other values it reads, by operations that are
// cheaper than reading memory. A backward pass then keeps the activations of a network, but not the intermediate values
// between them. The nodes must be numbered before the call and are not numbered afterwards. Returns whether the graph
// changed.
bool rematerialize_in_region(FusionGroups* groups);

}  // namespace onnx_train
