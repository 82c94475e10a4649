#include "onnx_passes/distribution/sharded_states.h"

#include <algorithm>
#include <set>
#include <vector>

#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/model/flatten.h"

namespace onnx_train {
namespace {

constexpr int kAll = -1;  // the owner of what every rank has

// The names of the states that the entry point reads, but for sums of gradients where `sums` is false.
std::set<std::string> states_read(const Model& model, const EntryName& entry, bool sums) {
  std::set<std::string> names;
  const Model flat = flatten(model, entry);
  for (const Value* input : flat.graph->inputs()) {
    const bool is_sum = input->has_role(roles::kGradientSum);
    if (!input->uses().empty() && (sums || !is_sum)) names.insert(input->name());
  }
  for (const Value* value : flat.graph->initializers()) names.insert(value->name());
  return names;
}

class Shards {
 public:
  Shards(Graph* graph, const StateOwners& owners, int rank) : graph_(*graph), owners_(owners), rank_(rank) {}

  void run() {
    infer_types(&graph_);  // a model that was a file knows the types of its inputs alone
    for (const Value* input : graph_.inputs()) place(input, owner_of_state(input->name()));
    // Nodes are added and replaced on the way, each before the one that is looked at next.
    for (Node *node = graph_.first(), *next = nullptr; node; node = next) {
      next = node->next();
      place(node, &next);
    }
    share_outputs();
  }

  // What other passes have added since then belongs to the owner of what it reads, too.
  void drop_what_others_own() {
    for (const Value* input : graph_.inputs()) place(input, owner_of_state(input->name()));
    for (const Node* node = graph_.first(); node; node = node->next()) {
      const std::set<int> owners = owners_of_inputs(*node);
      const bool reduces = node->is("Reduce", kDomain);
      if (!reduces && (owners.size() != 1 || node->is("Broadcast", kDomain))) continue;
      const int keeps = reduces ? static_cast<int>(node->attr("root", 0)) : *owners.begin();
      for (const Value* output : node->outputs()) {
        if (output) place(output, keeps);
      }
    }
    for (Node *node = graph_.last(), *previous = nullptr; node; node = previous) {
      previous = node->previous();
      const std::set<int> owners = owners_of_inputs(*node);
      if (owners.size() == 1 && *owners.begin() != rank_) graph_.remove(node);
    }
    for (Value* input : std::vector<Value*>(graph_.inputs())) {
      const int keeps = owner_of_state(input->name());
      if (keeps != kAll && keeps != rank_) graph_.remove_input(input);
    }
  }

 private:
  int owner_of_state(const std::string& name) const {
    const auto found = owners_.find(name);
    return found == owners_.end() ? kAll : found->second;
  }
  int owner(const Value* v) const {
    const int* found = owner_.find(v);
    return found ? *found : kAll;
  }
  void place(const Value* v, int owner) {
    if (owner != kAll) owner_[v] = owner;
  }

  // With `tensors`, of those that may have more than one element.
  std::set<int> owners_of_inputs(const Node& node, bool tensors = false) const {
    std::set<int> owners;
    for_each_input(node, [&](const Value* v) {
      if (!tensors || !v->type().is_static() || num_elements(v->type().shape()) > 1) owners.insert(owner(v));
    });
    owners.erase(kAll);
    return owners;
  }

  // A node that reads what one rank has is computed there, also where it reads single numbers of others; one that reads
  // what several have, on all. A function of several ranks' values, such as the norm of all gradients, is computed part
  // by part.
  void place(Node* node, Node** next) {
    const std::set<int> owners = owners_of_inputs(*node);
    if (owners.empty() || node->is("Broadcast", kDomain)) return;  // all ranks have what one sends to all
    if (node->is("AllReduce", kDomain)) return reduce(node, *owners.begin());
    if (owners.size() > 1 && has_function_body(*node)) {
      Node* const before = node->previous();
      if (inline_function(node)) {
        Node* const after = *next;
        *next = before ? before->next() : graph_.first();
        for (Node* added = *next; added != after; added = added->next()) infer_types(added);
        return;
      }
    }
    if (owners.size() > 1) {
      const std::set<int> of_tensors = owners_of_inputs(*node, /*tensors=*/true);
      const int keeps = of_tensors.size() == 1 ? *of_tensors.begin() : kAll;
      for (int i = 0; i < node->num_inputs(); ++i) {
        if (node->input(i) && owner(node->input(i)) != keeps) node->set_input(i, shared(node->input(i)));
      }
      if (keeps != kAll && owners_of_inputs(*node).size() == 1) return place(node, next);
      if (!owners_of_inputs(*node).empty())
        fail("[ShardedStates] a subgraph of ", node->label(),
             " reads what several ranks have; leave out --zero and --pipeline");
      return;
    }
    for (const Value* output : node->outputs()) {
      if (output) place(output, *owners.begin());
    }
  }

