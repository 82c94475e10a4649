// Batches the weight gradients, aᵀ b of many rows, of up to four equal layers in one product. The result of one of them
// has too few tiles to keep a GPU busy: [768, 768] is 36 tiles of 128 x 128, for more than a hundred processors.
// Frameworks that run node by node cannot wait for the operands of the last layer.
//
// The producers of the operands write them beside each other, and the gradients are pieces of the result
// (kernels/lowering/layout/views.h). If that raised the plan's peak, the products stay apart.
#include <algorithm>

#include "kernels/device.h"
#include "kernels/functions/functions.h"
#include "kernels/lowering/layout/permutation.h"
#include "kernels/lowering/layout/views.h"
#include "kernels/lowering/memory/lifetimes.h"
#include "kernels/lowering/memory/pieces.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/positions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr size_t kMostLayers = 4;
constexpr int64_t kTile = 128, kEnoughTiles = 1024;  // several tiles per processor of a large GPU

// Whether the node is only a view of its first input, so that it may run anywhere before its readers.
bool names_memory(const Node& node) { return is_view(node) || (node.is("Split") && !piece_offsets(node).empty()); }

// Calls f for each node that reads memory of the value, then for the views of it.
template <typename F>
void for_each_reader(const Value* value, const F& f) {
  for (const Use& use : std::vector<Use>(value->uses())) {
    if (names_memory(*use.node) && use.index == 0) {
      for (const Value* part : use.node->outputs()) for_each_reader(part, f);
    }
    f(use.node);
  }
}

// Returns the number of products that together have enough tiles.
size_t most_layers(const Node& product) {
  const Shape shape = product.output()->type().shape();
  const auto tiles = [](int64_t size) { return (size + kTile - 1) / kTile; };
  const int64_t enough = std::max<int64_t>(kEnoughTiles / (tiles(shape[0]) * tiles(shape[1])), 1);
  return std::min(kMostLayers, static_cast<size_t>(enough));
}

class BatchWeightGradients {
 public:
  BatchWeightGradients(Graph* graph, const Device& device, size_t memory)
      : graph_(*graph), device_(device), positions_(*graph), alignment_(device.piece_alignment()), memory_(memory) {}

  bool run() {
    find_candidates();
    if (candidates_.empty()) return false;
    most_ = Views(graph_, alignment_).peak();
    // `recompute` counts the operands of a Concat twice.
    if (memory_ > 0 && 2 * most_ > memory_) return false;
    bool changed = false;
    for (const Chain& chain : chains()) {
      const size_t count = chain.products.size(), most = most_layers(*chain.products[0]);
      const size_t groups = (count + most - 1) / most;
      for (size_t g = 0; g < groups; ++g) {
        const auto at = [&](size_t i) {
          return chain.products.begin() + static_cast<std::ptrdiff_t>(i * count / groups);
        };
        if (at(g + 1) - at(g) > 1) changed = batch({at(g), at(g + 1)}) || changed;
      }
    }
    return changed;
  }

 private:
  // Products of one kind in graph order; no node reads a result before `end`.
  struct Chain {
    std::vector<Node*> products;
    int end;
  };
  // A gradient, and the piece of the batched product that replaces it.
  struct Replaced {
    Value *gradient, *piece;
  };

  // ---- Candidates

  void find_candidates() {
    std::vector<Node*> products;
    ValueTable<int> times_read;  // by memory
    for (Node* node = graph_.first(); node; node = node->next()) {
      const bool is_known = is_gradient_of_weight(*node) && node->input(0)->type().is_static() &&
                            node->input(1)->type().is_static() && is_float(node->output()->dtype());
      if (!is_known) continue;
      products.push_back(node);
      for (Value* operand : node->inputs()) ++times_read[before_views(operand)];
    }
    for (Node* node : products) {
      const bool has_own = std::all_of(node->inputs().begin(), node->inputs().end(), [&](Value* operand) {
        return times_read.at(before_views(operand)) == 1 && can_be_piece(operand);
      });
      if (has_own && std::all_of(node->outputs().begin(), node->outputs().end(),
                                 [&](const Value* result) { return is_whole(*result); }))
        candidates_.push_back(node);
    }
  }

  // Whether the producer of the operand can write it into a larger tensor.
  bool can_be_piece(Value* operand) const {
    const Value* memory = before_views(operand);
    return memory->producer() && piece_offsets(*memory->producer()).empty() && !graph_.is_output(memory) &&
           bytes_of(*memory) == bytes_of(*operand) && is_whole(*operand);
  }
  // Whether a piece of this size keeps the next one aligned.
  bool is_whole(const Value& value) const {
    const size_t bytes = bytes_of(value);
    return bytes > 0 && bytes % alignment_ == 0 && !graph_.is_output(&value);
  }

  // ---- Chains

  std::vector<Chain> chains() const {
    std::vector<Chain> all;
    for (Node* node : candidates_) {
      const int position = positions_.of(node), end = first_reader(*node);
      const auto takes = [&](const Chain& chain) { return chain.end > position && fits(*chain.products[0], *node); };
      const auto chain = std::find_if(all.begin(), all.end(), takes);
      if (chain == all.end()) {
        all.push_back({{node}, end});
      } else {
        chain->products.push_back(node);
        chain->end = std::min(chain->end, end);
      }
    }
    return all;
  }

