#include "kernels/lowering/memory/recompute.h"

#include <algorithm>
#include <climits>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "kernels/cost.h"
#include "kernels/lowering/memory/lifetimes.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/random.h"

namespace onnx_train {
namespace {

// Speeds for relative costs: a machine with 100 GFLOP/s and 10 GB/s. Only their ratio matters.
constexpr double kFlopsPerSecond = 1e11, kBytesPerSecond = 1e10;
constexpr size_t kMaxCopies = 24;              // limit of nodes in one chain of copies
constexpr size_t kSmallState = 4096;           // bytes; a second buffer for such a state is acceptable
constexpr const char* kPrefix = "recompute/";  // prefix of the names of copies

// A value to drop, with the nodes to copy before its next reader, and the gain.
struct Candidate {
  const Value* value = nullptr;
  int reader = 0;           // position
  std::vector<int> copies;  // positions of the nodes to copy, in order
  std::vector<int> hoists;  // positions of earlier copies to move before the reader, in order
  std::unordered_map<const Value*, const Value*> versions;  // the values that the copies read: originals or copies
  double freed = 0, cost = 0;

  double score() const { return freed / std::max(cost, 1e-9); }
};

// Additional bytes that are alive from node `from` to node `to`.
struct Addition {
  int from, to;
  double bytes;
};

class Recomputer {
 public:
  Recomputer(Graph* graph, size_t budget) : graph_(*graph), next_values_(*graph), budget_(budget) {}

  Recomputation run() {
    const size_t limit = 2 * graph_.num_nodes();
    while (true) {
      const Lifetimes lives(graph_);
      lives_ = &lives;
      peak_step_ = lives.peak_step();
      report_.after = peak_step_ < 0 ? 0 : lives.alive[static_cast<size_t>(peak_step_)];
      if (report_.nodes == 0) report_.before = report_.after;
      if (report_.after <= budget_ || report_.nodes > limit || !relieve()) return report_;
    }
  }

 private:
  // Applies the best independent candidates for the peak step. Returns false if there is none.
  bool relieve() {
    std::vector<Candidate> candidates;
    for (const Lifetime& lifetime : lives_->all) {
      if (!waits(lifetime)) continue;
      Candidate best = best_for(lifetime);
      if (best.freed > 0) candidates.push_back(std::move(best));
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score() > b.score(); });
    double excess = static_cast<double>(report_.after - budget_);
    std::unordered_set<const Value*> dropped, needed;
    for (const Candidate& candidate : candidates) {
      const auto is_dropped = [&](const auto& version) { return dropped.count(version.second) > 0; };
      const auto& versions = candidate.versions;
      // A candidate that hoists is the only one of its round, because it makes positions stale.
      const bool moves = !candidate.hoists.empty();
      if (excess <= 0 || needed.count(candidate.value) || (moves && !dropped.empty()) ||
          std::any_of(versions.begin(), versions.end(), is_dropped)) {
        continue;
      }
      apply(candidate);
      dropped.insert(candidate.value);
      for (const auto& [value, version] : versions) needed.insert(version);
      if (moves) break;
      excess -= candidate.freed;
    }
    return !dropped.empty();
  }

  bool waits(const Lifetime& lifetime) const {
    if (lifetime.fixed || lifetime.bytes == 0 || lifetime.first >= peak_step_ || lifetime.last() <= peak_step_)
      return false;
    return can_copy(lifetime.first) && !std::binary_search(lifetime.uses.begin(), lifetime.uses.end(), peak_step_) &&
           !is_awaited(lifetime);
  }

  // Whether a collective that is under way at the peak step may read the memory.
  bool is_awaited(const Lifetime& lifetime) const {
    return std::any_of(lifetime.uses.begin(), lifetime.uses.end(), [&](int use) {
      return use > peak_step_ && lives_->nodes[static_cast<size_t>(use)]->is("Await", kDomain);
    });
  }

  bool can_copy(int position) const {
    const Node& node = *lives_->nodes[static_cast<size_t>(position)];
    return node.subgraphs().empty() && !is_random(node) && !is_collective(node);
  }

