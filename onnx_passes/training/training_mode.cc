#include "onnx_passes/training/training_mode.h"

#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/functions/random_operators.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/training_versions.h"
#include "onnx_passes/operators/random.h"
#include "onnx_passes/operators/scan.h"
#include "onnx_passes/training/body_draws.h"
#include "onnx_passes/training/frozen_statistics.h"

namespace onnx_train {
namespace {

[[noreturn]] void refuse(const Node& node, const std::string& reason) {
  fail("[TrainingMode] ", node.label(), ": ", reason);
}

constexpr std::pair<const char*, Mode> kModes[] = {
    {"train", Mode::kTrain}, {"frozen", Mode::kFrozen}, {"preserve", Mode::kPreserve}};

bool is_batch_norm(const Node& node) { return node.is("BatchNormalization"); }

// A Dropout that is on: its ratio is not known to be zero and, in Mode::kPreserve, its training_mode not to be false.
bool drops(const Node& node, Mode mode) {
  if (!node.is("Dropout") || mode == Mode::kFrozen) return false;
  const Tensor ratio = constant_of(node.input(1)), on = constant_of(node.input(2));
  if (mode == Mode::kPreserve && (!node.input(2) || (on.size() == 1 && on.at(0) == 0))) return false;
  return ratio.size() != 1 || ratio.at(0) != 0;
}

// The value of running statistics; empty if the model computes it. Exporters insert an Identity or two; longer chains
// are not followed, because many nodes may share one and each would traverse it.
Tensor constant_statistics(const Node& node, int input) {
  constexpr int kMaxIdentities = 100;
  const Value* source = node.input(input);
  for (int i = 0; i < kMaxIdentities && source->producer() && source->producer()->is("Identity"); ++i) {
    source = source->producer()->input(0);
  }
  return constant_of(source);
}

// Gives running statistics an initializer of their own, because they are not weights. Exporters merge equal tensors, so
// the many zeros and ones of a fresh model may be one initializer.
void own_statistics(Node* node) {
  for (int input : {3, 4}) {
    const Value* value = node->input(input);
    const Tensor constant = constant_statistics(*node, input);
    if (constant.empty() || (value->is_initializer() && value->uses().size() == 1)) continue;
    Graph& graph = node->graph();
    const std::string name = node->output()->name() + (input == 3 ? "/running_mean" : "/running_var");
    node->set_input(input, graph.add_initializer(graph.unique_name(name), constant));
  }
}

// ---- The inference graph

// In inference, the running-statistics outputs of a training node are its inputs.
void to_inference(Node* node) {
  Graph& graph = node->graph();
  for (int i = 1; i < node->num_outputs(); ++i) {
    if (node->output(i)) graph.replace(node->output(i), node->input(i + 2));
  }
  node->remove_attr("training_mode");
  if (node->num_outputs() == 1) return;
  Node* made = graph.add_node(*node, node->inputs(), {graph.unique_name(node->output()->name())}, node);
  made->output()->set_type(node->output()->type());
  Value* old = node->output();
  const std::string name = old->name();
  graph.replace(old, made->output());
  graph.remove(node);
  if (made->output()->name() != name) graph.rename(made->output(), name);
}

// y = x, and the mask is all true. `training` has the training versions, if there are any.
void remove_dropout(Node* node, EntryPoint* training) {
  Graph& graph = node->graph();
  if (Value* mask = node->output(1); mask && (!mask->uses().empty() || graph.is_output(mask))) {
    Builder b(&graph, node);
    const Var ones = full(shape(b.var(node->input(0))), DType::kBool, 1);
    graph.replace(mask, ones.value());
  }
  Value *const old = node->output(), *same = node->input(0);
  if (training && graph.is_output(old) && training->training_versions.count(old)) {
    // An output stays a value of its own: its training version is not that of the input, which others may read.
    Builder b(&graph, node);
    same = b.op("Identity", {b.var(same)}).value();
    training->training_versions[same] = training->training_versions.at(old);
  }
  graph.replace(old, same);
  graph.remove(node);
}

// ---- The key of random numbers

Value* add_random_key(const Model& model, EntryPoint* entry, uint64_t seed) {
  return add_state(model, entry->algorithm.get(), "state/random_key", Tensor::of<uint64_t>({2}, {seed, 0}),
                   {roles::kRandomKey, ""});
}

void bind_random_key(EntryPoint* entry, Value* key) {
  Builder b(entry->algorithm.get());
  b.set_name("next/" + key->name());
  bind_state(entry, key, b.var(key) + b.constant(Tensor::of<uint64_t>({2}, {0, 1})));
}

// The number of streams that are drawn from the key in the graph and its subgraphs.
int64_t count_streams(const Graph& graph) {
  int64_t count = 0;
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (node->domain() == kDomain && node->has_attr("stream")) count = std::max(count, node->attr("stream", 0) + 1);
    for (const auto& subgraph : node->subgraphs()) count = std::max(count, count_streams(*subgraph.graph));
  }
  return count;
}

// ---- The algorithm's training versions

// Creates the training versions, node by node in the order of the inference graph.
class TrainingCopy {
 public:
  TrainingCopy(Model& model, EntryPoint& entry, const BuildOptions& options, const BatchNormStatistics& statistics)
      : model_(model),
        entry_(entry),
        options_(options),
        trained_(statistics.trained),
        builder_(entry.algorithm.get()),
        versions_(&entry) {}