  // The owner adds up; the others give their terms, and keep nothing. The node takes the place of AllReduce.
  void reduce(Node* node, int owner) {
    Builder b(&graph_, node);
    b.set_name(node->output()->name());
    const Var term = b.var(node->input(1)), sum = rank_ == owner ? b.var(node->input(0)) : term;
    const Var result = call(b, "Reduce", {sum, term, b.var(node->input(2))}, {{"root", owner}});
    place(result.value(), owner);
    graph_.replace(node->output(), result.value());
    graph_.remove(node);
  }

  // What every rank has of `v`.
  Value* shared(Value* v) {
    const int root = owner(v);
    if (root == kAll) return v;
    Value*& known = shared_[v];
    if (known) return known;
    Builder b(&graph_, v->producer() ? v->producer()->next() : graph_.first());
    b.set_name(v->name() + "/like");
    const Var mine = rank_ == root ? b.var(v) : like(&b, *v);
    b.set_name(v->name() + "/shared");
    known = call(b, "Broadcast", {mine}, {{"root", root}}).value();
    return known;
  }

  // Any value of this type: the state before its update, whose memory the new value takes, or zeros.
  Var like(Builder* b, const Value& v) const {
    if (v.has_role(roles::kNext)) {
      if (Value* state = graph_.find(v.role()->of); state && graph_.is_input(state)) return b->var(state);
    }
    if (!v.type().is_static()) {
      fail("[ShardedStates] the shape of '", v.name(), "', ", to_string(v.type()),
           ", is not known; leave out --zero and --pipeline");
    }
    return expand(b->scalar(v.dtype(), 0), b->ints(v.type().shape()));
  }

  // A state that all keep has its new value from the owner of what it is computed from; the states of an owner stay.
  void share_outputs() {
    std::vector<Value*> outputs;
    for (Value* output : std::vector<Value*>(graph_.outputs())) {
      const int keeps = output->has_role(roles::kNext) ? owner_of_state(output->role()->of) : kAll;
      if (owner(output) != kAll && owner(output) != keeps) {
        const std::string name = output->name();
        const auto role = output->role() ? std::optional(*output->role()) : std::nullopt;
        Value* const all = shared(output);
        graph_.rename(output, graph_.unique_name(name + "/own"));
        graph_.rename(all, name);
        if (role) all->set_role(*role);
        output = all;
      }
      if (keeps == kAll || keeps == rank_) outputs.push_back(output);
    }
    graph_.set_outputs(std::move(outputs));
  }

  Graph& graph_;
  const StateOwners& owners_;
  int rank_;
  ValueTable<int> owner_;  // of what not every rank has
  std::map<const Value*, Value*> shared_;
};

}  // namespace

StateOwners share_out_states(const Model& model, Sharding sharding, int ranks) {
  StateOwners owners;
  if (sharding == Sharding::kNone || ranks < 2) return owners;
  std::set<std::string> wanted;
  for (const EntryPoint& point : model.entry_points) {
    if (point.is(Entry::kApply)) continue;
    const bool adds_up = point.is(Entry::kAccumulate) && sharding >= Sharding::kGradients;
    wanted.merge(states_read(model, point.name(), !adds_up));
  }
  std::map<std::string, std::vector<const Value*>> of_weight;
  for (const EntryPoint& point : model.entry_points) {
    for (const Binding& binding : point.update_bindings) {
      const Value* state = binding.state;
      const bool is_weight = sharding == Sharding::kWeights && point.is(Entry::kApply) && !state->role();
      if (!is_weight && (!state->role() || state->role()->of.empty() || wanted.count(state->name()))) continue;
      std::vector<const Value*>& states = of_weight[is_weight ? state->name() : state->role()->of];
      if (std::find(states.begin(), states.end(), state) == states.end()) states.push_back(state);
    }
  }
  std::vector<std::pair<int64_t, std::string>> weights;
  for (const auto& [weight, states] : of_weight) {
    int64_t bytes = 0;
    for (const Value* state : states) bytes -= exchanged_bytes(*state);
    weights.emplace_back(bytes, weight);  // the largest is first
  }
  std::sort(weights.begin(), weights.end());
  std::vector<int64_t> load(static_cast<size_t>(ranks));
  for (const auto& [bytes, weight] : weights) {
    const auto least = std::min_element(load.begin(), load.end());
    *least -= bytes;
    for (const Value* state : of_weight[weight]) owners[state->name()] = static_cast<int>(least - load.begin());
  }
  return owners;
}

void shard_states(Model* flat, const StateOwners& owners, int rank) { Shards(flat->graph.get(), owners, rank).run(); }

void drop_states_of_others(Model* flat, const StateOwners& owners, int rank) {
  Shards(flat->graph.get(), owners, rank).drop_what_others_own();
}

}  // namespace onnx_train