  // Extends the chain of copied nodes and returns the chain with the best score.
  Candidate best_for(const Lifetime& lifetime) {
    Candidate best;
    std::set<int> copies = {lifetime.first};
    while (copies.size() <= kMaxCopies) {
      Candidate candidate;
      candidate.value = lifetime.value;
      candidate.reader = *std::upper_bound(lifetime.uses.begin(), lifetime.uses.end(), peak_step_);
      candidate.copies.assign(copies.begin(), copies.end());
      std::vector<const Lifetime*> kept;  // values that the copies keep alive across the peak step
      std::vector<Addition> additions;
      if (!find_sources(&candidate, &kept, &additions)) break;
      candidate.freed = static_cast<double>(lifetime.bytes);
      for (const Lifetime* other : kept) candidate.freed -= static_cast<double>(other->bytes);
      for (int copy : copies) candidate.cost += seconds(copy);
      if (candidate.freed > 0 && candidate.score() > best.score() && stays_below(lifetime, candidate, additions)) {
        best = std::move(candidate);
      }
      const auto largest = std::max_element(kept.begin(), kept.end(), [&](const Lifetime* a, const Lifetime* b) {
        return copyable_bytes(*a) < copyable_bytes(*b);
      });
      if (largest == kept.end() || copyable_bytes(**largest) == 0) break;
      if (!copies.insert((*largest)->first).second) break;
    }
    return best;
  }

  size_t copyable_bytes(const Lifetime& lifetime) const {
    return lifetime.first >= 0 && can_copy(lifetime.first) ? lifetime.bytes : 0;
  }

  // Finds the values that the copies read. Returns false if one of them no longer exists.
  bool find_sources(Candidate* candidate, std::vector<const Lifetime*>* kept, std::vector<Addition>* additions) const {
    for (int copy : candidate->copies) {
      const Node& node = *lives_->nodes[static_cast<size_t>(copy)];
      for (const Value* output : node.outputs()) {
        if (output && output != candidate->value) {
          additions->push_back({candidate->reader, candidate->reader, static_cast<double>(lives_->of(output).bytes)});
        }
      }
      for (const Value* input : node.inputs()) {
        if (!input) continue;
        const Lifetime& source = lives_->of(input);
        const bool copied =
            std::binary_search(candidate->copies.begin(), candidate->copies.end(), source.first) && source.first >= 0;
        if (copied || candidate->versions.count(source.value)) continue;
        if (!find_source(source, candidate, kept, additions)) return false;
      }
    }
    std::sort(candidate->hoists.begin(), candidate->hoists.end());
    candidate->hoists.erase(std::unique(candidate->hoists.begin(), candidate->hoists.end()), candidate->hoists.end());
    return true;
  }

  bool find_source(const Lifetime& source, Candidate* candidate, std::vector<const Lifetime*>* kept,
                   std::vector<Addition>* additions) const {
    const int reader = candidate->reader;
    const auto take = [&](const Value* version) { candidate->versions[source.value] = version; };
    if (source.first < 0) {
      take(source.value);
      return source.bytes == 0 && (update_of(*source.value) >= reader || is_small(*source.value));
    }
    const Lifetime* longest = &source;
    const Lifetime* later = nullptr;  // a copy after the reader
    for (const Value* copy : copies_of(source.value)) {
      const Lifetime& lifetime = lives_->of(copy);
      if (lifetime.first > reader) {
        if (!later || lifetime.first < later->first) later = &lifetime;
      } else if (lifetime.last() > longest->last()) {
        longest = &lifetime;
      }
    }
    if (longest->last() < reader && later && hoist(later->first, candidate, additions)) {
      take(later->value);
      return true;
    }
    take(longest->value);
    if (longest->last() >= reader || longest->bytes == 0) return true;
    if (longest->last() < peak_step_) kept->push_back(&source);
    additions->push_back({longest->last() + 1, reader, static_cast<double>(longest->bytes)});
    return true;
  }