  void run() {
    check_subgraphs(*model_.graph);
    keep_others(*model_.graph);
    for (Node* node : model_.graph->nodes()) {
      if (trained_.count(node)) {
        copy_batch_norm(*node);
      } else if (node->is("Dropout")) {
        copy_dropout(*node);
      } else if (is_random(*node)) {
        copy_random(*node);
      } else if (node->is("FakeQuantizeActivation", kDomain) && options_.mode != Mode::kFrozen) {
        observe(*node);
      } else if (draws_inside(*node, draws_)) {
        copy_with_draws(*node);
      } else if (versions_.are_read_by(*node)) {
        versions_.copy(*node);
      }
    }
    if (key_) bind_random_key(&entry_, key_);
  }

 private:
  Var train(Value* value) { return builder_.var(versions_.of(value)); }

  // Batch normalization inside of control flow keeps its inference form. Training it otherwise would be lost silently,
  // so it is an error.
  void check_subgraphs(const Graph& graph) {
    for (const Node* node = graph.first(); node; node = node->next()) {
      if (graph.parent() && trained_.count(node))
        refuse(*node,
               "its running statistics would be updated in a branch or loop; export the model with the control flow "
               "unrolled, or use --mode frozen");
      for (const auto& subgraph : node->subgraphs()) check_subgraphs(*subgraph.graph);
    }
  }

  // The nodes that are no others in training get their inference form, which copies have, too.
  void keep_others(Graph& graph) {
    for (Node* node : graph.nodes()) {
      for (const auto& subgraph : node->subgraphs()) keep_others(*subgraph.graph);
      if (is_batch_norm(*node) && !trained_.count(node)) {
        to_inference(node);
      } else if (node->is("Dropout") && !drops(*node, options_.mode)) {
        remove_dropout(node, nullptr);
      }
    }
  }

  // ---- Batch normalization

  // running' = running momentum + batch (1 - momentum); with torch's convention the batch variance is scaled by n / (n
  // - 1).
  Var advance(Var running, Var batch, float momentum) {
    const Var kept = running * static_cast<double>(momentum);
    return kept + batch * (1.0 - static_cast<double>(momentum));
  }
  Var unbiased(Var variance, Var x) {
    const Var elements = cast_like(size(x), variance), n = elements / cast_like(size(variance), variance);
    return variance * (n / max(n - 1.0, builder_.scalar(variance.dtype(), 1)));
  }

