// Another order of the nodes, if one is found in which clearly less memory is in use at the fullest node. Exporters and
// the gradient pass put nodes where they were thought of: masks at the very beginning, sums of gradients after all of
// their parts.
#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/lowering/lifetimes.h"
#include "kernels/lowering/lowering.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/roles.h"

namespace onnx_train {
namespace {

// A new order is worth it from here on: neighbours in the old one read each other's output from the cache.
constexpr double kWorthIt = 0.95;

using Order = std::vector<size_t>;

// The graph as numbers: nodes and the memories that they read and write.
class Scheduler {
 public:
  Scheduler(const Graph& graph, const std::function<bool(const Node&)>& may_refuse)
      : lives_(graph), size_(lives_.nodes.size()) {
    reads_.resize(size_);
    writes_.resize(size_);
    before_.resize(size_);
    after_.resize(size_);
    for (size_t i = 0; i < size_; ++i) add_node(i);
    const NextValues next_values(graph);
    for (const Value* state : graph.inputs()) keep_update_last(next_values, *state);
    keep_refusals_first(may_refuse);
    for (size_t i = 0; i < size_; ++i) {
      std::sort(before_[i].begin(), before_[i].end());
      before_[i].erase(std::unique(before_[i].begin(), before_[i].end()), before_[i].end());
      for (size_t other : before_[i]) after_[other].push_back(i);
    }
  }

  Node* node(size_t i) const { return lives_.nodes[i]; }

  Order given() const {
    Order order(size_);
    std::iota(order.begin(), order.end(), size_t{0});
    return order;
  }

  // Bytes in use at the fullest node of an order.
  size_t most(const Order& order) const {
    std::vector<size_t> left = readers_left();
    size_t now = 0, most = 0;
    for (size_t i : order) {
      for (size_t memory : writes_[i]) now += bytes(memory);
      most = std::max(most, now);
      now -= freed_by(i, &left);
    }
    return most;
  }

  // Of the nodes that can run, always the one that leaves the least memory in use.
  Order greedy() const {
    constexpr size_t kDone = SIZE_MAX;
    std::vector<size_t> left = readers_left(), waits(size_);
    std::vector<std::vector<size_t>> readers(lives_.all.size());
    for (size_t i = 0; i < size_; ++i) {
      waits[i] = before_[i].size();
      for (size_t memory : reads_[i]) readers[memory].push_back(i);
    }
    std::vector<double> growth(size_);
    std::set<std::pair<double, size_t>> ready;
    for (size_t i = 0; i < size_; ++i) {
      growth[i] = growth_of(i, left);
      if (waits[i] == 0) ready.insert({growth[i], i});
    }
    Order order;
    while (!ready.empty()) {
      const size_t i = ready.begin()->second;
      ready.erase(ready.begin());
      order.push_back(i);
      waits[i] = kDone;
      freed_by(i, &left);
      for (size_t memory : reads_[i]) {
        if (left[memory] != 1) continue;
        for (size_t reader : readers[memory]) {
          if (waits[reader] == kDone) continue;
          if (waits[reader] == 0) ready.erase({growth[reader], reader});
          growth[reader] -= static_cast<double>(bytes(memory));  // it is now the last
          if (waits[reader] == 0) ready.insert({growth[reader], reader});
        }
      }
      for (size_t next : after_[i]) {
        if (--waits[next] == 0) ready.insert({growth[next], next});
      }
    }
    return order;
  }

  // Nodes that write more than they are the last to read move down to their first reader.
  Order sunk() const {
    Order order;
    std::vector<size_t> next(size_);  // of what comes before a node: the first that has not been looked at
    std::vector<bool> done(size_);
    const auto run = [&](size_t node) {
      Order stack = {node};
      while (!stack.empty()) {
        const size_t i = stack.back();
        if (!done[i] && next[i] < before_[i].size()) {
          stack.push_back(before_[i][next[i]++]);
          continue;
        }
        stack.pop_back();
        if (!done[i]) order.push_back(i);
        done[i] = true;
      }
    };
    const std::vector<size_t> left = readers_left();
    for (size_t i = 0; i < size_; ++i) {
      if (after_[i].empty() || growth_of(i, left) <= 0) run(i);
    }
    for (size_t i = 0; i < size_; ++i) run(i);
    return order;
  }

