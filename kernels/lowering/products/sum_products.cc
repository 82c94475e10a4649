// Fuses sums of products, such as the gradient of a value with several readers: each product adds the partial sum
// before it (the C of a Gemm), so that no node reads the products again to add them.
//
// A product keeps its position in the graph, because its operands may be larger than its result: it adds the partial
// sum of earlier terms. In a sum that is rounded to 16 bits, 16-bit terms come last: the library's C has the type of
// the result. A single product takes such a term and writes 16 bits (narrow_storage).
#include <algorithm>

#include "kernels/functions/functions.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/positions.h"
#include "kernels/lowering/support/readers.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// Returns the product of two matrices that `value` is or views, if it has no other reader; else null.
Node* product_of(const Value* value) {
  while (is_read_once(value) && value->producer() && is_view(*value->producer())) value = value->producer()->input(0);
  Node* node = value->producer();
  if (!node || !is_plain_product(*node) || !is_read_once(value)) return nullptr;
  return node->op() != "TransposedMatMul" && node->input(0)->rank() == 2 && node->input(1)->rank() == 2 ? node
                                                                                                        : nullptr;
}

class SumProducts {
 public:
  SumProducts(Graph* graph, const Device& device) : graph_(*graph), device_(device), positions_(*graph) {}

  bool run() {
    std::vector<Node*> sums;
    for (Node* node = graph_.first(); node; node = node->next()) {
      if (node->is("Add") && !is_term(node->output())) sums.push_back(node);
    }
    bool changed = false;
    for (Node* sum : sums) changed = fold(sum) || changed;
    return changed;
  }

 private:
  struct Term {
    Value* value;
    Node* product;  // null for other terms
  };

  // Whether the value is a sum whose only reader is an Add of the same type.
  static bool is_term(const Value* value) {
    const Node* reader = only_reader(value);
    return reader && reader->is("Add") && value->producer()->is("Add") && has_type_of(*value, *reader->output());
  }

  // Returns the terms of a sum; nothing if one of them is broadcast.
  static std::vector<Term> terms_of(const Node& sum) {
    std::vector<Term> terms;
    for (std::vector<const Node*> sums = {&sum}; !sums.empty();) {
      const Node* adds = sums.back();
      sums.pop_back();
      for (Value* value : adds->inputs()) {
        if (!has_type_of(*value, *sum.output())) return {};
        if (value->producer() && value->producer()->is("Add") && is_term(value)) {
          sums.push_back(value->producer());
        } else {
          terms.push_back({value, product_of(value)});
        }
      }
    }
    return terms;
  }

  bool fold(Node* sum) {
    std::vector<Term> products, wide, narrow;
    for (const Term& term : terms_of(*sum)) {
      (term.product ? products : widened_from(term.value) ? narrow : wide).push_back(term);
    }
    if (products.empty()) return false;
    const auto is_before = [&](const Term& a, const Term& b) { return position(a) < position(b); };
    std::stable_sort(products.begin(), products.end(), is_before);
    std::stable_sort(wide.begin(), wide.end(), is_before);

    // The partial sum, and the terms that Adds add to it at the end.
    Value* made = nullptr;  // a 16-bit value represents its float32 copy
    std::vector<Term> rest;
    const auto start_with = [&](std::vector<Term>* terms) {
      if (terms->empty() || !is_before(terms->front(), products.front())) return;
      made = stored(terms->front());
      terms->erase(terms->begin());
    };
    start_with(&wide);
    const bool rounds = !narrowing_readers(sum->output()).empty();
    if (!made && rounds && products.size() == 1 && wide.empty() && narrow.size() == 1) start_with(&narrow);
    bool changed = false;
    for (const Term& term : products) {
      Value* const sum_with_product = made ? add_product(term, made) : term.value;
      changed = changed || (made && sum_with_product);
      if (sum_with_product) {
        made = sum_with_product;
      } else {
        rest.push_back(term);
      }
    }
    if (!changed) return false;
    rest.insert(rest.end(), wide.begin(), wide.end());
    rest.insert(rest.end(), narrow.begin(), narrow.end());
    Builder b(&graph_, sum);
    Var total = b.var(made);
    for (const Term& term : rest) total = total + b.var(term.value);
    // Rounded in front of its views: the product may then write 16 bits.
    for (Node* rounding : narrowing_readers(sum->output())) {
      const Var rounded = cast(b.var(before_views(total.value())), rounding->output()->dtype());
      replace_node(rounding, {with_shape(rounded, sum->output()->type().shape())});
    }
    graph_.replace(sum->output(), total.value());
    return true;
  }

  // Adds `made` to the product by a Gemm at its position; returns null if the device has no kernel.
  Value* add_product(const Term& term, Value* made) {
    Node* product = term.product;
    Builder b(&graph_, product);
    b.set_name(product->output()->name());
    const Shape shape = term.value->type().shape(), of_product = product->output()->type().shape();
    Var c = with_shape(b.var(made), of_product);
    if (c.dtype() != product->output()->dtype()) c = cast(c, product->output()->dtype());
    const Var y = call_lowered(b, "Gemm", 1, {b.var(product->input(0)), b.var(product->input(1)), c},
                               attrs_of_product(*product))[0];
    return runs_on(device_, y.value()->producer()) ? with_shape(y, shape).value() : nullptr;
  }

  // Returns the term, or the 16-bit value that was widened to it: each reader has its own float32 copy.
  static Value* stored(const Term& term) {
    Value* narrow = widened_from(term.value);
    return narrow ? narrow : term.value;
  }

  // Returns the position of the node that computes the term.
  int position(const Term& term) const {
    const Node* node = term.product ? term.product : stored(term)->producer();
    return node ? positions_.of(node) : -1;
  }

  Graph& graph_;
  const Device& device_;
  Positions positions_;
};

}  // namespace

bool sum_products(Model& model, const Device& device) {
  const bool changed = SumProducts(model.graph.get(), device).run();
  if (changed) remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
