#include "onnx_passes/distribution/data_parallel.h"

#include <algorithm>
#include <functional>
#include <map>

#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/distribution/sync_batch_norm.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/fold_branch.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {
namespace {

// Marks of `from` and of all that depends on it.
Marks<Value> dependents(const Graph& graph, const Value* from) {
  Marks<Value> marks;
  marks.insert(from);
  for (const Node* node = graph.first(); node; node = node->next()) {
    bool depends = false;
    for_each_input(*node, [&](const Value* v) { depends = depends || marks.contains(v); });
    if (!depends) continue;
    for (const Value* output : node->outputs()) {
      if (output) marks.insert(output);
    }
  }
  return marks;
}

bool is_sum(const Value& state) { return state.has_role(roles::kGradientSum) || state.has_role(roles::kAccumulated); }

// The sum of all ranks' own ones, of which `state` is one. Counts of samples are never rounded.
Var sum_of_all(Builder& b, const Var& own, const Value& state, int ranks, const SumsOverRanks& sums) {
  const bool rounds = sums.bf16 && state.has_role(roles::kGradientSum);
  const DType dtype = rounds ? DType::kBFloat16 : state.dtype();
  const Var sum = call(b, "AllReduce", {b.scalar(dtype, 0), cast(own, dtype), b.scalar(DType::kInt64, ranks)});
  sum.value()->producer()->set_attr(kAnyOrder, int64_t{1});
  return cast(sum, state.dtype());
}

class Distribution {
 public:
  Distribution(Graph* graph, int ranks, const SumsOverRanks& sums) : graph_(*graph), ranks_(ranks), sums_(sums) {}

  void run(bool sync_batch_norm) {
    rank_ = graph_.add_input(kRankInput, {DType::kInt64, Dims{}});
    active_ = graph_.add_input(kActiveRanksInput, {DType::kInt64, Dims{}});
    const Marks<Value> alike = sync_batch_norm ? synchronize_batch_norm(&graph_, active_, ranks_) : Marks<Value>();
    const NextValues next(graph_);
    for (Value* input : std::vector<Value*>(graph_.inputs())) {
      Value* result = const_cast<Value*>(next.of(*input));
      if (!result) continue;
      const Marks<Value> reached = dependents(graph_, input);
      if (!reached.contains(result)) continue;
      if (is_sum(*input)) {
        add_up(*input, reached, result);
      } else if (!is_made_of(*input, alike, result)) {
        apply_in_turn(input, reached, result);
      }
    }
    gather_outputs();
    remove_unread(&graph_);
  }

 private:
  // A sum: next = (sum before) + term. What the state reaches is `reached`.
  void add_up(const Value& state, const Marks<Value>& reached, Value* next) {
    Node* sum = next->producer();
    if (!sum || !sum->is("Add")) fail("[DataParallel] the new value of '", state.name(), "' is no sum");
    const int before = reached.contains(sum->input(0)) ? 0 : 1;
    Builder b(&graph_, sum->next());
    b.set_name(next->name() + "/ranks");
    const Var own = b.var(sum->input(before)), term = b.var(sum->input(1 - before));
    graph_.replace(next, sum_over_ranks(b, own, term, state).value());
  }

  Var sum_over_ranks(Builder& b, const Var& before, const Var& term, const Value& state) {
    if (sums_.sums == GradientSums::kEachRound) return call(b, "AllReduce", {before, term, b.var(active_)});
    const Var is_active = b.var(rank_) < b.var(active_), own = where(is_active, before + term, before);
    return sums_.sums == GradientSums::kOwn ? own : sum_of_all(b, own, state, ranks_, sums_);
  }

  // The nodes by which `next` depends on the state that reaches `reached`, in order.
  std::vector<const Node*> between(const Marks<Value>& reached, const Value* next) const {
    Marks<Value> wanted;
    wanted.insert(next);
    std::vector<const Node*> nodes;
    for (const Node* node = graph_.last(); node; node = node->previous()) {
      const bool is_between = std::any_of(node->outputs().begin(), node->outputs().end(), [&](const Value* output) {
        return output && wanted.contains(output) && reached.contains(output);
      });
      if (!is_between) continue;
      nodes.push_back(node);
      for_each_input(*node, [&](const Value* v) { wanted.insert(v); });
    }
    std::reverse(nodes.begin(), nodes.end());
    return nodes;
  }