 private:
  void add_node(size_t i) {
    const Node& node = *lives_.nodes[i];
    const bool view = is_view(node) || lives_.is_piece_of_input(node);
    for_each_input(node, [&](const Value* input) {
      if (input->producer()) {
        const int* position = lives_.position.find(input->producer());
        if (position) before_[i].push_back(static_cast<size_t>(*position));
      }
      const size_t* memory = lives_.index.find(input);
      if (!view && memory) reads_[i].push_back(*memory);
    });
    std::sort(reads_[i].begin(), reads_[i].end());
    reads_[i].erase(std::unique(reads_[i].begin(), reads_[i].end()), reads_[i].end());
    if (view) return;
    for (const Value* output : node.outputs()) {
      if (output) writes_[i].push_back(lives_.index.at(output));
    }
  }

  // What reads a state before its update goes on doing so: then the update can be in place.
  void keep_update_last(const NextValues& next_values, const Value& state) {
    const Value* next = next_values.of(state);
    if (!next || !next->producer() || !lives_.index.contains(&state)) return;
    const int update = lives_.position.at(next->producer());
    for (int reader : lives_.of(&state).uses) {
      if (reader < update) before_[static_cast<size_t>(update)].push_back(static_cast<size_t>(reader));
    }
  }

  // No state has been written when a node refuses its data.
  void keep_refusals_first(const std::function<bool(const Node&)>& may_refuse) {
    std::vector<size_t> refusals;
    for (size_t i = 0; i < size_; ++i) {
      if (may_refuse(*node(i))) refusals.push_back(i);
    }
    for (size_t i = 0; i < size_; ++i) {
      const auto& outputs = node(i)->outputs();
      const bool updates = std::any_of(outputs.begin(), outputs.end(),
                                       [&](const Value* output) { return output && output->has_role(roles::kNext); });
      for (size_t refusal : refusals) {
        if (updates && refusal < i) before_[i].push_back(refusal);
      }
    }
  }

  size_t bytes(size_t memory) const { return lives_.all[memory].bytes; }

  std::vector<size_t> readers_left() const {
    std::vector<size_t> left;
    for (const Lifetime& lifetime : lives_.all) left.push_back(lifetime.uses.size());
    return left;
  }

  // Counts the node as run; the bytes that nobody needs any more.
  size_t freed_by(size_t i, std::vector<size_t>* left) const {
    size_t freed = 0;
    for (size_t memory : reads_[i]) {
      if (--(*left)[memory] == 0) freed += bytes(memory);
    }
    for (size_t memory : writes_[i]) {
      if ((*left)[memory] == 0) freed += bytes(memory);
    }
    return freed;
  }

  double growth_of(size_t i, const std::vector<size_t>& left) const {
    double growth = 0;
    for (size_t memory : writes_[i]) growth += left[memory] > 0 ? static_cast<double>(bytes(memory)) : 0;
    for (size_t memory : reads_[i]) growth -= left[memory] == 1 ? static_cast<double>(bytes(memory)) : 0;
    return growth;
  }

  const Lifetimes lives_;
  const size_t size_;
  std::vector<std::vector<size_t>> reads_, writes_;  // memories
  std::vector<std::vector<size_t>> before_, after_;  // nodes
};

}  // namespace

bool order_nodes(Model& model, const std::function<bool(const Node&)>& may_refuse) {
  const Scheduler scheduler(*model.graph, may_refuse);
  const Order given = scheduler.given();
  const size_t most = scheduler.most(given);
  size_t least = most;
  Order best;
  for (Order& order : std::vector<Order>{scheduler.sunk(), scheduler.greedy()}) {
    const size_t bytes = scheduler.most(order);
    if (bytes >= least) continue;
    least = bytes;
    best = std::move(order);
  }
  if (best.empty() || static_cast<double>(least) > kWorthIt * static_cast<double>(most)) return false;
  for (size_t i : best) model.graph->move(scheduler.node(i), nullptr);
  return true;
}

}  // namespace onnx_train