  // Hoists the copy at `position`, and the later copies that it reads, before the reader. Returns false and adds
  // nothing if it reads another later value.
  bool hoist(int position, Candidate* candidate, std::vector<Addition>* additions) const {
    std::vector<int> moved = {position};  // grows during the loop
    std::unordered_set<int> known = {position};
    for (size_t i = 0; i < moved.size(); ++i) {
      for (const Value* input : lives_->nodes[static_cast<size_t>(moved[i])]->inputs()) {
        if (!input) continue;
        const Node* view = input->producer();
        const bool is_free = view && (is_view(*view) || lives_->is_piece_of_input(*view));
        if (is_free && lives_->position.at(view) >= candidate->reader)
          return false;  // the view would have to move, too
        const Lifetime& lifetime = lives_->of(input);
        if (lifetime.first < candidate->reader) continue;
        if (!is_copy(lifetime.value)) return false;
        if (known.insert(lifetime.first).second) moved.push_back(lifetime.first);
      }
    }
    for (const int copy : moved) {
      candidate->hoists.push_back(copy);
      for (const Value* output : lives_->nodes[static_cast<size_t>(copy)]->outputs()) {
        if (!output) continue;
        additions->push_back({candidate->reader, copy - 1, static_cast<double>(lives_->of(output).bytes)});
      }
    }
    return true;
  }

  bool is_copy(const Value* value) const { return made_.count(value) > 0; }

  // Returns the position of the node that writes the state's next value, possibly in place.
  int update_of(const Value& state) const {
    const Value* next = next_values_.of(state);
    return next && next->producer() ? lives_->position.at(next->producer()) : INT_MAX;
  }

  static bool is_small(const Value& value) {
    return value.type().is_static() &&
           static_cast<size_t>(num_elements(value.type().shape())) * size_of(value.dtype()) <= kSmallState;
  }

  // Whether every node stays below the current peak with the candidate applied.
  bool stays_below(const Lifetime& dropped, const Candidate& candidate, const std::vector<Addition>& additions) const {
    const auto next = std::lower_bound(dropped.uses.begin(), dropped.uses.end(), peak_step_);
    const int early = next == dropped.uses.begin() ? dropped.first : *(next - 1);
    int from = candidate.reader, to = candidate.reader;
    for (const Addition& addition : additions) {
      from = std::min(from, addition.from);
      to = std::max(to, addition.to);
    }
    const double peak = static_cast<double>(report_.after);
    for (int i = from; i <= to; ++i) {
      double bytes = static_cast<double>(lives_->alive[static_cast<size_t>(i)]);
      if (i > early && i < candidate.reader) bytes -= static_cast<double>(dropped.bytes);
      for (const Addition& a : additions) bytes += a.from <= i && i <= a.to ? a.bytes : 0;
      if (bytes >= peak) return false;
    }
    return true;
  }

  double seconds(int position) {
    const Node* node = lives_->nodes[static_cast<size_t>(position)];
    const auto [place, added] = costs_.try_emplace(node);
    if (added) {
      const NodeCost cost = cost_of(*node);
      place->second = {cost.total_flops(), cost.bytes};
    }
    return place->second.first / kFlopsPerSecond + place->second.second / kBytesPerSecond;
  }

  void apply(const Candidate& candidate) {
    Node* reader = lives_->nodes[static_cast<size_t>(candidate.reader)];
    for (int position : candidate.hoists) graph_.move(lives_->nodes[static_cast<size_t>(position)], reader);
    versions_ = candidate.versions;
    for (int position : candidate.copies) copy(*lives_->nodes[static_cast<size_t>(position)], reader);
    const size_t memory = lives_->index.at(candidate.value);
    for (size_t i = static_cast<size_t>(candidate.reader); i < lives_->nodes.size(); ++i) {
      Node* node = lives_->nodes[i];
      for (int k = 0; k < node->num_inputs(); ++k) {
        Value* input = node->input(k);
        const size_t* found = input ? lives_->index.find(input) : nullptr;
        if (!found || *found != memory || is_later_view(*input, candidate.reader)) continue;
        node->set_input(k, late(input, reader));
      }
    }
  }

