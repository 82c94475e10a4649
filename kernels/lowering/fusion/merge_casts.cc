// One kernel makes the 16-bit copies of all weights at the start of a mixed-precision step, and another the float32
// copies of 16-bit gradients at its end. Otherwise these are hundreds of nodes, mostly of small tensors whose launches
// take longer than their memory traffic.
#include <algorithm>
#include <limits>

#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/outline.h"
#include "kernels/lowering/support/positions.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// Whether the node rounds a value without a producer.
bool rounds_at_start(const Node& node) {
  return is_rounding(node) && !node.input(0)->producer() && node.input(0)->type().is_static();
}

bool merge_roundings(Graph& graph) {
  std::vector<Node*> casts;
  Node* first = nullptr;  // first other node
  for (Node* node = graph.first(); node; node = node->next()) {
    if (rounds_at_start(*node)) {
      casts.push_back(node);
    } else if (!first) {
      first = node;
    }
  }
  if (casts.size() < 2) return false;
  for (Node* node : casts) {
    if (first) graph.move(node, first);
  }
  outline(casts, "Casts");
  return true;
}

// A Cast to float32, its first reader, and the positions between which it may run: those of its producer and reader.
struct Widening {
  Node *node, *reader;
  int after, before;
};

// Returns the casts without an element-wise reader; such a reader's kernel would widen the value itself.
std::vector<Widening> widenings(const Graph& graph) {
  const Positions positions(graph);
  std::vector<Widening> found;
  for (Node* node = graph.first(); node; node = node->next()) {
    if (!is_widening(*node) || !node->output()->type().is_static()) continue;
    const Node* producer = node->input(0)->producer();
    Widening widening{node, nullptr, producer ? positions.of(producer) : -1, std::numeric_limits<int>::max()};
    bool fits = !node->output()->uses().empty() || graph.is_output(node->output());
    for (const Use& use : node->output()->uses()) {
      const OperatorKind kind = operator_of(*use.node).kind;
      fits = fits && &use.node->graph() == &graph && kind != OperatorKind::kElementwise && kind != OperatorKind::kView;
      if (!fits || positions.of(use.node) >= widening.before) continue;
      widening.reader = use.node;
      widening.before = positions.of(use.node);
    }
    if (fits) found.push_back(widening);
  }
  return found;
}

// Returns the position at which most of the casts may run.
int best_position(const std::vector<Widening>& found) {
  std::vector<int> starts, ends;
  for (const Widening& w : found) {
    starts.push_back(w.after);
    ends.push_back(w.before);
  }
  std::sort(starts.begin(), starts.end());
  std::sort(ends.begin(), ends.end());
  std::ptrdiff_t most = 0;
  int best = 0;
  for (const int position : ends) {
    const auto begun = std::lower_bound(starts.begin(), starts.end(), position) - starts.begin();
    const auto over = std::lower_bound(ends.begin(), ends.end(), position) - ends.begin();
    if (begun - over > most) most = begun - over, best = position;
  }
  return best;
}

bool merge_widenings(Graph& graph) {
  std::vector<Widening> found = widenings(graph);
  const int position = best_position(found);
  std::erase_if(found, [=](const Widening& w) { return w.after >= position || w.before < position; });
  if (found.size() < 2) return false;
  const auto earliest = [](const Widening& a, const Widening& b) { return a.before < b.before; };
  Node* const place = std::min_element(found.begin(), found.end(), earliest)->reader;
  std::vector<Node*> casts;
  ValueTable<Node*> cast_of;  // merges copies that assign_types gave to each reader
  for (const Widening& w : found) {
    const auto [first, added] = cast_of.try_emplace(w.node->input(0), w.node);
    if (!added && !graph.is_output(w.node->output())) {
      graph.replace(w.node->output(), (*first)->output());
      graph.remove(w.node);
      continue;
    }
    graph.move(w.node, place);
    casts.push_back(w.node);
  }
  outline(casts, "Casts");
  return true;
}

}  // namespace

bool merge_casts(Model& model) {
  const bool rounds = merge_roundings(*model.graph);
  return merge_widenings(*model.graph) || rounds;
}

}  // namespace onnx_train
