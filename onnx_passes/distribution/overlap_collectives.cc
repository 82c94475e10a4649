#include "onnx_passes/distribution/overlap_collectives.h"

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/inputs.h"

namespace onnx_train {
namespace {

bool sums(const Node& node) { return node.is("AllReduce", kDomain) || node.is("Reduce", kDomain); }

class Overlap {
 public:
  Overlap(Graph* graph, bool receives_weights, int64_t most) : graph_(*graph), receives_weights_(receives_weights) {
    int64_t all = 0;
    for (const Node* node = graph_.first(); node; node = node->next()) all += counted_bytes(*node);
    most_ = std::clamp(all / kParts, std::min(most, kFew), most);
  }

  void run() {
    for (Node* node = graph_.first(); node; node = node->next()) {
      for_each_input(*node, [&](const Value* v) {
        const auto read = std::find_if(started_.begin(), started_.end(), [&](Node* s) { return s->output() == v; });
        if (read != started_.end()) await(read, node);
      });
      if (!may_be_started(*node)) continue;
      while (under_way_ > 0 && counted_bytes(*node) > 0 && under_way_ + counted_bytes(*node) > most_)
        await(std::ranges::find_if(started_, [](const Node* s) { return counted_bytes(*s) > 0; }), node);
      started_.push_back(node);
      under_way_ += counted_bytes(*node);
    }
    while (!started_.empty()) await(started_.begin(), nullptr);
  }

 private:
  // Sums, and weights that a layer will read. Nothing is computed beside a Broadcast of new weights.
  bool may_be_started(const Node& node) const {
    const TensorType& type = node.output()->type();
    if (!type.is_static()) return false;
    return sums(node) || (receives_weights_ && node.is("Broadcast", kDomain) && num_elements(type.shape()) > 1);
  }

  // A sum under way keeps the memory of its terms. Weights do not count: gather_weights bounds what they take.
  static int64_t counted_bytes(const Node& node) {
    return sums(node) && node.output()->type().is_static() ? exchanged_bytes(*node.output()) : 0;
  }

  // Awaits before `reader`, or at the end. Where nothing lies between there is nothing to start.
  void await(std::deque<Node*>::iterator at, Node* reader) {
    Node* const node = *at;
    started_.erase(at);
    under_way_ -= counted_bytes(*node);
    if (node->next() == reader) return;
    Builder b(&graph_, reader);
    b.set_name(node->output()->name());
    const Var result = call(b, "Await", {b.var(node->output()), sums(*node) ? b.var(node->input(1)) : Var()});
    node->set_attr(kPlace, node->label());  // which ranks have alike
    graph_.replace(node->output(), result.value());
    result.value()->producer()->set_input(0, node->output());
  }

  // A network of some hundred MB keeps no more than this part of its gradients, one of few bytes all of them.
  static constexpr int64_t kParts = 8, kFew = int64_t{4} << 20;

  Graph& graph_;
  bool receives_weights_;
  int64_t most_;
  std::deque<Node*> started_;
  int64_t under_way_ = 0;
};

// A sum, with the nodes before it that serve it alone.
class OneSum {
 public:
  OneSum(Node* sum, const std::unordered_map<const Node*, int64_t>& at) : at_(at) {
    add(sum);
    while (!producers_.empty()) {
      Node* const last = producers_.rbegin()->second;  // what reads it has been looked at
      producers_.erase(std::prev(producers_.end()));
      serves_alone(*last) ? add(last) : wait_for(last);
    }
  }

  int64_t ready() const { return ready_; }  // the place of the last node that it waits for; -1 for none
  Node* last_before() const { return before_; }
  const std::map<int64_t, Node*>& nodes() const { return nodes_; }  // in order

 private:
  void add(Node* node) {
    nodes_[at_.at(node)] = node;
    for_each_input(*node, [&](const Value* v) {
      if (v->producer()) producers_[at_.at(v->producer())] = v->producer();
    });
  }

  bool serves_alone(const Node& node) const {
    return std::all_of(node.outputs().begin(), node.outputs().end(), [&](const Value* output) {
      if (!output) return true;
      const std::vector<Use>& uses = output->uses();
      return !node.graph().is_output(output) && std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
        const auto at = at_.find(use.node);
        return at != at_.end() && nodes_.contains(at->second);
      });
    });
  }

  void wait_for(Node* node) {
    if (at_.at(node) <= ready_) return;
    ready_ = at_.at(node);
    before_ = node;
  }

  const std::unordered_map<const Node*, int64_t>& at_;
  std::map<int64_t, Node*> nodes_, producers_;
  int64_t ready_ = -1;
  Node* before_ = nullptr;
};

}  // namespace

void sum_early(Model* flat) {
  Graph& graph = *flat->graph;
  std::unordered_map<const Node*, int64_t> at;
  std::vector<Node*> collectives;
  for (Node* node = graph.first(); node; node = node->next()) {
    at.emplace(node, std::ssize(at));
    if (node->is("AllReduce", kDomain)) collectives.push_back(node);
  }
  std::multimap<int64_t, OneSum> sums;  // in the order in which they are ready
  for (Node* node : collectives) {
    OneSum sum(node, at);
    sums.emplace(sum.ready(), std::move(sum));
  }
  std::map<int64_t, Node*> ends;  // of what has been moved to this place
  for (const auto& [ready, sum] : sums) {
    Node*& end = ends.try_emplace(ready, sum.last_before()).first->second;
    for (const auto& [place, node] : sum.nodes()) {
      Node* const next = end ? end->next() : graph.first();
      if (next != node) graph.move(node, next);
      end = node;
    }
  }
}

bool is_awaited(const Node& node) {
  const std::vector<Use>& uses = node.output()->uses();
  return std::any_of(uses.begin(), uses.end(),
                     [](const Use& use) { return use.index == 0 && use.node->is("Await", kDomain); });
}

void overlap_collectives(Model* flat, bool receives_weights, int64_t bytes_under_way) {
  infer_types(flat->graph.get());  // a model that was a file knows the types of its inputs alone
  Overlap(flat->graph.get(), receives_weights, bytes_under_way).run();
}

}  // namespace onnx_train
