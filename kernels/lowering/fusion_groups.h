// The groups of element-wise nodes that fuse_elementwise outlines, and how they grow.
//
// Each node gets a level: that of its deepest input, and one more where the input comes from a group that the node
// cannot join. So levels never fall along a path, and rise wherever a path leaves a group: no path comes back to a
// group that it has left, whichever nodes of one level are taken together. One walk finds all groups.
//
// Used by the parts of one pass, on one thread.
#pragma once

#include <functional>
#include <vector>

#include "kernels/lowering/island.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// What the device's kernel of Fused computes.
using CanFuse = std::function<bool(const Node&)>;

struct Group {
  Space space;
  int level = 0;
  std::vector<Node*> nodes;  // empty: what is left of a group that joined another, or was dissolved
};

class FusionGroups {
 public:
  static constexpr size_t kMaxNodes = 128;  // of a group: more would not keep their values in the cache

  // Makes the groups of the graph's nodes. Both arguments must outlive the groups.
  FusionGroups(Graph& graph, const CanFuse& can_fuse);

  Graph& graph() const { return graph_; }
  bool can_fuse(const Node& node) const { return can_fuse_(node); }
  bool is_graph_output(const Value* value) const { return outputs_.contains(value); }
  void add_graph_output(const Value* value) { outputs_.insert(value); }

  // Groups are numbered from 0 to count().
  int count() const { return static_cast<int>(groups_.size()); }
  Group& operator[](int g) { return groups_[static_cast<size_t>(g)]; }
  // The node's group; -1: none.
  int of(const Node* node) const {
    const int* found = group_of_.find(node);
    return found ? *found : -1;
  }

  // Adds a node to the group's list, behind the others.
  void add(Node* node, int g);
  // The node is in that group from now on, or in none; the lists stay as they are.
  void assign(const Node* node, int g) { group_of_[node] = g; }
  void release(const Node* node) { group_of_.erase(node); }
  void dissolve(int g);

  // Counts the nodes in the graph's order: what `sort` and `place` go by.
  void number_nodes();
  void sort(std::vector<Node*>* nodes) const;
  bool is_numbered(const Node* node) const { return position_.contains(node); }
  int position(const Node* node) const { return position_.at(node); }
  // The position of what makes the value; -1: nothing does.
  int place(const Value* value) const { return value->producer() ? position(value->producer()) : -1; }

  // Values of the group's own size that it reads and does not make, in the order in which they are made.
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
  ValueTable<Residence> residence_;
  NodeTable<int> position_;
};

// What a group reads but could as well compute, from numbers that it reads anyway, by operations that cost less than
// memory does, it computes again: so a backward pass keeps a network's activations, and not what was computed on the
// way from one to the next. The nodes must be numbered; they are not afterwards. Returns whether anything changed.
bool compute_again(FusionGroups* groups);

}  // namespace onnx_train