  // Whether the new value is computed from the state, constants and what all ranks have alike, which it reads.
  bool is_made_of(const Value& state, const Marks<Value>& alike, const Value* next) const {
    bool reads = false;
    const std::function<bool(const Value&)> visit = [&](const Value& value) {
      if (alike.contains(&value)) return reads = true;
      if (&value == &state || value.is_initializer()) return true;
      if (!value.producer()) return false;
      bool all = true;
      for_each_input(*value.producer(), [&](const Value* v) { all = all && visit(*v); });
      return all;
    };
    return visit(*next) && reads;
  }

  // next = f(state, batch): what the batches of all ranks do to the state, one after the other.
  void apply_in_turn(Value* state, const Marks<Value>& reached, Value* next) {
    const std::vector<const Node*> steps = between(reached, next);
    Marks<Value> inside;
    for (const Node* node : steps) {
      for (const Value* output : node->outputs()) {
        if (output) inside.insert(output);
      }
    }
    const auto outside = [&](const Value& value) {  // what else reads it
      std::vector<Use> uses = value.uses();
      std::erase_if(uses,
                    [&](const Use& use) { return std::find(steps.begin(), steps.end(), use.node) != steps.end(); });
      return uses;
    };
    // What the state is for else, such as the scales of 8-bit floats in the forward pass, waits for the batch before.
    for (const Node* node : steps) {
      for (const Value* output : node->outputs()) {
        if (output && output != next && !outside(*output).empty()) refuse(*state, *outside(*output)[0].node);
      }
    }
    const std::vector<Use> of_state = outside(*state), of_next = outside(*next);
    Builder b(&graph_, first_of(of_state, of_next));
    std::map<const Value*, Var> gathered;
    for (const Node* node : steps) {
      for_each_input(*node, [&](const Value* v) {
        if (v == state || inside.contains(v) || v->is_initializer() || gathered.count(v)) return;
        if (b.before() && !precedes(*v, *b.before())) refuse(*state, *b.before());
        b.set_name(v->name() + "/ranks");
        gathered[v] = call(b, "AllGather", {b.var(const_cast<Value*>(v))}, {{"ranks", ranks_}});
      });
    }
    std::vector<Var> versions = {b.var(state)};
    for (int r = 0; r < ranks_; ++r) {
      b.set_name(concat(next->name(), "/rank", r));
      const Var made = step_of(&b, steps, *state, *next, versions.back(), gathered, r);
      versions.push_back(where(b.scalar(DType::kInt64, r) < b.var(active_), made, versions.back()));
    }
    for (const auto& [uses, first] : {std::pair(of_state, 0), std::pair(of_next, 1)}) {
      if (uses.empty()) continue;
      b.set_name(concat(first == 0 ? state->name() : next->name(), "/mine"));
      const Var mine = of_this_rank(&b, {versions.begin() + first, versions.end() - 1 + first});
      for (const Use& use : uses) use.node->set_input(use.index, mine.value());
    }
    graph_.replace(next, versions.back().value());
  }

  [[noreturn]] static void refuse(const Value& state, const Node& reader) {
    fail("[DataParallel] ", reader.label(), " computes with the state '", state.name(),
         "', which each batch changes by what it computes, so that ranks would wait for each other; train the model "
         "with one process");
  }

  Node* first_of(const std::vector<Use>& some, const std::vector<Use>& others) const {
    for (Node* node = graph_.first(); node; node = node->next()) {
      const auto is_node = [&](const Use& use) { return use.node == node; };
      if (std::any_of(some.begin(), some.end(), is_node) || std::any_of(others.begin(), others.end(), is_node))
        return node;
    }
    return nullptr;
  }

  static bool precedes(const Value& value, const Node& node) {
    if (!value.producer()) return true;
    const Node* found = value.producer();
    while (found && found != &node) found = found->next();
    return found != nullptr;
  }

