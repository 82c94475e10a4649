#include "onnx_passes/passes/analysis.h"

#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <map>
#include <unordered_map>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {
namespace {

// Smaller weights are equal by chance.
constexpr int64_t kMinCopied = 16;

class Inspection {
 public:
  explicit Inspection(const Model& model) : graph_(*model.graph) {}

  std::vector<Finding> run() {
    find_unknown_operators();
    for (const Value* value : graph_.initializers()) {
      if (is_float(value->dtype())) weights_.push_back({value, from_proto(*value->initializer())});
    }
    find_non_finite();
    find_aliased_statistics();
    find_shared();
    find_copies();
    find_expanded();
    return std::move(findings_);
  }

 private:
  struct Weight {
    const Value* value;
    Tensor tensor;
  };

  void add(const std::string& subject, const std::string& what, const std::string& advice) {
    findings_.push_back({subject, what, advice});
  }

  void find_unknown_operators() {
    std::map<std::string, std::pair<int, const Node*>> unknown;
    for (const Node* node = graph_.first(); node; node = node->next()) {
      if (is_known_operator(*node)) continue;
      auto& [count, first] = unknown[concat(node->domain().empty() ? "ai.onnx" : node->domain(), ".", node->op())];
      if (count++ == 0) first = node;
    }
    for (const auto& [name, found] : unknown) {
      add(name, concat("not an operator of ONNX, used ", found.first, found.first == 1 ? " time" : " times"),
          unknown_operator_advice(*found.second));
    }
  }

  void find_non_finite() {
    for (const Weight& weight : weights_) {
      int64_t count = 0;
      for (int64_t i = 0; i < weight.tensor.size(); ++i) count += !std::isfinite(weight.tensor.at(i));
      // Masks hold -inf on purpose; their finite part is zero.
      if (count > 0 && !is_mask(weight.tensor)) {
        add(weight.value->name(), concat(count, " of its ", weight.tensor.size(), " elements are not finite"),
            "the loss will not be finite either; export weights that are");
      }
    }
  }

  static bool is_mask(const Tensor& tensor) {
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const double x = tensor.at(i);
      if (std::isnan(x) || (std::isfinite(x) && x != 0) || x > 0) return false;
    }
    return true;
  }

  // The initializer that a value is, or is an Identity of; null when it is neither.
  const Value* source(const Value* value) const {
    if (!value) return nullptr;
    const Value* const* found = sources_.find(value);
    return found ? *found : value->is_initializer() ? value : nullptr;
  }

  void find_aliased_statistics() {
    for (const Node* node = graph_.first(); node; node = node->next()) {
      if (node->is("Identity") && node->output()) sources_[node->output()] = source(node->input(0));
      if (!node->is("BatchNormalization") || node->num_inputs() < 5) continue;
      for (int i = 3; i < 5; ++i) {
        const Value* statistic = source(node->input(i));
        if (!statistic) continue;
        for (int j = 1; j < i; ++j) {
          if (source(node->input(j)) != statistic) continue;
          add(node->label(), concat("its running ", i == 3 ? "mean" : "variance", " is also '", statistic->name(), "'"),
              "the exporter merged equal tensors; training keeps them apart from the first step on");
        }
      }
    }
  }

  // Nodes that read the weight's values, through Identity too.
  static std::vector<const Node*> readers_of(const Value* weight) {
    std::vector<const Node*> readers;
    std::vector<const Value*> pending = {weight};
    while (!pending.empty()) {
      const Value* value = pending.back();
      pending.pop_back();
      for (const Use& use : value->uses()) {
        if (use.node->is("Identity") && use.node->output()) {
          pending.push_back(use.node->output());
        } else if (!use.node->is("Shape") && !use.node->is("Size") && !use.node->is("CastLike")) {
          readers.push_back(use.node);
        }
      }
    }
    return readers;
  }

  static bool is_uniform(const Tensor& tensor) {
    for (int64_t i = 1; i < tensor.size(); ++i) {
      if (tensor.at(i) != tensor.at(0)) return false;
    }
    return true;
  }

