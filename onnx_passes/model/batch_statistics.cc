#include "onnx_passes/model/batch_statistics.h"

#include <algorithm>
#include <functional>
#include <map>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/fold_branch.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/model/analysis.h"

namespace onnx_train {
namespace {

constexpr int kScale = 1, kBias = 2, kMean = 3, kVariance = 4;  // inputs

// What tells that a node with training_mode=1 has no running statistics (the first five), or that it has.
enum class Evidence { kComputed, kSamples, kOneSample, kNoOutputs, kTrained, kNeverTrained, kRunning };

bool is_read(const Value* value) { return value && (!value->uses().empty() || value->graph().is_output(value)); }

bool is_one(const Dim& dim) { return dim.known() && dim.value() == 1; }

bool same(const Dims& a, const Dims& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Dim& x, const Dim& y) { return x.same(y); });
}

bool holds_only(const Tensor& tensor, double value) {
  return tensor.size() > 0 && tensor.at(0) == value && is_uniform(tensor);
}

bool is_reshape(const Node* node) { return node && node->is("Reshape"); }

// Whether x is the result of a Reshape that changes nothing.
bool has_idle_reshape(const Node& node) {
  const Value* x = node.input(0);
  if (!is_reshape(x->producer()) || !x->has_rank()) return false;
  const Value* before = x->producer()->input(0);
  return before->has_rank() && same(*before->type().dims, *x->type().dims);
}

Evidence evidence_of(const Node& node, const Marks<Node>& silent) {
  if (normalizes_samples(node)) return Evidence::kSamples;
  const Tensor mean = constant_of(node.input(kMean)), variance = constant_of(node.input(kVariance));
  if (mean.empty() || variance.empty()) return Evidence::kComputed;
  if (!holds_only(mean, 0) || !holds_only(variance, 1)) return Evidence::kRunning;
  if (is_read(node.output(1)) || is_read(node.output(2))) return Evidence::kRunning;
  if (silent.contains(&node)) return Evidence::kNoOutputs;
  if (!is_uniform(constant_of(node.input(kScale))) || !is_uniform(constant_of(node.input(kBias))))
    return Evidence::kTrained;
  return has_idle_reshape(node) ? Evidence::kOneSample : Evidence::kNeverTrained;
}

// Removes the node, whose outputs `with` replaces; output 0 keeps its name. Node and values may belong to a subgraph.
void replace_node(Node* node, const std::vector<Value*>& with) {
  Graph& graph = node->graph();
  const std::string name = node->output()->name();
  with[0]->producer()->mutable_shell().set_name(node->name());
  for (size_t i = 0; i < with.size(); ++i) {
    Value* old = node->output(static_cast<int>(i));
    if (is_read(old)) graph.replace(old, with[i]);
  }
  graph.remove(node);
  if (with[0]->name() != name) graph.rename(with[0], name);
}

// (y, mean, var) = BatchNormalizationTrain(x, scale, bias); the new running statistics, if they are read, follow.
void use_batch_statistics(Node* node) {
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name());
  const bool moves = is_read(node->output(1)) || is_read(node->output(2));
  // All three, because the gradient reads the statistics.
  const auto made = call(b, "BatchNormalizationTrain", 3,
                         {b.var(node->input(0)), b.var(node->input(kScale)), b.var(node->input(kBias))},
                         {{"epsilon", node->attr("epsilon", 1e-5f)}});
  std::vector<Value*> with = {made[0].value()};
  const double momentum = static_cast<double>(node->attr("momentum", 0.9f));
  for (int i = 1; i < 3 && moves; ++i) {
    const Var running = b.var(node->input(kMean + i - 1)), kept = running * momentum;
    with.push_back((kept + cast_like(made[static_cast<size_t>(i)], running) * (1 - momentum)).value());
  }
  replace_node(node, with);
}

// ---- Instance normalization

