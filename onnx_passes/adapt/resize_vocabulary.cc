// More rows in the table of a language model's tokens, and as many more scores in what predicts them.
#include <algorithm>
#include <cstring>
#include <map>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/followers.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr const char* kResizes = "--resize-vocabulary: ";

// The input that a text's tokens go to; null if there is none.
Value* tokens_of(const Graph& graph) {
  for (Value* input : graph.inputs()) {
    const auto is_called = [&](const char* word) { return input->name().find(word) != std::string::npos; };
    const bool is_other = is_called("mask") || is_called("position") || is_called("token_type");
    if (is_integer(input->dtype()) && input->has_rank() && input->rank() == 2 && !input->is_initializer() && !is_other)
      return input;
  }
  return nullptr;
}

// Whether `value` is `input`, in another shape or type.
bool is_moved(const Value* value, const Value* input) {
  for (; value != input; value = value->producer()->input(0)) {
    const Node* node = value->producer();
    if (!node || !(operator_of(*node).kind == OperatorKind::kView || node->is("Cast")) || !node->input(0)) return false;
  }
  return true;
}

class VocabularyResize {
 public:
  VocabularyResize(Model* model, const VocabularySize& size) : model_(*model), graph_(*model->graph), size_(size) {}

  bool run() {
    find_tables();
    before_ = tables_[0]->type().shape()[0];
    after_ = (size_.tokens + size_.multiple - 1) / size_.multiple * size_.multiple;
    for (const Value* table : tables_) {
      if (table->type().shape()[0] != before_)
        fail(kResizes, "'", tables_[0]->name(), "' has ", before_, " rows for tokens, and '", table->name(), "' ",
             table->type().shape()[0], ": it is not clear which are to grow");
    }
    if (after_ <= before_) return is_large_enough();
    find_heads();
    for (Value* table : tables_) grow(table, 0);
    std::vector<Value*> changed;
    for (const LinearLayer& head : heads_) {
      changed.push_back(grow(head.weight, head.out_first ? 0 : 1));
      if (has_bias_of_each(head)) changed.push_back(grow(head.bias, head.bias->rank() - 1));
    }
    Followers followers(&graph_, heads_.empty() ? "" : outputs_, before_, after_);
    followers.follow(changed, lookups_);
    graph_.remove_unused_initializers();
    note(followers.mended());
    return true;
  }

 private:
  void find_tables() {
    const Value* tokens = tokens_of(graph_);
    if (!tokens) fail(kResizes, "the model has no input int64[batch, tokens]");
    for (Node* node = graph_.first(); node; node = node->next()) {
      if (!node->is("Gather") || node->attr("axis", 0) != 0 || !is_moved(node->input(1), tokens)) continue;
      Value* table = node->input(0);
      if (table->is_initializer() && is_float(table->dtype()) && table->has_rank() && table->rank() == 2) {
        lookups_.push_back(node);
        if (std::ranges::count(tables_, table) == 0) tables_.push_back(table);
      } else if (table->producer() && is_float(table->dtype())) {
        fail(kResizes, "the table that ", node->label(), " looks '", tokens->name(), "' up in is computed by ",
             table->producer()->label(), "; export the model with a table of floats");
      }
    }
    if (tables_.empty()) fail(kResizes, "no weights are looked up by '", tokens->name(), "', the tokens");
  }

  // Layers whose outputs are scores of the tokens.
  void find_heads() {
    for (Value* output : graph_.outputs()) {
      const bool is_scores = is_float(output->dtype()) && output->has_rank() && output->rank() > 1 &&
                             output->type().dims->back() == Dim(before_);
      if (!is_scores) continue;
      const LinearLayer layer = find_head(model_, output);
      if (layer.out() != before_ || layer.groups != 1 || layer.is_convolution())
        fail(kResizes, layer.node->label(), ", the last layer of '", output->name(), "', has ", layer.out(),
             " outputs for ", before_, " tokens");
      for (const Value* part : {layer.weight, has_bias_of_each(layer) ? layer.bias : layer.weight}) {
        if (!part->is_initializer())
          fail(kResizes, "'", part->name(), "', of the last layer of '", output->name(),
               "', is computed of other weights; export the model with floats");
      }
      outputs_ += concat(outputs_.empty() ? "" : ", ", output->name());
      const auto same = [&](const LinearLayer& other) { return other.node == layer.node; };
      if (std::ranges::none_of(heads_, same)) heads_.push_back(layer);
    }
  }