  bool is_later_view(const Value& value, int reader) const {
    return value.producer() && is_view(*value.producer()) && lives_->position.at(value.producer()) >= reader;
  }

  void copy(const Node& node, Node* reader) {
    std::vector<Value*> inputs;
    for (Value* input : node.inputs()) inputs.push_back(input ? late(input, reader) : nullptr);
    const Node* added = add_copy(node, inputs, reader);
    for (int i = 0; i < node.num_outputs(); ++i) {
      if (!node.output(i)) continue;
      versions_[node.output(i)] = added->output(i);
      const Value* original = original_of(node.output(i));
      originals_[added->output(i)] = original;
      copies_[original].push_back(added->output(i));
    }
    const auto& [flops, bytes] = costs_.at(&node);
    report_.nodes += 1;
    report_.operators[node.op()] += 1;
    report_.flops += flops;
    if (flops == 0) report_.bytes += bytes;
  }

  Node* add_copy(const Node& node, const std::vector<Value*>& inputs, Node* reader) {
    std::vector<std::string> outputs;
    for (const Value* output : node.outputs()) {
      outputs.push_back(!output ? "" : graph_.unique_name(is_copy(output) ? output->name() : kPrefix + output->name()));
    }
    Node* added = graph_.add_node(node, inputs, outputs, reader);
    for (int i = 0; i < node.num_outputs(); ++i) {
      if (!node.output(i)) continue;
      added->output(i)->set_type(node.output(i)->type());
      made_.insert(added->output(i));
    }
    return added;
  }

  // Returns the value to read instead of `value`: its version, or a view of the version of its memory.
  Value* late(Value* value, Node* reader) {
    std::vector<const Node*> views;  // views to copy, last one first
    while (!versions_.count(value) && is_view_of_version(value)) {
      views.push_back(value->producer());
      value = value->producer()->input(0);
    }
    const auto known = versions_.find(value);
    if (known != versions_.end() && known->second != value) {
      value = known->second->producer()->output(known->second->output_index());
    }
    for (auto view = views.rbegin(); view != views.rend(); ++view) {
      std::vector<Value*> inputs = (*view)->inputs();
      inputs[0] = value;
      value = add_copy(**view, inputs, reader)->output();
      versions_[(*view)->output()] = value;
    }
    return value;
  }

  bool is_view_of_version(const Value* value) const {
    const size_t* memory = lives_->index.find(value);
    if (!memory) return false;
    const Value* root = lives_->all[*memory].value;
    const auto version = versions_.find(root);
    return version != versions_.end() && version->second != root;
  }

  // Returns the original value of a copy, also through several copies.
  const Value* original_of(const Value* value) const {
    const auto found = originals_.find(value);
    return found == originals_.end() ? value : found->second;
  }
  std::vector<const Value*> copies_of(const Value* value) const {
    const auto found = copies_.find(original_of(value));
    return found == copies_.end() ? std::vector<const Value*>() : found->second;
  }

  Graph& graph_;
  const NextValues next_values_;
  std::unordered_set<const Value*> made_;  // outputs of copies
  const size_t budget_;
  Recomputation report_;
  const Lifetimes* lives_ = nullptr;
  int peak_step_ = 0;
  std::unordered_map<const Node*, std::pair<double, double>> costs_;  // flops, bytes
  std::unordered_map<const Value*, std::vector<const Value*>> copies_;
  std::unordered_map<const Value*, const Value*> originals_;
  std::unordered_map<const Value*, const Value*> versions_;  // used while a candidate is applied
};

}  // namespace

Recomputation recompute(Model& model, size_t budget) {
  const Recomputation done = Recomputer(model.graph.get(), budget).run();
  if (done.nodes > 0) remove_dead_nodes(model);  // removes originals without readers
  return done;
}

}  // namespace onnx_train