  int first_reader(const Node& product) const {
    int first = positions_.of(graph_.last()) + 1;
    for (const Value* result : product.outputs()) {
      for_each_reader(result, [&](const Node* reader) {
        const bool is_here = &reader->graph() == &graph_;
        if (!is_here || !names_memory(*reader)) first = std::min(first, is_here ? positions_.of(reader) : 0);
      });
    }
    return first;
  }

  static bool fits(const Node& a, const Node& b) {
    const auto same = [](const std::vector<Value*>& left, const std::vector<Value*>& right) {
      return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                        [](const Value* x, const Value* y) { return has_type_of(*x, *y); });
    };
    return order_of_result(a) == order_of_result(b) && same(a.inputs(), b.inputs()) && same(a.outputs(), b.outputs()) &&
           epilogue_of(a) == epilogue_of(b);
  }

  // ---- Batches

  static Permutation order_of_result(const Node& product) { return product.attr("perm_y", identity(2)); }

  // Inserts the batched product at the position of the last product. The products then have no readers.
  bool batch(const std::vector<Node*>& products) {
    Node* const last = products.back();
    Node* const before = last->previous();
    const std::vector<Replaced> replaced = multiply(products, last);
    std::vector<Node*> made;
    for (Node* node = before ? before->next() : graph_.first(); node != last; node = node->next()) made.push_back(node);
    for (const Replaced& r : replaced) {
      move_names(r.gradient, last);
      graph_.replace(r.gradient, r.piece);
    }
    if (!replaced.empty() && is_worth_it(made)) return true;
    for (const Replaced& r : replaced) graph_.replace(r.piece, r.gradient);
    for (size_t i = made.size(); i-- > 0;) graph_.remove(made[i]);
    return false;
  }

  // Returns nothing if the device has no kernel for the batched product.
  std::vector<Replaced> multiply(const std::vector<Node*>& products, Node* place) {
    const Node& one = *products[0];
    const auto count = static_cast<int64_t>(products.size());
    Builder b(&graph_, place);
    std::vector<Var> operands;
    for (int i = 0; i < 2; ++i) {
      std::vector<Var> parts;
      for (Node* product : products) parts.push_back(b.var(product->input(i)));
      const Shape shape = parts[0].type().shape();
      b.set_name(one.input(i)->name() + "/batch");
      operands.push_back(with_shape(concat(parts, 0), {count, shape[0], shape[1]}));
    }
    const Permutation as_it_is = identity(3), order = order_of_result(one);
    Attrs attrs = {{"perm_a", swapped(as_it_is)}, {"perm_b", as_it_is}};
    attrs.emplace_back("perm_y", order == identity(2) ? as_it_is : swapped(as_it_is));
    if (one.has_attr(kEpilogue)) attrs.emplace_back(kEpilogue, one.attr(kEpilogue, ""));
    b.set_name(one.output()->name() + "/batch");
    const std::vector<Var> results = call_lowered(b, "TransposedMatMul", one.num_outputs(), operands, attrs);
    if (!runs_on(device_, results[0].value()->producer())) return {};
    std::vector<Replaced> replaced;
    for (int k = 0; k < one.num_outputs(); ++k) {
      Shape rows = one.output(k)->type().shape();
      const std::vector<int64_t> sizes(products.size(), rows[0]);
      rows[0] *= count;
      const Var whole = with_shape(results[static_cast<size_t>(k)], rows);
      b.set_name(one.output(k)->name());
      const std::vector<Var> pieces = b.ops("Split", static_cast<int>(count), {whole, b.ints(sizes)}, {{"axis", 0}});
      for (size_t i = 0; i < products.size(); ++i) replaced.push_back({products[i]->output(k), pieces[i].value()});
    }
    return replaced;
  }

  // Moves the views and Splits of the value after `place`, the node that computes it.
  void move_names(const Value* value, Node* place) {
    std::vector<Node*> names;  // a view precedes the view that it reads
    for_each_reader(value, [&](Node* reader) {
      if (names_memory(*reader) && positions_.of(reader) < positions_.of(place)) names.push_back(reader);
    });
    for (Node* name : names) graph_.move(name, place->next());
  }

  // Whether nothing is copied and the peak does not rise.
  bool is_worth_it(const std::vector<Node*>& made) const {
    const Views views(graph_, alignment_);
    const auto is_copied = [&](const Node* node) {
      return (node->is("Concat") || node->is("Split")) && !views.is_done(*node);
    };
    return views.peak() <= most_ && std::none_of(made.begin(), made.end(), is_copied);
  }

  Graph& graph_;
  const Device& device_;
  const Positions positions_;
  const size_t alignment_;  // alignment of pieces in bytes
  const size_t memory_;     // limit in bytes; 0: none
  std::vector<Node*> candidates_;
  size_t most_ = 0;  // peak in bytes before the pass
};

}  // namespace

bool batch_weight_gradients(Model& model, const Device& device, size_t memory) {
  remove_dead_nodes(model);
  const bool changed = BatchWeightGradients(model.graph.get(), device, memory).run();
  remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
