#include "onnx_passes/recognize/recognize.h"

#include <algorithm>
#include <unordered_set>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/loss/loss_expression.h"
#include "onnx_passes/loss/loss_model.h"
#include "onnx_passes/metrics/metrics.h"
#include "onnx_passes/model/select.h"

namespace onnx_train {
namespace {

const std::vector<Rewrite>& rewrites() {
  static const std::vector<Rewrite> all = [] {
    std::vector<Rewrite> rows;
    for (auto family : {activation_rewrites, normalization_rewrites, product_rewrites}) {
      for (Rewrite& row : family()) rows.push_back(std::move(row));
    }
    return rows;
  }();
  return all;
}

void add_words(const LossTerm& term, std::unordered_set<std::string>* words) {
  words->insert(term.loss.text);
  for (const Word& name : term.arguments.names) words->insert(name.text);
  for (const Option& option : term.arguments.options) {
    if (const Word* word = std::get_if<Word>(&option.value)) words->insert(word->text);
  }
}

// The words of the loss and the metrics, any of which may name a value of the model.
std::unordered_set<std::string> words_of_loss(const BuildOptions& options) {
  std::unordered_set<std::string> words;
  for (const std::string& metric : options.metrics) add_words(parse_metric(metric).term, &words);
  if (options.loss_model) {
    for (const Value* input : options.loss_model->model.graph->inputs()) words.insert(input->name());
    return words;
  }
  for (const LossTerm& term : parse_loss(options.loss)) add_words(term, &words);
  return words;
}

bool fits(const TensorType& type, const TensorType& wanted) {
  if (type.dtype != wanted.dtype || !type.dims || !wanted.dims || type.rank() != wanted.rank()) return false;
  for (size_t i = 0; i < type.dims->size(); ++i) {
    const Dim &a = (*type.dims)[i], &b = (*wanted.dims)[i];
    if (a.known() && b.known() && a.value() != b.value()) return false;
  }
  return true;
}

// The longest chain of foreign nodes that a match follows; matching is tried at every node.
constexpr int kMaxNodes = 64;

class Recognizer {
 public:
  Recognizer(Model* model, const BuildOptions& options) : model_(*model), words_of_loss_(words_of_loss(options)) {
    const auto weights = select_trainable(*model, options.train, options.freeze);
    weights_.insert(weights.begin(), weights.end());
  }

  bool run() {
    find_rows(*model_.graph);
    if (!rows_.empty()) recognize(model_.graph.get());
    return changed_;
  }

 private:
  // The rows whose operators occur in the model: without an Erf, Gelu is not searched.
  void find_rows(const Graph& graph) {
    std::unordered_set<std::string> operators;
    collect_operators(graph, &operators);
    for (const Rewrite& row : rewrites()) {
      const auto needed = operators_of(row.formula);
      const bool present = std::all_of(needed.begin(), needed.end(), [&](const auto& o) { return operators.count(o); });
      if (present) rows_.push_back(&row);
    }
  }

  static void collect_operators(const Graph& graph, std::unordered_set<std::string>* operators) {
    for (const Node* node = graph.first(); node; node = node->next()) {
      operators->insert(node->op());
      for (const auto& subgraph : node->subgraphs()) collect_operators(*subgraph.graph, operators);
    }
  }

  // In reverse order: a formula that is part of a larger one comes before it in the graph.
  void recognize(Graph* graph) {
    for (Node *node = graph->last(), *previous = nullptr; node; node = previous) {
      previous = node->previous();
      for (const auto& subgraph : node->subgraphs()) recognize(subgraph.graph.get());
      if (dead_.count(node) || node->num_outputs() != 1 || !node->output() || !is_float(node->output()->dtype()))
        continue;
      if (hands_on(*node)) continue;  // no formula ends with such a node
      changed_ = rewrite(node) || changed_;
    }
    remove_dead(graph);
  }

  bool rewrite(Node* node) {
    for (const Rewrite* row : rows_) {
      Match match;
      if (!find_match(row->formula, node->output(), weights_, &match)) continue;
      if (has_constants(match, *row) && match.nodes.count(node) && is_alone(match, node) && replace(node, *row, match))
        return true;
    }
    return false;
  }

  // Whether no constant of the row is a weight, also if it is expanded or cast.
  bool has_constants(const Match& match, const Rewrite& row) const {
    return std::none_of(row.constants.begin(), row.constants.end(), [&](const std::string& name) {
      const Value* value = match.values.at(name);
      int nodes = 0;
      for (; nodes < kMaxNodes && value->producer() && value->producer()->input(0); ++nodes) {
        value = value->producer()->input(0);
      }
      return nodes == kMaxNodes || weights_.count(value);
    });
  }

  // Whether only the formula reads its intermediate values.
  bool is_alone(const Match& match, const Node* last) const {
    return std::all_of(match.nodes.begin(), match.nodes.end(), [&](const Node* node) {
      return node == last || (node->num_outputs() == 1 && is_inside(node->output(), match));
    });
  }

  bool is_inside(const Value* value, const Match& match, int depth = 0) const {
    if (value->graph().is_output(value) || words_of_loss_.count(value->name()) || depth > kMaxNodes) return false;
    return std::all_of(value->uses().begin(), value->uses().end(), [&](const Use& use) {
      return match.nodes.count(use.node) || (hands_on(*use.node) && is_inside(use.node->output(), match, depth + 1));
    });
  }

  bool replace(Node* node, const Rewrite& row, const Match& match) {
    Graph& graph = node->graph();
    Node* const before = node->previous();
    Builder b(&graph, node);
    b.set_name(node->output()->name());
    const Var result = row.replacement(b, match, *node);
    if (!result || !fits(result.type(), node->output()->type())) {
      while (node->previous() != before) graph.remove(node->previous());
      return false;
    }
    const std::string name = node->output()->name();
    result.value()->set_type(node->output()->type());
    graph.replace(node->output(), result.value());
    graph.remove(node);
    if (result.value()->name() != name) graph.rename(result.value(), name);
    for (const Node* inner : match.nodes) {
      if (inner != node) add_dead(*inner);
    }
    return true;
  }

  // Marks a node of the replaced formula as dead, together with the nodes that pass its result on.
  void add_dead(const Node& node) {
    dead_.insert(&node);
    for (const Use& use : node.output()->uses()) {
      if (hands_on(*use.node)) add_dead(*use.node);
    }
  }

  void remove_dead(Graph* graph) {
    for (Node *node = graph->last(), *previous = nullptr; node; node = previous) {
      previous = node->previous();
      if (dead_.erase(node)) graph->remove(node);
    }
  }

  Model& model_;
  const std::unordered_set<std::string> words_of_loss_;
  ValueSet weights_;
  std::vector<const Rewrite*> rows_;
  std::unordered_set<const Node*> dead_;
  bool changed_ = false;
};

}  // namespace

bool is_attribute(double number, DType dtype) {
  return dtype != DType::kDouble || static_cast<double>(static_cast<float>(number)) == number;
}

Var standard_or_ours(Builder& b, const char* op, int64_t since, const std::vector<Var>& inputs, const Attrs& attrs) {
  return b.graph().context().opset() >= since ? b.op(op, inputs, attrs) : call(b, op, inputs, attrs);
}

Pass recognize(const BuildOptions& options) {
  return {"recognize", [options](Model& model) { return Recognizer(&model, options).run(); }};
}

}  // namespace onnx_train
