#include "onnx_passes/training/frozen_statistics.h"

#include <algorithm>
#include <map>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/batch_statistics.h"
#include "onnx_passes/model/select.h"

namespace onnx_train {
namespace {

enum class Reason { kNone, kComputed, kSamples, kNamed, kWeights, kBefore, kMode };

std::string text_of(Reason reason) {
  switch (reason) {
    case Reason::kComputed: return "the model computes them";
    case Reason::kSamples: return "they are those of single samples";
    case Reason::kNamed: return "--freeze names them";
    case Reason::kWeights: return "none of their weights is trained";
    case Reason::kBefore: return "none of the weights before them is trained";
    case Reason::kMode: return "their training_mode is 0";
    case Reason::kNone: break;
  }
  return "";
}

class Decision {
 public:
  Decision(const Model& model, const BuildOptions& options) : model_(model), options_(options) {
    const bool adapted = has_adapters(model);
    if (options.train.empty() && options.freeze.empty() && !adapted) return;
    for (const Value* weight : adapted ? select_trainable(model, {"*"}, {}) : select_trainable(model, {}, {}))
      origin_[weight] = kUntrained;
    for (const Value* weight : select_trainable(model, options.train, options.freeze)) origin_[weight] = kTrained;
    for (const Value* value : find_names(model.graph->initializers(), options.freeze, "--freeze"))
      origin_[value] |= kNamedByFreeze;
    for (const Value* value : find_names(model.graph->initializers(), options.train, "--train"))
      origin_[value] |= kNamedByTrain;
  }

  BatchNormStatistics run() {
    visit(*model_.graph);
    if (!kept_.empty()) result_.summary = kept();
    if (const std::string hint = preserve_hint(); !hint.empty())
      result_.summary += concat(result_.summary.empty() ? "" : "; ", hint);
    return std::move(result_);
  }

 private:
  static bool trains(const Node& node) { return node.attr("training_mode", 0) != 0; }

  // What a value depends on.
  using Origin = int;
  static constexpr Origin kTrained = 1, kUntrained = 2, kNamedByFreeze = 4, kNamedByTrain = 8;

  Origin origin(const Value* value) const {
    const Origin* found = value ? origin_.find(value) : nullptr;
    return found ? *found : 0;
  }

  std::string kept() const {
    const size_t count = nodes_ - result_.trained.size();
    std::string reasons;
    for (const auto& [reason, of_it] : kept_) {
      reasons += concat(reasons.empty() ? "" : "; ", text_of(reason));
      if (kept_.size() > 1) reasons += concat(" (", of_it, ")");
    }
    return concat(count, " of ", nodes_,
                  nodes_ == 1 ? " batch normalization keeps its" : " batch normalizations keep their",
                  " running statistics: ", reasons);
  }

  // Said where some trained batch normalizations, but not all, were exported in training mode.
  std::string preserve_hint() const {
    const auto count = static_cast<size_t>(
        std::count_if(result_.trained.begin(), result_.trained.end(), [](const Node* node) { return !trains(*node); }));
    if (count == 0 || count == result_.trained.size()) return "";
    return concat(count, " of ", nodes_, count == 1 ? " has" : " have", " training_mode 0 in the file, others 1: all ",
                  "train; --mode preserve follows the file");
  }

  void visit(const Graph& graph) {
    for (const Node* node = graph.first(); node; node = node->next()) {
      for (const auto& subgraph : node->subgraphs()) visit(*subgraph.graph);
      if (node->is("BatchNormalization")) decide(*node);
      Origin all = 0;
      for_each_input(*node, [&](const Value* v) { all |= origin(v); });
      if (all == 0) continue;
      for (const Value* output : node->outputs()) {
        if (output) origin_[output] = all;
      }
    }
  }

  void decide(const Node& node) {
    ++nodes_;
    const Reason reason = reason_of(node);
    if (reason != Reason::kNone) {
      ++kept_[reason];
    } else {
      result_.trained.insert(&node);
    }
  }

  Reason reason_of(const Node& node) const {
    if (options_.mode == Mode::kPreserve && !trains(node)) return Reason::kMode;
    for (const int i : {3, 4}) {
      if (constant_of(node.input(i)).empty()) return Reason::kComputed;
    }
    if (normalizes_samples(node)) return Reason::kSamples;
    const Origin statistics = origin(node.input(3)) | origin(node.input(4));
    if (statistics & kNamedByFreeze) return Reason::kNamed;
    const Origin weights = origin(node.input(1)) | origin(node.input(2));
    if (weights & kTrained) return Reason::kNone;
    if ((statistics & kNamedByTrain) && !(weights & kNamedByFreeze)) return Reason::kNone;
    if (weights & kUntrained) return Reason::kWeights;
    const Origin before = origin(node.input(0));
    const bool chosen = !options_.train.empty() || (before & kUntrained);
    return chosen && !(before & kTrained) ? Reason::kBefore : Reason::kNone;
  }

  const Model& model_;
  const BuildOptions& options_;
  ValueTable<Origin> origin_;
  std::map<Reason, int> kept_;
  size_t nodes_ = 0;
  BatchNormStatistics result_;
};

}  // namespace

BatchNormStatistics decide_statistics(const Model& model, const BuildOptions& options) {
  if (options.mode == Mode::kFrozen) return {};
  return Decision(model, options).run();
}

}  // namespace onnx_train
