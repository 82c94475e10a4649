// Fuses epilogues with the device's products (onnx_passes/operators/epilogue.h): the addition of a bias to the rows,
// and the sum of the rows of an operand. The sum is the gradient of a bias if the product is that of a weight: both
// read the gradient of the layer's output.
#include <algorithm>

#include "kernels/functions/functions.h"
#include "kernels/geometry/fusion/fusion_region.h"
#include "kernels/geometry/reductions.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/positions.h"
#include "kernels/lowering/support/readers.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/ir/rows.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// Returns the last size of a value; 0 for a scalar, or if it is unknown.
int64_t columns(const Value& value) {
  return value.type().is_static() && value.rank() > 0 ? value.type().shape().back() : 0;
}

// Whether `node` makes another form of its input, with the same columns.
bool keeps_rows(const Node& node) {
  return is_other_form(node) && columns(*node.output()) > 0 && columns(*node.output()) == columns(*node.input(0));
}

class ProductEpilogues {
 public:
  ProductEpilogues(Graph* graph, const Device& device) : graph_(*graph), device_(device), positions_(*graph) {}

  bool run() {
    std::vector<Node*> found;  // collected first, because products are removed as well
    for (Node* node = graph_.first(); node; node = node->next()) {
      if (node->is("Add") || node->is("ReduceSum")) found.push_back(node);
    }
    bool changed = false;
    for (Node* node : found) {
      changed = (node->is("Add") ? add_bias(node, 0) || add_bias(node, 1) : sum_operand(node)) || changed;
    }
    return changed;
  }

 private:
  // ---- y = a b + bias, where input `i` of the Add is a b

  bool add_bias(Node* add, int i) {
    Value *y = add->input(i), *bias = add->input(1 - i);
    Node* product = y->producer();
    if (!product || !is_plain_product(*product) || !is_read_once(y) || !is_row_of(*bias, *y)) return false;
    Builder b(&graph_, add);
    b.set_name(add->output()->name());
    const bool is_gemm = product->op() == "Gemm";  // whose C is a bias
    const auto made =
        call_lowered(b, product->op(), 1, {b.var(product->input(0)), b.var(product->input(1)), b.var(bias)},
                     attrs_of_product(*product, is_gemm ? Epilogue() : Epilogue{EpilogueStep::kBias}));
    if (!runs(made, add)) return false;
    graph_.replace(add->output(), made[0].value());
    graph_.remove(add);
    graph_.remove(product);
    return true;
  }

  // ---- Sum of the rows of an operand

  bool sum_operand(Node* sum) {
    Value* rows = sum->input(0);
    if (!sums_columns(*sum) || num_elements_of(*rows) == 0) return false;
    while (rows->producer() && keeps_rows(*rows->producer())) rows = rows->producer()->input(0);
    // Visits the products that read `rows`, as it is or in another form.
    for (std::vector<const Value*> forms = {rows}; !forms.empty();) {
      const Value* form = forms.back();
      forms.pop_back();
      for (const Use& use : std::vector<Use>(form->uses())) {
        if (&use.node->graph() != &graph_) continue;
        if (keeps_rows(*use.node)) {
          forms.push_back(use.node->output());
        } else if (use.index < 2 && is_plain_product(*use.node) && sums_over_rows(*use.node, use.index) &&
                   sum_in(sum, use.node, use.index)) {
          return true;
        }
      }
    }
    return false;
  }

  bool sum_in(Node* sum, Node* product, int operand) {
    Node* place = place_of(sum, product);
    if (!place) return false;
    Builder b(&graph_, place);
    b.set_name(product->output()->name());
    const Attrs attrs = attrs_of_product(*product, {operand == 0 ? EpilogueStep::kSumsOfA : EpilogueStep::kSumsOfB});
    const auto made = call_lowered(b, product->op(), 2, {b.var(product->input(0)), b.var(product->input(1))}, attrs);
    if (!runs(made, place)) return false;
    const Shape shape = sum->output()->type().shape();
    b.set_name(sum->output()->name());
    Var sums = made[1];
    if (shape.size() > 1) {
      sums = reshape(sums, b.ints(shape));
      positions_.add(sums.value()->producer(), place);
    }
    graph_.replace(product->output(), made[0].value());
    graph_.replace(sum->output(), sums.value());
    graph_.remove(product);
    graph_.remove(sum);
    return true;
  }

  // Returns the node before which both results can be computed: the product or the sum; null if neither.
  Node* place_of(Node* sum, Node* product) const {
    const auto& readers = sum->output()->uses();
    const auto is_after = [&](const Node* node) { return positions_.of(node) > positions_.of(product); };
    if (std::all_of(readers.begin(), readers.end(), [&](const Use& use) { return is_after(use.node); })) return product;
    const bool has_operands =
        positions_.is_before(product->input(0), sum) && positions_.is_before(product->input(1), sum);
    return has_operands && !is_after(sum) ? sum : nullptr;
  }

  // ---- Nodes

  // Whether the device has a kernel for the new node before `place`; removes the node otherwise.
  bool runs(const std::vector<Var>& made, const Node* place) {
    Node* node = made[0].value()->producer();
    if (!runs_on(device_, node)) return false;
    positions_.add(node, place);
    return true;
  }

  Graph& graph_;
  const Device& device_;
  Positions positions_;
};

}  // namespace

bool product_epilogues(Model& model, const Device& device) { return ProductEpilogues(model.graph.get(), device).run(); }

}  // namespace onnx_train