// The values of one sample's channels that `value`, for the channels of all samples, repeats; null if it does not, or
// if that is not known. Dummies, all of one value, become Constant nodes, which are not trained.
Value* repeated_channels(Value* value, const Dim& samples, const Dim& channels, Node* before) {
  Graph& graph = before->graph();
  if (const Node* tile = value->producer(); tile && tile->is("Tile") && tile->input(0)->has_rank()) {
    const auto& repeats = tile->input(1)->elements();
    const Dims& one = *tile->input(0)->type().dims;
    const bool fits = one.size() == 1 && one[0].same(channels) && repeats && repeats->size() == 1;
    return fits && (*repeats)[0].same(samples) ? tile->input(0) : nullptr;
  }
  const Tensor all = constant_of(value);
  if (all.empty() || !channels.known() || channels.value() <= 0 || all.size() % channels.value() != 0) return nullptr;
  const int64_t count = channels.value();
  std::vector<double> first;
  for (int64_t i = 0; i < all.size(); ++i) {
    if (i < count) first.push_back(all.at(i));
    if (all.at(i) != first[static_cast<size_t>(i % count)]) return nullptr;
  }
  const Tensor tensor = Tensor::of<double>({count}, first).cast(all.dtype());
  const std::string name = graph.unique_name(value->name() + "/channels");
  if (!is_uniform(tensor)) return graph.add_initializer(name, tensor);
  Node* constant = graph.add_node("Constant", {}, {name}, "", before);
  constant->set_attr("value", tensor);
  infer_types(constant);
  return constant->output();
}

Node* add_instance_normalization(const Node& like, const std::vector<Value*>& inputs, Node* before) {
  Graph& graph = before->graph();
  Node* made = graph.add_node("InstanceNormalization", inputs, {graph.unique_name(like.output()->name())}, "", before);
  made->set_attr("epsilon", like.attr("epsilon", 1e-5f));
  infer_types(made);
  return made;
}

// The Reshape after the node, if it alone reads the node and undoes the Reshape before it; null otherwise.
Node* undoing_reshape(const Node& node) {
  const Value* y = node.output();
  if (y->uses().size() != 1 || node.graph().is_output(y)) return nullptr;
  Node* after = y->uses()[0].node;
  const Value* before = node.input(0)->producer()->input(0);
  const bool undoes = after->is("Reshape") && &after->graph() == &node.graph() && after->output()->has_rank() &&
                      before->has_rank() && same(*after->output()->type().dims, *before->type().dims);
  return undoes ? after : nullptr;
}

// Reshape [N, C, ...] -> [1, N C, ...], normalization, Reshape back: one InstanceNormalization, of any batch size.
bool join_reshapes(Node* node) {
  Node* after = undoing_reshape(*node);
  Value* x = node->input(0)->producer()->input(0);
  if (!after || x->rank() < 3) return false;
  const Dim &samples = (*x->type().dims)[0], &channels = (*x->type().dims)[1];
  const Dim& all = (*node->input(0)->type().dims)[1];
  const bool counted = samples.known() && channels.known() && all.known();
  if (counted && samples.value() * channels.value() != all.value()) return false;
  std::vector<Value*> inputs = {x};
  for (const int i : {kScale, kBias}) {
    if (!counted && !node->input(i)->producer()) return false;
    Value* channel_values = repeated_channels(node->input(i), samples, channels, node);
    if (!channel_values) return false;
    inputs.push_back(channel_values);
  }
  Node* made = add_instance_normalization(*node, inputs, node);
  made->mutable_shell().set_name(node->name());
  const std::string name = after->output()->name();
  node->graph().replace(after->output(), made->output());
  node->graph().remove(after);
  if (made->output()->name() != name) node->graph().rename(made->output(), name);
  return true;
}

void normalize_samples(Node* node) {
  const bool moves = is_read(node->output(1)) || is_read(node->output(2));
  if (moves || node->input(0)->rank() < 3) return use_batch_statistics(node);
  if (join_reshapes(node)) {
    node->graph().remove(node);
    return;
  }
  if (!node->input(kScale)->type().is_static()) return use_batch_statistics(node);  // no gradient without their number
  Node* made = add_instance_normalization(*node, {node->input(0), node->input(kScale), node->input(kBias)}, node);
  replace_node(node, {made->output()});
}

// ---- The graph, and what is said

struct Wording {
  const char *what, *advice;
};