  void find_shared() {
    for (const Weight& weight : weights_) {
      const std::vector<const Node*> readers = readers_of(weight.value);
      if (readers.size() < 2 || weight.tensor.size() < 2) continue;
      const std::string others = concat("used by ", readers.size(), " nodes, ", readers[0]->label(), " and ",
                                        readers.back()->label(), readers.size() > 2 ? " among them" : "");
      if (is_uniform(weight.tensor)) {
        add(weight.value->name(), others + "; all its elements are equal",
            "exporters merge equal weights of a model that was never trained: they are trained as one; give them "
            "different values before exporting if they are not meant to be");
      } else {
        add(weight.value->name(), others, "tied weights: they are trained as one");
      }
    }
  }

  static Tensor transposed(const Tensor& x) {
    const int64_t rows = x.shape()[0], columns = x.shape()[1];
    const size_t size = size_of(x.dtype());
    Tensor result(x.dtype(), {columns, rows});
    const auto* from = static_cast<const char*>(x.data());
    auto* to = static_cast<char*>(result.data());
    for (int64_t i = 0; i < x.size(); ++i) {
      const int64_t target = i % columns * rows + i / columns;
      std::memcpy(to + static_cast<size_t>(target) * size, from + static_cast<size_t>(i) * size, size);
    }
    return result;
  }

  static uint64_t hash(const Tensor& tensor) {
    const uint64_t seed = XXH3_64bits(tensor.shape().data(), tensor.shape().size() * sizeof(int64_t));
    return XXH3_64bits_withSeed(tensor.data(), tensor.bytes(), seed + static_cast<uint64_t>(tensor.dtype()));
  }

  // Weights that were one before the export, or were merged by hand.
  void find_copies() {
    std::unordered_map<uint64_t, const Value*> seen;
    for (const Weight& weight : weights_) {
      if (weight.tensor.size() < kMinCopied || is_uniform(weight.tensor)) continue;
      const Value* original = nullptr;
      bool turned = false;
      if (const auto same = seen.find(hash(weight.tensor)); same != seen.end()) {
        original = same->second;
      } else if (weight.tensor.shape().size() == 2) {
        const auto transpose = seen.find(hash(transposed(weight.tensor)));
        turned = transpose != seen.end();
        if (turned) original = transpose->second;
      }
      seen.emplace(hash(weight.tensor), weight.value);
      if (!original) continue;
      add(weight.value->name(), concat("equal to '", original->name(), turned ? "', transposed" : "'"),
          "if the two were tied, the export has untied them: they are trained apart");
    }
  }

  void find_expanded() {
    for (const Weight& weight : weights_) {
      const Shape& shape = weight.tensor.shape();
      if (shape.size() < 2 || shape[0] < 2 || weight.tensor.size() < kMinCopied) continue;
      const size_t part = weight.tensor.bytes() / static_cast<size_t>(shape[0]);
      const auto* data = static_cast<const char*>(weight.tensor.data());
      if (is_uniform(weight.tensor) || std::memcmp(data, data + part, part * static_cast<size_t>(shape[0] - 1)) != 0) {
        continue;
      }
      add(weight.value->name(), concat("stored ", shape[0], " times over along its first axis, ", to_string(shape)),
          "the copies are trained apart; export the weight as it is, expanded in the graph");
    }
  }

  const Graph& graph_;
  std::vector<Weight> weights_;
  ValueTable<const Value*> sources_;  // of what Identity nodes give
  std::vector<Finding> findings_;
};

}  // namespace

std::string unknown_operator_advice(const Node& node) {
  if (node.domain() == "com.microsoft") {
    return "ONNX Runtime's optimizer made it; export without its fusions (in Optimum: no -O level)";
  }
  if (node.domain().empty()) {
    return concat("opset ", node.graph().context().opset(), " does not have it; export with another opset");
  }
  return "give the model a local function of that name, or export the operator as standard ones";
}

std::vector<Finding> inspect(const Model& model) { return Inspection(model).run(); }

}  // namespace onnx_train
