#include "onnx_passes/distribution/gathered_weights.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "onnx_passes/distribution/bucket_collectives.h"
#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/roles.h"

namespace onnx_train {
namespace {

class Gathering {
 public:
  Gathering(Graph* graph, int rank) : graph_(*graph), rank_(rank) {
    for (const Node* node = graph_.first(); node; node = node->next()) places_.emplace(node, std::ssize(places_));
  }

  // Finds where the weight is read.
  void add(Value* weight, int owner) {
    if (!weight->type().is_static()) {
      fail("[GatheredWeights] the shape of '", weight->name(), "', ", to_string(weight->type()),
           ", is not known; leave out --zero 3");
    }
    std::vector<Use> uses = weight->uses();
    for (const Use& use : uses) {
      if (!places_.contains(use.node))
        fail("[GatheredWeights] a subgraph reads '", weight->name(), "'; leave out --zero 3");
    }
    std::ranges::stable_sort(uses, {}, [&](const Use& use) { return places_.at(use.node); });
    int number = 0;
    for (const Use& use : uses) {
      const int place = places_.at(use.node);
      if (number == 0 || place > reads_.back().last + kNodesOfALayer)
        reads_.push_back({weight, owner, number++, place, place, {}});
      reads_.back().last = place;
      reads_.back().uses.push_back(use);
    }
  }

  // What is read next is received where that before it is read, so that it travels while nodes compute: one large
  // weight, or small ones that a bucket takes (bucket_collectives.h).
  void run() {
    std::ranges::stable_sort(reads_, {}, &Read::first);
    Node* before = nullptr;
    for (auto read = reads_.begin(); read != reads_.end();) {
      Node* const begin = read->uses[0].node;
      const int last = read->first + kNodesOfALayer;
      int64_t bytes = 0;
      do {
        bytes += exchanged_bytes(*read->weight);
        receive(*read++, before ? before : begin);
      } while (read != reads_.end() && read->first <= last && bytes + exchanged_bytes(*read->weight) <= kBytesInBucket);
      before = begin;
    }
  }

 private:
  // A part of the graph that reads a weight, from the first to the last of these places.
  struct Read {
    Value* weight;
    int owner, number, first, last;
    std::vector<Use> uses;
  };

  void receive(const Read& read, Node* before) {
    Builder b(&graph_, before);
    const std::string& name = read.weight->name();
    b.set_name(concat(name, "/like", read.number));
    // The others give any value: that which is received takes its memory.
    const Var mine = rank_ == read.owner
                         ? b.var(read.weight)
                         : expand(b.scalar(read.weight->dtype(), 0), b.ints(read.weight->type().shape()));
    b.set_name(concat(name, "/part", read.number));
    const Var received = call(b, "Broadcast", {mine}, {{"root", read.owner}});
    for (const Use& use : read.uses) use.node->set_input(use.index, received.value());
  }

  Graph& graph_;
  int rank_;
  std::unordered_map<const Node*, int> places_;
  std::vector<Read> reads_;
};

}  // namespace

void gather_weights(Model* flat, const StateOwners& owners, int rank) {
  Graph& graph = *flat->graph;
  Gathering gathering(&graph, rank);
  for (Value* input : std::vector<Value*>(graph.inputs())) {
    const auto owner = owners.find(input->name());
    if (owner != owners.end() && !input->role() && !input->uses().empty()) gathering.add(input, owner->second);
  }
  gathering.run();
}

}  // namespace onnx_train