  Var step_of(Builder* b, const std::vector<const Node*>& steps, const Value& state, const Value& next, Var before,
              const std::map<const Value*, Var>& gathered, int rank) {
    std::map<const Value*, Var> copies = {{&state, before}};
    for (const Node* node : steps) {
      std::vector<Var> inputs;
      for (Value* v : node->inputs()) {
        if (!v) {
          inputs.emplace_back();
        } else if (const auto copy = copies.find(v); copy != copies.end()) {
          inputs.push_back(copy->second);
        } else if (const auto all = gathered.find(v); all != gathered.end()) {
          inputs.push_back(gather(all->second, b->scalar(DType::kInt64, rank), 0));
        } else {
          inputs.push_back(b->var(v));
        }
      }
      const std::vector<Var> made = b->like(*node, inputs, node->num_outputs());
      for (int i = 0; i < node->num_outputs(); ++i) {
        if (node->output(i)) copies[node->output(i)] = made[static_cast<size_t>(i)];
      }
    }
    return copies.at(&next);
  }

  Var of_this_rank(Builder* b, const std::vector<Var>& versions) const {
    std::vector<Var> rows;
    for (const Var& version : versions) rows.push_back(unsqueeze(version, {0}));
    return gather(concat(rows, int64_t{0}), b->var(rank_), 0);
  }

  void gather_outputs() {
    Builder b(&graph_);
    std::vector<Value*> outputs = graph_.outputs();
    for (Value*& output : outputs) {
      if (output->has_role(roles::kNext) || output->has_role(roles::kLossScale)) continue;
      const std::string name = output->name();
      b.set_name(name + "/ranks");
      const Var all = call(b, "AllGather", {b.var(output)}, {{"ranks", ranks_}});
      graph_.rename(output, graph_.unique_name(name + "/rank"));
      graph_.rename(all.value(), name);
      if (output->role()) all.value()->set_role(*output->role());
      output = all.value();
    }
    graph_.set_outputs(std::move(outputs));
  }

  Graph& graph_;
  int ranks_;
  SumsOverRanks sums_;
  Value *rank_ = nullptr, *active_ = nullptr;
};

}  // namespace

void sum_once(Model* flat, int ranks, const SumsOverRanks& sums) {
  Graph& graph = *flat->graph;
  for (Value* next : std::vector<Value*>(graph.outputs())) {
    Value* const state = next->has_role(roles::kNext) ? graph.find(next->role()->of) : nullptr;
    if (!state || !graph.is_input(state) || !is_sum(*state)) continue;
    // The sum before, which all ranks have alike, counts once.
    const std::vector<Use> uses = state->uses();
    Builder first(&graph, graph.first());
    first.set_name(state->name() + "/mine");
    const Var mine = where(equal(first.var(graph.find(kRankInput)), first.scalar(DType::kInt64, 0)), first.var(state),
                           first.scalar(state->dtype(), 0));
    for (const Use& use : uses) use.node->set_input(use.index, mine.value());
    Builder b(&graph);
    b.set_name(state->name() + "/ranks");
    const Var all = sum_of_all(b, b.var(next), *state, ranks, sums);
    const std::vector<Use> reads = next->uses();
    graph.replace(next, all.value());
    for (const Use& use : reads) use.node->set_input(use.index, next);  // it replaces the output alone
  }
}

void sum_before_apply(Model* flat, int ranks, const SumsOverRanks& sums) {
  Graph& graph = *flat->graph;
  for (Value* input : std::vector<Value*>(graph.inputs())) {
    if (!is_sum(*input) || input->uses().empty()) continue;
    const std::vector<Use> uses = input->uses();
    Builder b(&graph, graph.first());
    b.set_name(input->name() + "/ranks");
    const Var sum = sum_of_all(b, b.var(input), *input, ranks, sums);
    for (const Use& use : uses) use.node->set_input(use.index, sum.value());
  }
}

void distribute_over_ranks(Model* flat, int ranks, bool sync_batch_norm, const SumsOverRanks& sums) {
  Distribution(flat->graph.get(), ranks, sums).run(sync_batch_norm);
}

}  // namespace onnx_train