  void copy_batch_norm(const Node& node) {
    Value *const mean = node.input(3), *const variance = node.input(4);  // own_statistics made them initializers
    const Var x = train(node.input(0));
    builder_.set_name(training_name(node.output()));
    const auto made = call(builder_, "BatchNormalizationTrain", 3, {x, train(node.input(1)), train(node.input(2))},
                           {{"epsilon", node.attr("epsilon", 1e-5f)}});
    if (!node.name().empty()) made[0].value()->producer()->mutable_shell().set_name("train/" + node.name());
    versions_.add(node.output(0), made[0].value());
    Graph& algorithm = *entry_.algorithm;
    algorithm.claim_name(made[1].value(), training_name(node.output()) + "/mean");
    algorithm.claim_name(made[2].value(), training_name(node.output()) + "/var");
    builder_.set_name(training_name(node.output()) + "/statistics");  // "train/y_3" may be the version of a "y_3"
    const float momentum = node.attr("momentum", 0.9f);
    const Var batch_mean = cast_like(made[1], builder_.var(mean));
    Var batch_variance = cast_like(made[2], builder_.var(variance));
    if (options_.unbiased_variance) batch_variance = unbiased(batch_variance, x);
    const Var next_mean = advance(builder_.var(mean), batch_mean, momentum);
    const Var next_variance = advance(builder_.var(variance), batch_variance, momentum);
    bind_state(&entry_, mean, next_mean);
    bind_state(&entry_, variance, next_variance);
    if (node.output(1)) versions_.set(node.output(1), next_mean.value());
    if (node.output(2)) versions_.set(node.output(2), next_variance.value());
  }

  // ---- Ranges of quantized activations (onnx_passes/adapt/qat.h)

  // The step rounds to the new range, as PyTorch's modules do.
  void observe(const Node& node) {
    Value* range = node.input(1);
    const Var x = train(node.input(0)), old = builder_.var(range);
    builder_.set_name(training_name(node.output()) + "/range");
    const auto extreme = [&](const char* op) { return unsqueeze(builder_.op(op, {x}, {{"keepdims", 0}}), {0}); };
    const Var batch = concat({extreme("ReduceMin"), extreme("ReduceMax")}, int64_t{0});
    const auto averaging = static_cast<double>(node.attr("averaging", 0.01f));
    const Var next = averaging > 0 ? average(old, batch, averaging) : extend(old, batch);
    bind_state(&entry_, range, next);
    builder_.set_name(training_name(node.output()));
    const auto low = node.attr("low", 0.0f), high = node.attr("high", 255.0f);
    versions_.add(node.output(), call(builder_, node.op(), {x, next}, {{"low", low}, {"high", high}}).value());
  }

  // The moving average of the batches seen so far, not of them and a start: with the weight of all of them,
  //   weight' = weight + averaging (1 - weight),  range' = range + (averaging / weight') (range of the batch - range)
  // which is the average from zeros over 1 - (1 - averaging)^steps, Adam's correction. The first batch counts as 1.
  Var average(Var old, Var batch, double averaging) {
    const Var weight = slice(old, 2, 3, 0), range = slice(old, 0, 2, 0);
    const Var next = weight + averaging * (1.0 - weight), share = averaging / next;
    return concat({range + share * (batch - range), next}, int64_t{0});
  }

  // The least and the largest number of all; the first batch's own at first.
  Var extend(Var old, Var batch) {
    const Var from = slice(old, 0, 1, 0), to = slice(old, 1, 2, 0);
    const Var wider = concat({min(from, slice(batch, 0, 1, 0)), max(to, slice(batch, 1, 2, 0))}, int64_t{0});
    return where(equal(from, to), batch, wider);
  }

  // ---- Dropout

  Value* random_key() {
    if (!key_) key_ = add_random_key(model_, &entry_, options_.seed);
    return key_;
  }

  // A known ratio becomes a constant of the algorithm: its initializer is removed together with the Dropout.
  Var ratio_of(const Node& node) {
    if (!node.input(1)) return builder_.scalar(DType::kFloat, 0.5);
    const Tensor known = constant_of(node.input(1));
    if (known.size() != 1) return train(node.input(1));
    return builder_.scalar(known.dtype() == DType::kDouble ? DType::kDouble : DType::kFloat, known.at(0));
  }

