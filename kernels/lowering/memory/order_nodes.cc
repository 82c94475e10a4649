// Reorders the nodes if that clearly reduces the memory peak. Exporters and the gradient pass place nodes far from
// their readers: masks at the very beginning, sums of gradients after all of their terms.
#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "kernels/lowering/memory/lifetimes.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// A new order must reduce the peak to this fraction, as neighbours in the old order share values in the cache.
constexpr double kWorthIt = 0.95;

using Order = std::vector<size_t>;

// Nodes as indices, with the indices of the memories that they read and write.
class Scheduler {
 public:
  Scheduler(const Graph& graph, const std::function<bool(const Node&)>& may_reject)
      : lives_(graph), size_(lives_.nodes.size()) {
    reads_.resize(size_);
    writes_.resize(size_);
    before_.resize(size_);
    after_.resize(size_);
    for (size_t i = 0; i < size_; ++i) add_node(i);
    const NextValues next_values(graph);
    for (const Value* state : graph.inputs()) keep_update_last(next_values, *state);
    keep_checks_before_updates(may_reject);
    keep_between_collectives();
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

  // Returns the bytes alive at the peak step of an order.
  size_t peak(const Order& order) const {
    std::vector<size_t> left = readers_left();
    size_t now = 0, peak = 0;
    for (size_t i : order) {
      for (size_t memory : writes_[i]) now += bytes(memory);
      peak = std::max(peak, now);
      now -= freed_by(i, &left);
    }
    return peak;
  }

  // Returns a greedy order: of the ready nodes, the one that leaves the fewest bytes alive is next.
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
          growth[reader] -= static_cast<double>(bytes(memory));  // the reader is now the last
          if (waits[reader] == 0) ready.insert({growth[reader], reader});
        }
      }
      for (size_t next : after_[i]) {
        if (--waits[next] == 0) ready.insert({growth[next], next});
      }
    }
    return order;
  }

  // Returns an order that moves nodes that write more bytes than they free down to their first reader.
  Order sunk() const {
    Order order;
    std::vector<size_t> next(size_);  // index of the next predecessor to visit
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

  // Keeps readers of a state before its update, so that the update can be in place.
  void keep_update_last(const NextValues& next_values, const Value& state) {
    const Value* next = next_values.of(state);
    if (!next || !next->producer() || !lives_.index.contains(&state)) return;
    const int update = lives_.position.at(next->producer());
    for (int reader : lives_.of(&state).uses) {
      if (reader < update) before_[static_cast<size_t>(update)].push_back(static_cast<size_t>(reader));
    }
  }

  // Keeps updates of states after nodes that may reject their data and after the loss, which may not be finite.
  void keep_checks_before_updates(const std::function<bool(const Node&)>& may_reject) {
    std::vector<size_t> rejecting;
    for (size_t i = 0; i < size_; ++i) {
      const auto& outputs = node(i)->outputs();
      const bool is_loss = std::any_of(outputs.begin(), outputs.end(),
                                       [](const Value* output) { return output && output->has_role(roles::kLoss); });
      if (is_loss || may_reject(*node(i))) rejecting.push_back(i);
    }
    for (size_t i = 0; i < size_; ++i) {
      const auto& outputs = node(i)->outputs();
      const bool updates = std::any_of(outputs.begin(), outputs.end(),
                                       [&](const Value* output) { return output && output->has_role(roles::kNext); });
      for (size_t check : rejecting) {
        if (updates && check < i) before_[i].push_back(check);
      }
    }
  }

  // Where collectives are under way while others compute, or other ranks wait for what is sent, nodes stay between
  // those that they are between.
  void keep_between_collectives() {
    const auto is_timed = [](const Node* each) {
      return each->is("Await", kDomain) || each->is("Send", kDomain) || each->is("Receive", kDomain);
    };
    if (std::none_of(lives_.nodes.begin(), lives_.nodes.end(), is_timed)) return;
    std::optional<size_t> last;
    size_t first = 0;  // node since the last one
    for (size_t i = 0; i < size_; ++i) {
      if (last) before_[i].push_back(*last);
      if (!is_collective(*node(i))) continue;
      for (; first < i; ++first) before_[i].push_back(first);
      last = i;
    }
  }

  size_t bytes(size_t memory) const { return lives_.all[memory].bytes; }

  std::vector<size_t> readers_left() const {
    std::vector<size_t> left;
    for (const Lifetime& lifetime : lives_.all) left.push_back(lifetime.uses.size());
    return left;
  }

  // Marks the node as run and returns the bytes that it frees.
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
  std::vector<std::vector<size_t>> reads_, writes_;  // indices of memories
  std::vector<std::vector<size_t>> before_, after_;  // indices of nodes
};

}  // namespace

bool order_nodes(Model& model, const std::function<bool(const Node&)>& may_reject) {
  const Scheduler scheduler(*model.graph, may_reject);
  const Order given = scheduler.given();
  const size_t given_peak = scheduler.peak(given);
  size_t least = given_peak;
  Order best;
  for (Order& order : std::vector<Order>{scheduler.sunk(), scheduler.greedy()}) {
    const size_t bytes = scheduler.peak(order);
    if (bytes >= least) continue;
    least = bytes;
    best = std::move(order);
  }
  if (best.empty() || static_cast<double>(least) > kWorthIt * static_cast<double>(given_peak)) return false;
  for (size_t i : best) model.graph->move(scheduler.node(i), nullptr);
  return true;
}

}  // namespace onnx_train
