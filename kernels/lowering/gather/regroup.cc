#include "kernels/lowering/gather/regroup.h"

#include <queue>

#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {
namespace {

// Orders units topologically. A unit is a group or a single node and has the position of its last node; of the ready
// units, the one with the lowest position is next.
class Order {
 public:
  Order(Graph* graph, const std::vector<std::vector<Node*>>& groups) : graph_(*graph), groups_(groups) {
    int position = 0;
    for (const Node* node = graph->first(); node; node = node->next()) position_[node] = position++;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const Node* node : groups[g]) group_of_[node] = g;
    }
  }

  void run() {
    count_inputs();
    const auto later = [&](const Node* a, const Node* b) { return position_.at(a) > position_.at(b); };
    std::priority_queue<Node*, std::vector<Node*>, decltype(later)> ready(later);
    for (Node* node = graph_.first(); node; node = node->next()) {
      if (leader_of(node) == node && waits_.at(node) == 0) ready.push(node);
    }
    while (!ready.empty()) {
      Node* leader = ready.top();
      ready.pop();
      move_to_end(leader);
      for (Node* reader : readers_[leader]) {
        if (--waits_[reader] == 0) ready.push(reader);
      }
    }
  }

 private:
  void count_inputs() {
    for (Node* node = graph_.first(); node; node = node->next()) {
      Node* leader = leader_of(node);
      waits_.try_emplace(leader, 0);
      for_each_input(*node, [&](const Value* input) {
        if (!input->producer() || !position_.contains(input->producer())) return;
        Node* before = leader_of(input->producer());
        if (before == leader) return;
        readers_[before].push_back(leader);
        ++waits_[leader];
      });
    }
  }

  Node* leader_of(Node* node) const {
    const size_t* group = group_of_.find(node);
    return group ? groups_[*group].back() : node;
  }

  void move_to_end(Node* leader) {
    const size_t* group = group_of_.find(leader);
    if (!group) return graph_.move(leader, nullptr);
    for (Node* node : groups_[*group]) graph_.move(node, nullptr);
  }

  Graph& graph_;
  const std::vector<std::vector<Node*>>& groups_;
  NodeTable<int> position_;
  NodeTable<size_t> group_of_;
  NodeTable<int> waits_;                   // number of missing inputs by leader
  NodeTable<std::vector<Node*>> readers_;  // by leader
};

}  // namespace

void regroup(Graph* graph, const std::vector<std::vector<Node*>>& groups) { Order(graph, groups).run(); }

}  // namespace onnx_train