Wording wording_of(Evidence evidence) {
  constexpr const char* kBatch = "it normalizes with the statistics of its batch in inference, too";
  constexpr const char* kSample = "it normalizes each sample by itself, in training and in inference";
  constexpr const char* kGuess =
      "a guess: it normalizes with the statistics of its batch in inference, too; if they are running statistics, set "
      "training_mode to 0 in the file";
  switch (evidence) {
    case Evidence::kComputed: return {"training_mode is 1 and its statistics are computed by the model", kBatch};
    case Evidence::kSamples: return {"training_mode is 1 and its channels are those of all samples", kSample};
    case Evidence::kOneSample:
      return {"training_mode is 1, its statistics are 0 and 1, its batch is one sample", kGuess};
    case Evidence::kNoOutputs:
      return {"training_mode is 1, its statistics are 0 and 1, and no new ones are made", kGuess};
    case Evidence::kTrained: return {"training_mode is 1 and its statistics are 0 and 1, but it was trained", kGuess};
    case Evidence::kNeverTrained:
      return {"training_mode is 1, its statistics are 0 and 1, and it was never trained",
              "a guess: it is a batch normalization that is to be trained, and inference uses running statistics; if "
              "it is to normalize with its batch in inference, too, export it as InstanceNormalization"};
    case Evidence::kRunning: break;
  }
  return {};
}

class Replacement {
 public:
  explicit Replacement(const Marks<Node>& silent) : silent_(silent) {}

  void run(Graph* graph) {
    for (Node* node : graph->nodes()) {
      for (const auto& subgraph : node->subgraphs()) run(subgraph.graph.get());
      if (!node->is("BatchNormalization") || node->attr("training_mode", 0) == 0) continue;
      const Evidence evidence = evidence_of(*node, silent_);
      if (evidence == Evidence::kRunning) continue;
      found_[evidence].push_back(node->label());
      if (evidence == Evidence::kNeverTrained) continue;
      replaced_ = true;
      if (evidence == Evidence::kSamples || evidence == Evidence::kOneSample) {
        normalize_samples(node);
      } else {
        use_batch_statistics(node);
      }
    }
  }

  bool replaced() const { return replaced_; }

  void report(std::vector<Finding>* findings) const {
    for (const auto& [evidence, nodes] : found_) {
      const Wording text = wording_of(evidence);
      findings->push_back({first_few(nodes, 1, std::identity()), text.what, text.advice});
    }
  }

 private:
  const Marks<Node>& silent_;
  std::map<Evidence, std::vector<std::string>> found_;
  bool replaced_ = false;
};

void add_statistics_outputs(Graph* graph, Marks<Node>* silent) {
  for (Node* node = graph->first(); node; node = node->next()) {
    for (const auto& subgraph : node->subgraphs()) add_statistics_outputs(subgraph.graph.get(), silent);
    if (!node->is("BatchNormalization") || node->attr("training_mode", 0) == 0 || !node->output()) continue;
    if (!node->output(1) && !node->output(2)) silent->insert(node);
    const std::string name = node->output()->name();
    if (!node->output(1)) node->add_output(1, graph->unique_name(name + "/running_mean"));
    if (!node->output(2)) node->add_output(2, graph->unique_name(name + "/running_var"));
  }
}

}  // namespace

Marks<Node> add_statistics_outputs(Graph* graph) {
  Marks<Node> silent;
  add_statistics_outputs(graph, &silent);
  return silent;
}

bool normalizes_samples(const Node& batch_norm) {
  const Value* x = batch_norm.input(0);
  if (!is_reshape(x->producer()) || !x->has_rank() || x->rank() < 2) return false;
  const Dims& to = *x->type().dims;
  if (!is_one(to[0])) return false;
  const Value* source = x->producer()->input(0);
  if (!source->has_rank()) return true;
  const Dims& from = *source->type().dims;
  const bool adds_axis = same(from, {to.begin() + 1, to.end()});
  const bool keeps_channels = from.size() > 1 && is_one(from[0]) && from[1].same(to[1]);
  return !adds_axis && !keeps_channels;
}

void replace_batch_statistics(Model* model, const Marks<Node>& silent, std::vector<Finding>* findings) {
  Replacement replacement(silent);
  replacement.run(model->graph.get());
  if (replacement.replaced()) remove_unread(model->graph.get());  // dummies of statistics and scales
  if (findings) replacement.report(findings);
}

}  // namespace onnx_train
