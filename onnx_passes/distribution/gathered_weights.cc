#include "onnx_passes/distribution/gathered_weights.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

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

  void gather(Value* weight, int owner) {
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
    Var received;
    int last = 0, part = 0;
    for (const Use& use : uses) {
      const int place = places_.at(use.node);
      if (!received || place > last + kNodesOfALayer) received = receive(weight, owner, use.node, part++);
      use.node->set_input(use.index, received.value());
      last = place;
    }
  }

 private:
  Var receive(Value* weight, int owner, Node* reader, int part) {
    Builder b(&graph_, reader);
    b.set_name(concat(weight->name(), "/like", part));
    // The others give any value: that which is received takes its memory.
    const Var mine =
        rank_ == owner ? b.var(weight) : expand(b.scalar(weight->dtype(), 0), b.ints(weight->type().shape()));
    b.set_name(concat(weight->name(), "/part", part));
    return call(b, "Broadcast", {mine}, {{"root", owner}});
  }

  Graph& graph_;
  int rank_;
  std::unordered_map<const Node*, int> places_;
};

}  // namespace

void gather_weights(Model* flat, const StateOwners& owners, int rank) {
  Graph& graph = *flat->graph;
  Gathering gathering(&graph, rank);
  for (Value* input : std::vector<Value*>(graph.inputs())) {
    const auto owner = owners.find(input->name());
    if (owner != owners.end() && !input->role() && !input->uses().empty()) gathering.gather(input, owner->second);
  }
}

}  // namespace onnx_train
