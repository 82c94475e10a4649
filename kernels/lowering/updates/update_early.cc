// Moves the updates of large weights up to the nodes that compute their gradients.
#include <algorithm>
#include <unordered_set>

#include "kernels/geometry/updates.h"
#include "kernels/lowering/memory/lifetimes.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/updates/updates.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/inputs.h"

namespace onnx_train {
namespace {

class EarlyUpdates {
 public:
  EarlyUpdates(Graph* graph, size_t least_bytes) : graph_(*graph), least_bytes_(least_bytes) {}

  bool run(const std::function<bool(const Node&)>& may_reject) {
    if (large_updates().empty()) return false;
    split_norms();
    bool changed = false;
    for (Node* node = graph_.first(); node; node = node->next()) {
      if (may_reject(*node)) last_moved_ = node;
    }
    find_scalars();
    for (Node* node : large_updates()) changed = move_scalars_up(*node) || changed;
    const Lifetimes lives(graph_);
    const int soonest = last_moved_ ? lives.position.at(last_moved_) : -1;
    for (Node* node : large_updates()) {
      Node* after = lives.nodes[static_cast<size_t>(std::max(soonest, earliest(lives, *node)))];
      if (after == node || after->next() == node) continue;
      graph_.move(node, after->next());
      changed = true;
    }
    return changed;
  }

 private:
  // Returns the updates of large weights whose results only the next step reads.
  std::vector<Node*> large_updates() const {
    std::vector<Node*> updates;
    for (Node* node = graph_.first(); node; node = node->next()) {
      if (!is_update(*node) || !node->input(1)->producer() || bytes_of(*node->input(1)) < least_bytes_) continue;
      const auto& outputs = node->outputs();
      const auto is_read = [&](const Value* v) { return v && (!v->uses().empty() || !graph_.is_output(v)); };
      if (std::none_of(outputs.begin(), outputs.end(), is_read)) updates.push_back(node);
    }
    return updates;
  }

  bool update_depends_on(const Value* value) const {
    Marks<Value> dependent;
    dependent.insert(value);
    for (const Node* node = value->producer()->next(); node; node = node->next()) {
      bool depends = false;
      for_each_input(*node, [&](const Value* input) { depends = depends || dependent.contains(input); });
      if (depends && is_update(*node)) return true;
      for (const Value* output : node->outputs()) {
        if (depends && output) dependent.insert(output);
      }
    }
    return false;
  }

  // Replaces norm(a, b) by norm(norm(a), b), so that large gradients need not stay alive until all are computed.
  void split_norms() {
    for (Node* norm : graph_.nodes()) {
      if (!norm->is("GlobalNorm", kDomain) || norm->num_inputs() < 2 || update_depends_on(norm->output())) continue;
      Builder b(&graph_, norm);
      std::vector<Var> parts;
      for (Value* gradient : norm->inputs()) {
        Node* producer = gradient->producer();
        const bool splits =
            producer && bytes_of(*gradient) >= least_bytes_ && gradient->dtype() == norm->output()->dtype();
        if (!splits) {
          parts.push_back(b.var(gradient));
          continue;
        }
        Builder behind(&graph_, producer->next());
        behind.set_name(gradient->name() + "/norm");
        parts.push_back(b.var(call(behind, "GlobalNorm", {behind.var(gradient)}).value()));
      }
      b.set_name(norm->output()->name());
      graph_.replace(norm->output(), call(b, "GlobalNorm", parts).value());
      graph_.remove(norm);
    }
  }

  // Finds nodes with scalar results that depend only on inputs of the graph, such as the step count.
  void find_scalars() {
    size_t place = 0;
    for (const Node* node = graph_.first(); node; node = node->next()) {
      const auto& outputs = node->outputs();
      const auto& inputs = node->inputs();
      const bool alone = node->subgraphs().empty() &&
                         std::all_of(outputs.begin(), outputs.end(),
                                     [](const Value* v) { return !v || num_elements(v->type().shape()) == 1; }) &&
                         std::all_of(inputs.begin(), inputs.end(), [&](const Value* v) {
                           return !v || !v->producer() || scalars_.contains(v->producer());
                         });
      if (alone) scalars_.try_emplace(node, place++);
    }
  }

  // Moves the nodes that compute the update's operands from inputs alone to the front, after all checks.
  bool move_scalars_up(const Node& update) {
    bool changed = false;
    for (int i = 2; i < update.num_inputs(); ++i) {
      if (!update.input(i)) continue;
      for (Node* node : scalars_before(*update.input(i))) {
        graph_.move(node, last_moved_ ? last_moved_->next() : graph_.first());
        last_moved_ = node;
        changed = true;
      }
    }
    return changed;
  }

  // Returns the nodes that compute `value` from inputs alone and have not been moved, in order.
  std::vector<Node*> scalars_before(const Value& value) {
    std::vector<Node*> nodes;
    const auto add = [&](const Value* v) {
      if (v && v->producer() && scalars_.contains(v->producer()) && moved_.insert(v->producer()))
        nodes.push_back(v->producer());
    };
    add(&value);
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const Value* input : nodes[i]->inputs()) add(input);
    }
    std::sort(nodes.begin(), nodes.end(),
              [&](const Node* a, const Node* b) { return scalars_.at(a) < scalars_.at(b); });
    return nodes;
  }

  // Returns the position after which the update may be placed.
  static int earliest(const Lifetimes& lives, const Node& update) {
    const int own = lives.position.at(&update);
    int last = -1;
    for (const Value* input : update.inputs()) {
      if (!input) continue;
      if (input->producer()) last = std::max(last, lives.position.at(input->producer()));
      const size_t* known = lives.index.find(input);
      if (!known) continue;
      // The update follows the readers of the old weight, and the gradient directly if it can, while that is cached.
      for (int reader : lives.all[*known].uses) {
        const bool other_update = is_update(*lives.nodes[static_cast<size_t>(reader)]);
        if (reader < own && !other_update) last = std::max(last, reader);
      }
    }
    return last;
  }

  Graph& graph_;
  size_t least_bytes_;          // limit for gradients
  NodeTable<size_t> scalars_;   // nodes that depend on inputs alone, with their order
  Marks<Node> moved_;           // moved after all nodes that may reject their data
  Node* last_moved_ = nullptr;  // last such node; null: none
};

}  // namespace

bool is_update(const Node& node) {
  if (node.domain() != kDomain) return false;
  const std::string& op = node.op();
  return is_update_of_one(node) || op == "SparseSgd" || op == "SparseAdam" || op == "SparseAdamRows" ||
         op == "AdamW8bit";
}

bool update_early(Model& model, const std::function<bool(const Node&)>& may_reject, size_t least_bytes) {
  return EarlyUpdates(model.graph.get(), least_bytes).run(may_reject);
}

}  // namespace onnx_train
