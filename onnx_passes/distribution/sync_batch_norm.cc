#include "onnx_passes/distribution/sync_batch_norm.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

class SyncBatchNorm {
 public:
  SyncBatchNorm(Graph* graph, Value* active, int ranks) : graph_(*graph), active_(active), ranks_(ranks) {}

  Marks<Value> run() {
    infer_types(&graph_);  // a model that was a file knows the types of its inputs alone
    for (Node *node = graph_.first(), *next = nullptr; node; node = next) {
      next = node->next();
      if (node->is("BatchNormalizationTrain", kDomain)) normalize(node);
      if (node->is("BatchNormalizationGrad", kDomain)) differentiate(node);
    }
    return std::move(statistics_);
  }

 private:
  // [rank, numbers] of all ranks, with zeros for those that have no batch.
  Var gather_numbers(Builder* b, const std::vector<Var>& numbers) {
    const Var all = call(*b, "AllGather", {concat(numbers, int64_t{0})}, {{"ranks", ranks_}});
    std::vector<int64_t> numbers_of_ranks(static_cast<size_t>(ranks_));
    std::iota(numbers_of_ranks.begin(), numbers_of_ranks.end(), 0);
    const Var has_batch = b->ints(numbers_of_ranks) < b->var(active_);
    return where(unsqueeze(has_batch, {1}), all, b->scalar(all.dtype(), 0));
  }

  // Of numbers for each channel: [channels, 1, ...], beside x.
  static Var beside(Var numbers, int64_t rank) {
    std::vector<int64_t> axes(static_cast<size_t>(rank - 2));
    std::iota(axes.begin(), axes.end(), 1);
    return axes.empty() ? numbers : unsqueeze(numbers, axes);
  }

  static int64_t rank_of(const Node& node) {
    if (!node.input(0)->has_rank()) fail("[SyncBatchNorm] the rank of the input of ", node.label(), " is not known");
    return node.input(0)->rank();
  }

  // Whether a product of `value` and `size`, or of what is computed from it, is the unbiased variance.
  static bool scales(const Value& size, const Value& value) {
    return std::any_of(size.uses().begin(), size.uses().end(), [&](const Use& use) {
      const Node& node = *use.node;
      if (node.is("Mul") && (node.input(0) == &value || node.input(1) == &value)) return true;
      const bool is_step = node.is("Cast") || node.is("Div") || node.is("Sub") || node.is("Max");
      return is_step && scales(*node.output(), value);
    });
  }

  void normalize(Node* node) {
    const int64_t rank = rank_of(*node);
    Builder b(&graph_, node);
    b.set_name(node->output()->name() + "/sync");
    const Var x = b.var(node->input(0)), scale = b.var(node->input(1)), bias = b.var(node->input(2));
    std::vector<int64_t> axes = {0};
    for (int64_t axis = 2; axis < rank; ++axis) axes.push_back(axis);
    const Var own_mean = reduce_mean(x, axes), centered = x - own_mean;
    const Var own_var = reduce_mean(centered * centered, axes, /*keepdims=*/false);
    const Var own_size = size(x), count = cast(own_size / size(scale), x.dtype());
    const Var all =
        gather_numbers(&b, {reshape(own_mean, shape(scale)), own_var, reshape(count, std::vector<int64_t>{1})});
    // The channels' number may be known when there are shapes only.
    const Var channels = reshape(size(scale), std::vector<int64_t>{1}), axis = b.ints({1});
    const Var means = slice(all, b.ints({0}), channels, axis), counts = slice(all, -1, INT64_MAX, 1);
    const Var vars = slice(all, channels, channels + channels, axis);
    const Var n = reduce_sum(counts, std::vector<int64_t>{0});  // [1, 1]
    const Var mean = reduce_sum(counts * means, std::vector<int64_t>{0}) / n, off = means - mean;
    const Var var = reduce_sum(counts * (vars + off * off), std::vector<int64_t>{0}) / n;
    const Var mean_of_all = squeeze(mean, {0}), var_of_all = squeeze(var, {0});
    const Var y = b.op("BatchNormalization", {x, scale, bias, mean_of_all, var_of_all},
                       {{"epsilon", node->attr("epsilon", 1e-5f)}});
    // The unbiased variance is of the elements of all ranks.
    for (const Use& use : std::vector<Use>(node->input(0)->uses())) {
      if (!use.node->is("Size") || !scales(*use.node->output(), *node->output(2))) continue;
      const Var of_channel = reshape(n, std::vector<int64_t>());
      const Var elements = cast(of_channel * cast(size(scale), n.dtype()), DType::kInt64);
      statistics_.insert(elements.value());
      graph_.replace(use.node->output(), elements.value());
    }
    const std::vector<Var> made = {y, mean_of_all, var_of_all};
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (node->output(i)) graph_.replace(node->output(i), made[static_cast<size_t>(i)].value());
    }
    graph_.remove(node);
    counts_[mean_of_all.value()] = n.value();
    statistics_.insert(mean_of_all.value());
    statistics_.insert(var_of_all.value());
  }

  void differentiate(Node* node) {
    const auto found = counts_.find(node->input(2));
    if (found == counts_.end()) return;
    const int64_t rank = rank_of(*node);
    Builder b(&graph_, node);
    b.set_name(node->output()->name() + "/sync");
    std::vector<Var> inputs;
    for (Value* input : node->inputs()) inputs.push_back(b.var(input));
    const float epsilon = node->attr("epsilon", 1e-5f);
    const std::vector<Var> frozen = call(b, "BatchNormalizationFrozenGrad", 3, inputs, {{"epsilon", epsilon}});
    const Var x = inputs[0], scale = inputs[1], mean = inputs[2], var = inputs[3];
    const Var sums = reduce_sum(gather_numbers(&b, {frozen[1], frozen[2]}), std::vector<int64_t>{0}, false);
    const Var channels = reshape(size(scale), std::vector<int64_t>{1}), axis = b.ints({0});
    const Var n = squeeze(b.var(found->second), {0});
    const Var along = slice(sums, b.ints({0}), channels, axis) / n;
    const Var across = slice(sums, channels, channels + channels, axis) / n;
    const Var inverse = reciprocal(sqrt(var + static_cast<double>(epsilon)));
    const Var factor = scale * inverse;
    const Var of_mean = frozen[0] - beside(factor * across, rank), centered = x - beside(mean, rank);
    const Var dx = of_mean - centered * beside(factor * inverse * along, rank);
    const std::vector<Var> made = {dx, frozen[1], frozen[2]};
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (node->output(i)) graph_.replace(node->output(i), made[static_cast<size_t>(i)].value());
    }
    graph_.remove(node);
  }

  Graph& graph_;
  Value* active_;
  int ranks_;
  std::map<const Value*, Value*> counts_;  // of elements of a channel on all ranks, by the mean
  Marks<Value> statistics_;
};

}  // namespace

Marks<Value> synchronize_batch_norm(Graph* graph, Value* active, int ranks) {
  return SyncBatchNorm(graph, active, ranks).run();
}

}  // namespace onnx_train