  void copy_dropout(const Node& node) {
    const Var ratio = ratio_of(node);
    builder_.set_name(training_name(node.output()));
    const auto made = call(builder_, "Dropout", 2, {train(node.input(0)), builder_.var(random_key()), ratio},
                           {{"stream", stream_++}});
    versions_.add(node.output(0), made[0].value());
    if (node.output(1)) {
      versions_.add(node.output(1), made[1].value());
    } else {
      entry_.algorithm->claim_name(made[1].value(), training_name(node.output()) + "/mask");
    }
  }

  // ---- Random operators, which are on in every mode

  void copy_random(const Node& node) {
    if (!node.output()) return;
    std::vector<Var> inputs;
    for (Value* input : node.inputs()) inputs.push_back(train(input));
    builder_.set_name(training_name(node.output()));
    const Var key = builder_.var(random_key());
    versions_.add(node.output(), draw(builder_, node, inputs, seeded(node, key, key), stream_++).value());
  }

  // The number of the step goes into the key of what draws in a loop.
  void copy_with_draws(const Node& node) {
    versions_.copy(node);
    Node* copy = versions_.of(node.output())->producer();
    Node* made = draw_in_subgraphs(copy, random_key(), draws_, &stream_);
    if (made == copy) return;
    const int carried = Scan(*made).states - 1;
    for (int i = 0; i < node.num_outputs(); ++i) {
      if (node.output(i)) versions_.add(node.output(i), made->output(i < carried ? i : i + 1));
    }
  }

  Model& model_;
  EntryPoint& entry_;
  const BuildOptions& options_;
  const std::function<bool(const Node&)> draws_ = [this](const Node& node) {
    return drops(node, options_.mode) || is_random(node);
  };
  const std::unordered_set<const Node*>& trained_;
  Builder builder_;
  TrainingVersions versions_;
  Value* key_ = nullptr;
  int stream_ = 0;
};

}  // namespace

void to_inference(Graph& graph, EntryPoint* training) {
  for (Node* node : graph.nodes()) {
    for (const auto& subgraph : node->subgraphs()) to_inference(*subgraph.graph);
    if (is_batch_norm(*node)) to_inference(node);
    if (node->is("Dropout")) remove_dropout(node, training);
  }
}

Mode parse_mode(const std::string& name) {
  for (const auto& [known, mode] : kModes) {
    if (name == known) return mode;
  }
  fail("unknown mode '", name, "'; take train, frozen or preserve");
}

const char* name(Mode mode) {
  for (const auto& [known, m] : kModes) {
    if (m == mode) return known;
  }
  return "";
}

Pass training_mode(const BuildOptions& options) {
  return {"training_mode", [options](Model& model) {
            EntryPoint& step = model.add_entry_point(Entry::kStep);
            for (Node* node : model.graph->nodes()) {
              if (is_batch_norm(*node)) own_statistics(node);
            }
            const BatchNormStatistics statistics = decide_statistics(model, options);
            if (!statistics.summary.empty()) model.set_metadata("onnx_train.batch_norm", statistics.summary);
            TrainingCopy(model, step, options, statistics).run();
            to_inference(*model.graph, &step);
            return true;
          }};
}

Pass random_numbers(const BuildOptions& options) {
  return {"random_numbers", [options](Model& model) {
            EntryPoint* step = model.find_entry_point(Entry::kStep);
            if (!step) return false;
            Value* const known = find_state(*step, roles::kRandomKey);
            Value* key = known;
            const auto get = [&] { return key ? key : key = add_random_key(model, step, options.seed); };
            Graph* algorithm = step->algorithm.get();
            if (!draw_random_numbers(algorithm, get, static_cast<int>(count_streams(*algorithm)))) return false;
            if (!known) bind_random_key(step, key);
            return true;
          }};
}

}  // namespace onnx_train
