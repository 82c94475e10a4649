#include "onnx_passes/training/body_draws.h"

#include <array>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/functions/random_operators.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/random.h"
#include "onnx_passes/operators/scan.h"

namespace onnx_train {
namespace {

using Draws = std::function<bool(const Node&)>;

// What a step adds to the seed, by how many Scans are around it: odd numbers of SplitMix64 (Steele, Lea, Flood: Fast
// splittable pseudorandom number generators, OOPSLA 2014), no small multiples of which are equal. Philox takes any two
// seeds for streams of their own.
constexpr std::array<uint64_t, 3> kSteps = {0x9E3779B97F4A7C15u, 0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu};

class Drawing {
 public:
  Drawing(const Draws& draws, int* stream, Value* key) : draws_(draws), stream_(stream), first_key_(key) {}

  void in_graph(Graph* graph, Value* key) {
    for (Node* node : graph->nodes()) {
      if (draws_(*node)) {
        draw(node, key);
      } else if (draws_inside(*node, draws_)) {
        in_subgraphs(node, key, 0);
      }
    }
  }

  Node* in_subgraphs(Node* node, Value* key, size_t scans) {
    const bool is_scan = node->is("Scan");
    if (!is_scan && !node->is("If")) {
      fail("[RandomNumbers] ", node->label(),
           ": its steps draw random numbers, and a condition may end it, so that how many would be drawn is not known; "
           "give it a constant number of steps, or draw the numbers before it");
    }
    if (is_scan && scans >= kSteps.size())
      fail("[RandomNumbers] ", node->label(), ": random numbers are drawn in more than ", kSteps.size(),
           " loops within each other; export the inner ones unrolled");
    if (is_scan) {
      const auto at = static_cast<size_t>(Scan(*node).states);
      node = carry(node, key, scans);
      key = node->subgraph("body")->inputs()[at];
      ++scans;
    }
    for (const auto& subgraph : node->subgraphs()) {
      for (Node* inner : subgraph.graph->nodes()) {
        if (draws_(*inner)) {
          draw(inner, key);
        } else if (draws_inside(*inner, draws_)) {
          in_subgraphs(inner, key, scans);
        }
      }
    }
    return node;
  }

 private:
  void draw(Node* node, Value* key) {
    Graph& graph = node->graph();
    Builder b(&graph, node);
    if (node->output()) b.set_name(node->output()->name() + "/drawn");
    const std::vector<Var> made = node->is("Dropout") ? dropped(b, *node, key) : drawn(b, *node, key);
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (node->output(i)) graph.replace(node->output(i), made[static_cast<size_t>(i)].value());
    }
    graph.remove(node);
  }

  std::vector<Var> drawn(Builder& b, const Node& node, Value* key) {
    if (!node.output()) return {};
    std::vector<Var> inputs;
    for (Value* input : node.inputs()) inputs.push_back(b.var(input));
    return {onnx_train::draw(b, node, inputs, seeded(node, b.var(key), b.var(first_key_)), (*stream_)++)};
  }

  std::vector<Var> dropped(Builder& b, const Node& node, Value* key) {
    const Tensor known = node.input(1) ? constant_of(node.input(1)) : Tensor::scalar(0.5f);
    const bool wide = known.dtype() == DType::kDouble;
    const Var ratio =
        known.size() == 1 ? b.scalar(wide ? DType::kDouble : DType::kFloat, known.at(0)) : b.var(node.input(1));
    return call(b, "Dropout", 2, {b.var(node.input(0)), b.var(key), ratio}, {{"stream", (*stream_)++}});
  }

  // The Scan with one more state, the last: the key, to which each step adds.
  Node* carry(Node* scan, Value* key, size_t scans) {
    Graph& graph = scan->graph();
    const Scan s(*scan);
    const auto at = static_cast<std::ptrdiff_t>(s.states);
    std::vector<Value*> inputs = scan->inputs();
    inputs.insert(inputs.begin() + at, key);
    std::vector<std::string> names;
    for (const Value* v : scan->outputs()) names.push_back(v ? graph.unique_name(v->name() + "/drawn") : "");
    names.insert(names.begin() + at, graph.unique_name(concat(key->name(), "/", scan->output()->name())));
    Node* made = graph.add_node(*scan, inputs, names, scan);
    Graph* body = graph.add_subgraph(made, "body");
    GraphCopy copy(body);
    Value* own = nullptr;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool is_key = static_cast<std::ptrdiff_t>(i) == at;
      if (is_key) {
        own = body->add_input(body->unique_name(key->name() + "/step"), key->type());
      } else {
        const Value* input = s.body->inputs()[i - (static_cast<std::ptrdiff_t>(i) > at ? 1 : 0)];
        copy.map(input, body->add_input(body->unique_name(input->name()), input->type()));
      }
    }
    copy.contents(*s.body);
    Builder b(body);
    b.set_name(key->name() + "/next");
    const Var next = b.var(own) + b.constant(Tensor::of<uint64_t>({2}, {kSteps[scans], 0}));
    for (size_t i = 0; i < s.body->outputs().size(); ++i) {
      if (static_cast<std::ptrdiff_t>(i) == at) body->add_output(next.value());
      add_result(body, copy.of(s.body->outputs()[i]));
    }
    if (s.body->outputs().size() == static_cast<size_t>(at)) body->add_output(next.value());
    for (int i = 0; i < scan->num_outputs(); ++i) {
      Value* old = scan->output(i);
      if (!old) continue;
      Value* result = made->output(i + (i >= at ? 1 : 0));
      result->set_type(old->type());
      const std::string name = old->name();
      graph.replace(old, result);
      if (graph.find(name) == old) {
        graph.rename(old, graph.unique_name(name + "/inference"));
        graph.rename(result, name);
      }
    }
    graph.remove(scan);
    infer_types(made);
    return made;
  }

  const Draws draws_;
  int* const stream_;
  Value* const first_key_;
};

}  // namespace

bool draws_inside(const Node& node, const Draws& draws) {
  for (const auto& subgraph : node.subgraphs()) {
    for (const Node* n = subgraph.graph->first(); n; n = n->next()) {
      if (draws(*n) || draws_inside(*n, draws)) return true;
    }
  }
  return false;
}

Node* draw_in_subgraphs(Node* node, Value* key, const Draws& draws, int* stream) {
  return Drawing(draws, stream, key).in_subgraphs(node, key, 0);
}

bool has_random_operators(const Graph& graph) {
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (is_random(*node) || draws_inside(*node, is_random)) return true;
  }
  return false;
}

bool draw_random_numbers(Graph* graph, const std::function<Value*()>& key, int stream) {
  if (!has_random_operators(*graph)) return false;
  Value* const from = key();
  Drawing(is_random, &stream, from).in_graph(graph, from);
  return true;
}

bool draw_from_input(Graph* graph) {
  return draw_random_numbers(
      graph,
      [&] {
        return graph->add_input(kRandomKeyInput, {DType::kUint64, Dims{2}});
      },
      0);
}

}  // namespace onnx_train