  // One number for all outputs fits any number of them.
  bool has_bias_of_each(const LinearLayer& layer) const {
    return layer.bias && layer.bias->has_rank() && layer.bias->rank() > 0 &&
           layer.bias->type().dims->back() == Dim(before_);
  }

  // More of the axis, each the mean of what there is. A weight that is table and head grows once.
  Value* grow(Value* weight, int64_t axis) {
    if (const auto known = grown_.find(weight); known != grown_.end()) return known->second;
    const Tensor old = contents_of(*weight);
    Shape shape = old.shape();
    int64_t outer = 1, inner = 1;
    for (int64_t i = 0; i < std::ssize(shape); ++i)
      (i < axis ? outer : inner) *= i == axis ? 1 : shape[static_cast<size_t>(i)];
    shape[static_cast<size_t>(axis)] = after_;
    Tensor larger(old.dtype(), shape);
    const size_t bytes = static_cast<size_t>(before_ * inner) * size_of(old.dtype());
    std::vector<double> sums(static_cast<size_t>(inner));
    for (int64_t o = 0; o < outer; ++o) {
      const auto at = static_cast<size_t>(o);
      std::memcpy(larger.data<std::byte>() + at * bytes / static_cast<size_t>(before_) * static_cast<size_t>(after_),
                  old.data<std::byte>() + at * bytes, bytes);
      std::ranges::fill(sums, 0.0);
      for (int64_t i = 0; i < before_ * inner; ++i)
        sums[static_cast<size_t>(i % inner)] += old.at(o * before_ * inner + i);
      for (int64_t i = before_ * inner; i < after_ * inner; ++i)
        larger.set(o * after_ * inner + i, sums[static_cast<size_t>(i % inner)] / static_cast<double>(before_));
    }
    names_ += concat(names_.empty() ? "'" : ", '", weight->name(), "'");
    train_ += concat(train_.empty() ? "" : ",", weight->name());
    model_.set_metadata(std::string(kGrownRecord) + weight->name(), concat(after_, " rows in place of ", before_));
    return grown_[weight] = replace_initializer(&graph_, weight, changed_initializer(*weight, larger));
  }

  bool is_large_enough() const {
    if (!size_.is_least && after_ < before_)
      fail(kResizes, after_, " tokens are fewer than the ", before_, " rows of '", tables_[0]->name(),
           "': rows are added, not taken away");
    add_adapted_note(&model_, concat("vocabulary: '", tables_[0]->name(), "' has ", before_, " rows, enough for ",
                                     size_.tokens, " tokens"));
    return false;
  }

  void note(const std::string& mended) const {
    add_adapted_note(
        &model_,
        concat("vocabulary: ", names_, grown_.size() == 1 ? " has " : " have ", after_, " rows in place of ", before_,
               ", each new one the mean of the others: alike until they ", "train, with adapters by --train '", train_,
               "'", heads_.empty() ? "; no output has as many scores as tokens" : "",
               mended.empty() ? "" : "; new shape: " + mended));
  }

  Model& model_;
  Graph& graph_;
  const VocabularySize size_;
  int64_t before_ = 0, after_ = 0;
  std::vector<Value*> tables_;
  std::vector<Node*> lookups_;
  std::vector<LinearLayer> heads_;
  std::string outputs_, names_, train_;
  std::map<const Value*, Value*> grown_;
};

}  // namespace

Pass resize_vocabulary(const VocabularySize& size) {
  return {"resize_vocabulary", [size](Model& model) { return VocabularyResize(&model, size).run(); }};
}

}  // namespace onnx_train
