#include "onnx_passes/import/unpack_sequence.h"

#include <algorithm>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

const Value* behind_identities(const Value* value) {
  while (value->producer() && value->producer()->is("Identity")) value = value->producer()->input(0);
  return value;
}

// The tensor that the body appends to what it carries as number `i`; null if it does anything else to it.
Value* appended(const Graph& body, size_t i) {
  const Value *before = body.inputs()[i + 2], *after = behind_identities(body.outputs()[i + 1]);
  const Node* insert = after->producer();
  if (!insert || !insert->is("SequenceInsert") || insert->input(2) || &insert->graph() != &body) return nullptr;
  if (behind_identities(insert->input(0)) != before || before->uses().size() != 1 || after->uses().size() > 1)
    return nullptr;
  return insert->input(1);
}

// The nodes that read the sequence, also behind Identities; false if one does what a stack cannot.
bool find_readers(const Value& sequence, std::vector<Node*>* readers) {
  if (sequence.graph().is_output(&sequence)) return false;
  for (const Use& use : sequence.uses()) {
    Node* node = use.node;
    if (node->is("Identity") && &node->graph() == &sequence.graph()) {
      if (!find_readers(*node->output(), readers)) return false;
      continue;
    }
    const bool reads = node->is("ConcatFromSequence") || node->is("SequenceAt") || node->is("SequenceLength");
    if (!reads || use.index != 0 || &node->graph() != &sequence.graph()) return false;
    readers->push_back(node);
  }
  return true;
}

// What the node computes of the sequence, from the stack of its tensors along axis 0.
Var read_stack(Builder* b, const Node& node, Var stack) {
  if (node.is("SequenceAt")) return gather(stack, b->var(node.input(1)), 0);
  if (node.is("SequenceLength")) return squeeze(dim(stack, 0), {0});
  const bool is_new = node.attr("new_axis", 0) != 0;
  const int64_t rank = stack.rank(), axis = normalize_axis(node.attr("axis", 0), is_new ? rank : rank - 1);
  std::vector<int64_t> order;
  for (int64_t i = 1; i < rank; ++i) order.push_back(i);
  order.insert(order.begin() + axis, 0);
  const Var moved = axis == 0 ? stack : transpose(stack, order);
  if (is_new) return moved;
  std::vector<Var> sizes;
  for (int64_t i = 0; i < rank; ++i) {
    if (i == axis) {
      const Var count = dim(moved, i);
      sizes.push_back(count * dim(moved, i + 1));
    } else if (i != axis + 1) {
      sizes.push_back(dim(moved, i));
    }
  }
  return reshape(moved, concat(sizes, 0));
}

bool collect(Node* loop, size_t i) {
  Graph& graph = loop->graph();
  Graph* body = loop->subgraph("body");
  const int at = static_cast<int>(i) + 2;
  Value* sequence = loop->output(static_cast<int>(i));
  const Node* start = loop->input(at) ? behind_identities(loop->input(at))->producer() : nullptr;
  Value* tensor = start && start->is("SequenceEmpty") ? appended(*body, i) : nullptr;
  std::vector<Node*> readers;
  if (!tensor || !tensor->has_rank() || !sequence || !find_readers(*sequence, &readers)) return false;

  std::vector<Value*> inputs = loop->inputs(), results = body->outputs();
  inputs.erase(inputs.begin() + at);
  results.erase(results.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  results.push_back(tensor);
  std::vector<std::string> names;
  for (const Value* v : loop->outputs()) {
    if (v != sequence) names.push_back(v ? graph.unique_name(v->name() + "/stacking") : "");
  }
  names.resize(results.size() - 2);
  names.push_back(graph.unique_name(sequence->name() + "/stack"));
  Node* made = graph.add_node(*loop, inputs, names, loop);
  Graph* own = graph.add_subgraph(made, "body");
  GraphCopy copy(own);
  for (const Value* v : body->inputs()) {
    if (v != body->inputs()[i + 2]) copy.map(v, own->add_input(own->unique_name(v->name()), v->type()));
  }
  // Without the nodes of the sequence.
  for (const Value* v : body->initializers())
    copy.map(v, own->add_initializer(own->unique_name(v->name()), v->shared_initializer()));
  const Node* insert = behind_identities(body->outputs()[i + 1])->producer();
  for (const Node* node = body->first(); node; node = node->next()) {
    const bool is_of_sequence =
        node == insert || (node->is("Identity") && (behind_identities(node->output()) == insert->output() ||
                                                    behind_identities(node->output()) == body->inputs()[i + 2]));
    if (!is_of_sequence) copy.node(*node);
  }
  for (const Value* v : results) add_result(own, copy.of(v));
  infer_types(made);
  for (int k = 0, to = 0; k < loop->num_outputs(); ++k) {
    Value* old = loop->output(k);
    if (old == sequence) continue;
    if (old) {
      const std::string name = old->name();
      graph.replace(old, made->output(to));
      if (graph.find(name) == old) {
        graph.rename(old, graph.unique_name(name + "/appending"));
        graph.rename(made->output(to), name);
      }
    }
    ++to;
  }
  Value* stack = made->output(made->num_outputs() - 1);
  for (Node* reader : readers) {
    Builder b(&graph, reader);
    b.set_name(reader->output()->name() + "/stacked");
    graph.replace(reader->output(), read_stack(&b, *reader, b.var(stack)).value());
    graph.remove(reader);
  }
  while (!sequence->uses().empty()) {  // Identities that nothing else reads
    Node* last = sequence->uses()[0].node;
    while (!last->output()->uses().empty()) last = last->output()->uses()[0].node;
    graph.remove(last);
  }
  graph.remove(loop);
  return true;
}

}  // namespace

bool collect_sequences(Graph* graph) {
  bool changed = false;
  for (Node* node : graph->nodes()) {
    for (const auto& subgraph : node->subgraphs()) changed = collect_sequences(subgraph.graph.get()) || changed;
  }
  for (bool again = true; again;) {
    again = false;
    for (Node* node : graph->nodes()) {
      const Graph* body = node->is("Loop") ? node->subgraph("body") : nullptr;
      const bool fits = body && node->num_inputs() >= 2 &&
                        body->inputs().size() == static_cast<size_t>(node->num_inputs()) &&
                        body->outputs().size() + 1 >= body->inputs().size();
      for (size_t i = 0; fits && !again && i + 2 < body->inputs().size(); ++i) again = collect(node, i);
      if (again) break;
    }
    changed = changed || again;
  }
  return changed;
}

}  // namespace onnx_train
