#include "onnx_passes/distribution/tensor_parallel.h"

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "onnx_passes/distribution/layout_propagation.h"
#include "onnx_passes/distribution/part_nodes.h"
#include "onnx_passes/distribution/tensor_states.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/fold_branch.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"

namespace onnx_train {

void make_inputs_of_states(Graph* graph, const std::function<bool(const std::string&)>& is_state) {
  for (Value* value : std::vector<Value*>(graph->initializers())) {
    if (!is_state(value->name()) || graph->is_input(value) || graph->is_output(value)) continue;
    const std::string name = value->name();
    Value* const input = graph->add_input(graph->unique_name(name + "/state"), value->type());
    for (const Use& use : std::vector<Use>(value->uses())) use.node->set_input(use.index, input);
    graph->remove_initializer(value);
    graph->rename(input, name);
  }
}

namespace {

// Makes the graph that of one rank, node after node: what a node reads is made as it wants it, and what it writes gets
// the sizes of a part.
class PartGraph {
 public:
  PartGraph(Graph* graph, const LayoutPropagation& layouts, const StateCuts& cuts, const PartOf& rank)
      : graph_(*graph), layouts_(layouts), cuts_(cuts), rank_(rank), parts_(rank.parts) {}

  void run() {
    for (Value* input : graph_.inputs()) {
      if (const auto cut = cuts_.find(input->name()); cut != cuts_.end())
        input->set_type(type_of_part(input->type(), cut->second, parts_));
    }
    for (Node *node = graph_.first(), *next = nullptr; node; node = next) {
      next = node->next();
      if (const NodeLayouts* layouts = layouts_.layouts(*node)) fit(node, *layouts);
    }
    fit_outputs();
    remove_unread(&graph_);
  }

 private:
  void fit(Node* node, const NodeLayouts& layouts) {
    for (int i = 0; i < node->num_inputs(); ++i) {
      if (Value* v = node->input(i)) node->set_input(i, made(v, layouts.inputs[static_cast<size_t>(i)], node));
    }
    if (node->is("Dropout", kDomain) && layouts.inputs[0].is_part()) return drop_part(node, layouts);
    node = fit_to_parts(node, layouts, rank_);
    if (!node) return;
    for (int i = 0; i < node->num_outputs(); ++i) {
      Value* output = node->output(i);
      const Layout& own = layouts.outputs[static_cast<size_t>(i)];
      if (!output) continue;
      output->set_type(own.is_part() ? type_of_part(output->type(), own.cut, parts_) : output->type());
      if (own.is_part()) output->set_elements(std::nullopt);
    }
    infer_types(node);
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (node->output(i) && layouts_.is_summed(node->output(i))) add_up(node->output(i));
    }
  }

  // What the node wants of `v`, which all ranks may have whole, as they always have what is made here.
  Value* made(Value* v, const Layout& wanted, Node* reader) {
    if (wanted.is_whole() || !layouts_.layout(v).is_whole() || own_parts_.contains(v)) return v;
    Value*& known = made_[{v, wanted.kind, wanted.cut.axis, wanted.cut.period}];
    if (!known) {
      Builder b(&graph_, reader);
      b.set_name(concat(v->name(), wanted.is_part() ? "/part" : "/term"));
      known = (wanted.is_part() ? own_part(&b, v, wanted.cut, reader) : term_of(&b, v)).value();
    }
    return known;
  }

  Var own_part(Builder* b, Value* v, const Cut& cut, Node* reader) const {
    if (is_gradient_of_rows(v->producer(), cut)) return gradient_of_own_rows(v->producer(), cut, rank_, reader);
    return part_of(b->var(v), cut, rank_);
  }

  // One rank adds it.
  Var term_of(Builder* b, Value* v) const {
    return where(b->scalar(DType::kBool, rank_.part == 0 ? 1 : 0), b->var(v), b->scalar(v->dtype(), 0));
  }

  // Elements are dropped that one rank alone would drop: each draws for all parts, and has its own of the mask.
  void drop_part(Node* node, const NodeLayouts& layouts) {
    const TensorType whole = node->output()->type();
    const Cut& cut = layouts.outputs[0].cut;
    Builder b(&graph_, node);
    b.set_name(node->output()->name() + "/mask");
    const Var x = b.var(node->input(0)), ratio = b.var(node->input(2));
    std::vector<int64_t> factors(static_cast<size_t>(whole.rank()), 1);
    factors[static_cast<size_t>(cut.axis)] = parts_;
    const Var sizes = whole.is_static() ? b.ints(whole.shape()) : shape(x) * b.ints(factors);
    const Var drawn = b.like(*node, {full(sizes, x.dtype(), 1), b.var(node->input(1)), ratio}, 2)[1];
    const Var mask = part_of(drawn, cut, rank_);
    b.set_name(node->output()->name() + "/part");
    const Var y = call(b, "DropoutGrad", {x, mask, ratio});
    for (const auto& [output, part] : {std::pair(node->output(0), y.value()), {node->output(1), mask.value()}}) {
      if (!output) continue;
      graph_.replace(output, part);
      own_parts_.insert(part);
    }
    graph_.remove(node);
  }

  void add_up(Value* term) {
    Builder b(&graph_, term->producer()->next());
    b.set_name(term->name() + "/sum");
    const Var sum =
        call(b, "AllReduce",
             {b.scalar(term->dtype(), 0), b.var(term), b.scalar(DType::kInt64, static_cast<double>(parts_))});
    graph_.replace(term, sum.value());
    sum.value()->producer()->set_input(1, term);
  }

  // A new state that is drawn anew is whole, of which a rank keeps its part; what is no state all ranks have whole.
  void fit_outputs() {
    std::vector<Value*> outputs = graph_.outputs();
    for (Value*& output : outputs) {
      const Layout wanted = layouts_.wanted(*output), own = layouts_.layout(output);
      if (wanted.is_part() == own.is_part()) continue;
      Builder b(&graph_);
      b.set_name(output->name() + (wanted.is_part() ? "/part" : "/all"));
      const Var x = b.var(output);
      Value* const made = (wanted.is_part() ? part_of(x, wanted.cut, rank_) : gathered(x, own.cut, rank_)).value();
      const std::string name = output->name();
      if (output->role()) made->set_role(*output->role());
      graph_.rename(output, graph_.unique_name(name + (wanted.is_part() ? "/whole" : "/own")));
      graph_.rename(made, name);
      output = made;
    }
    graph_.set_outputs(std::move(outputs));
  }

  Graph& graph_;
  const LayoutPropagation& layouts_;
  const StateCuts& cuts_;
  const PartOf rank_;
  const int64_t parts_;
  std::map<std::tuple<const Value*, Layout::Kind, int64_t, int64_t>, Value*> made_;
  Marks<Value> own_parts_;  // that have been made, and are no values of the graph of all parts
};

}  // namespace

void split_tensors(Model* flat, const StateCuts& cuts, int parts, int part) {
  Graph* const graph = flat->graph.get();
  make_inputs_of_states(graph, [&](const std::string& name) { return cuts.contains(name); });
  infer_types(graph);  // a model that was a file knows the types of its inputs alone
  CutStates states(cuts);
  LayoutPropagation layouts(graph, &states, parts, /*may_cut=*/false);
  if (!layouts.run())
    fail("[TensorParallel] ", layouts.reason(), ", of which ranks have parts; leave out --tensor-parallel");
  PartGraph(graph, layouts, cuts, {parts, part}).run();
}

}  // namespace onnx_train
