#include "onnx_passes/tokens/add_cache.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <unordered_set>

#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/recognize/simplify.h"
#include "onnx_passes/tokens/all_positions.h"
#include "onnx_passes/tokens/token_axes.h"

namespace onnx_train {
namespace {

// A key or value that is kept: where it is taken, and the nodes from there to the product that reads it.
struct KeptTensor {
  Value* value = nullptr;  // of the new tokens
  int64_t axis = 0;
  Value* past = nullptr;
  Value* all = nullptr;   // earlier and new ones
  std::string name = {};  // "0.key"
};

class CacheWriter {
 public:
  CacheWriter(Model* model, CacheForm form)
      : model_(*model),
        graph_(*model->graph),
        form_(form),
        inputs_(text_inputs(graph_)),
        masks_(read_masks_once()),
        flow_(graph_, inputs_),
        nodes_(graph_.nodes()) {
    for (const Value* input : graph_.inputs()) {
      if (!input->uses().empty()) read_before_.insert(input);
    }
  }

  std::vector<CachedTensor> run() {
    if (flow_.reads().empty()) fail("[Cache] no attention was found: no product of queries and keys");
    for (const TokenFlow::Read& read : flow_.reads()) keep(read);
    Builder b(&graph_, graph_.first());
    add_inputs(b);
    positions_.emplace(&graph_, flow_, lengths_);
    for (Node* node : nodes_) rewrite(node);
    shorten_masks();
    return finish();
  }

 private:
  // A node between each mask and its readers. In the end it gives the part of the new tokens: a model may ask a mask
  // how many there are.
  std::vector<Node*> read_masks_once() {
    std::vector<Node*> nodes;
    for (Value* mask : inputs_.masks) {
      const std::vector<Use> uses = mask->uses();
      Builder b(&graph_, graph_.first());
      Value* const read = b.op("Identity", {b.var(mask)}).value();
      for (const Use& use : uses) use.node->set_input(use.index, read);
      nodes.push_back(read->producer());
    }
    return nodes;
  }

  void shorten_masks() {
    for (Node* node : masks_) {
      Builder b(&graph_, node);
      const Var mask = b.var(node->input(0));
      const Var part = lengths_.rows ? gather(mask, b.var(lengths_.rows), 1)
                                     : slice(mask, b.var(lengths_.past), b.var(lengths_.total), b.ints({1}));
      graph_.replace(node->output(), part.value());
    }
  }

  // A node that only moves elements, or multiplies all by one number: what follows a kept value is computed anew.
  bool is_movement(const Node& node) const {
    const Value* x = node.input(0);
    if (!flow_.is_stream(x) || flow_.of(x).keys >= 0 || flow_.of(x).merged) return false;
    if (is_view(node) || node.is("Transpose") || node.is("Expand") || node.is("Cast")) return true;
    const Value* other = node.input(1);
    return (node.is("Mul") || node.is("Div")) && !flow_.is_stream(other) && !flow_.is_positional(other) &&
           std::ranges::all_of(std::views::iota(int64_t{0}, flow_.rank(other)), [&](int64_t axis) {
             const TokenFlow::Size size = flow_.size_of(other, axis);
             return size.of == TokenFlow::Size::kNumber && size.number == 1;
           });
  }

  // The earliest value [texts, heads, tokens, size] is the smallest; else the one that the product reads.
  Value* place_to_keep(Value* at) const {
    Value* found = at;
    for (;; at = at->producer()->input(0)) {
      const TokenAxes& axes = flow_.of(at);
      if (flow_.rank(at) == 4 && axes.tokens == 2 && !axes.merged) found = at;
      if (!at->producer() || !is_movement(*at->producer())) return found;
    }
  }

  void keep(const TokenFlow::Read& read) {
    Value* value = place_to_keep(read.product->input(read.input));
    const auto same = [&](const KeptTensor& kept) { return kept.value == value; };
    if (std::ranges::any_of(kept_, same)) return;
    KeptTensor kept{.value = value, .axis = flow_.of(value).tokens};
    const int64_t layer = read.is_value ? std::max<int64_t>(values_, keys_ - 1) : keys_;
    read.is_value ? values_ = layer + 1 : keys_ = layer + 1;
    kept.name = concat(layer, read.is_value ? ".value" : ".key");
    kept_.push_back(kept);
  }

  Dims dims_of(const KeptTensor& kept, const Dim& length) const {
    const Dim& texts = inputs_.tokens->type().dims->front();
    Dims dims;
    for (int64_t i = 0; i < flow_.rank(kept.value); ++i) {
      const TokenFlow::Size size = flow_.size_of(kept.value, i);
      if (i == kept.axis) {
        dims.push_back(length);
      } else if (size.of == TokenFlow::Size::kTokens) {
        fail("[Cache] '", kept.value->name(), "' has the tokens in two axes");
      } else if (size.of == TokenFlow::Size::kTexts) {
        dims.push_back(size.number == 1 ? texts : Dim(concat(size.number, "*", texts.symbol())));
      } else {
        dims.push_back(size.number);
      }
    }
    return dims;
  }

  void add_inputs(Builder& b) {
    const bool grows = form_ == CacheForm::kGrowing;
    for (KeptTensor& kept : kept_) {
      const std::string name = graph_.unique_name("past_key_values." + kept.name);
      kept.past =
          graph_.add_input(name, {kept.value->dtype(), dims_of(kept, grows ? "past_sequence_length" : "places")});
    }
    for (Value* mask : inputs_.masks) {
      mask->set_type({mask->dtype(), Dims{mask->type().dims->front(), Dim("total_sequence_length")}});
    }
    if (flow_.fixed_length() > 0) open_inputs();
    const Var past = dim(b.var(kept_.front().past), kept_.front().axis), fresh = dim(b.var(inputs_.tokens), 1);
    lengths_ = {.past = past.value(), .fresh = fresh.value(), .total = (past + fresh).value()};
    if (grows) return;
    const Var used = b.var(graph_.add_input(kPastLength, {DType::kInt64, Dims{1}}));
    const auto numbers = [&](Var count) {
      return b.op("Range", {b.scalar(DType::kInt64, 0), squeeze(count, {0}), b.scalar(DType::kInt64, 1)});
    };
    const Var places = numbers(past), rows = used + numbers(fresh);
    lengths_.rows = rows.value();
    lengths_.keys = concat({places, rows}, 0).value();
    const Var is_new = b.op("Expand", {b.constant(Tensor::full(DType::kBool, {1}, 1)), fresh});
    in_use_ = concat({places < used, is_new}, 0).value();
  }

  // Inputs of a fixed number of tokens take any number up to it.
  void open_inputs() {
    std::vector<Value*> inputs = inputs_.by_token;
    inputs.push_back(inputs_.tokens);
    for (Value* input : inputs) input->set_type({input->dtype(), Dims{input->type().dims->front(), "sequence_length"}});
  }

  void rewrite(Node* node) {
    const Value* output = node->output();
    if (!flow_.is_stream(output)) return;
    positions_->before(node);
    const TokenAxes& axes = flow_.of(output);
    for (int i = 0; i < node->num_inputs(); ++i) {
      Value* input = node->input(i);
      if (input && flow_.is_positional(input)) node->set_input(i, operand(*node, i, axes));
    }
    if (flow_.fixed_length() > 0) open_sizes(node, axes);
    for (const TokenFlow::Read& read : flow_.reads()) {
      if (read.product == node) node->set_input(read.input, all_tokens(node, node->input(read.input)));
    }
    if (node->is("Softmax") && axes.keys >= 0 && in_use_) hide_unused(node, axes.keys);
  }

  // What stands for the positional input i of a node with these axes.
  Value* operand(const Node& node, int i, const TokenAxes& axes) {
    Value* input = node.input(i);
    const std::vector<int>& sizes = operator_of(node).sized_by;
    if (std::ranges::find(sizes, i) != sizes.end()) {
      if (axes.keys < 0) return input;  // sizes of the new tokens
      if (!node.is("Reshape") && !node.is("Expand"))
        fail("[Cache] ", node.label(), " has sizes that depend on the number of keys");
      return positions_->sizes_with_all(input, axes.keys);
    }
    if (node.is("Gather") && i == 0) return positions_->all(input);
    const int64_t shift = flow_.rank(node.output()) - flow_.rank(input);
    bool is_of_tokens = false;
    int64_t tokens = -1, keys = -1;
    for (int64_t axis = 0; axis < flow_.rank(input); ++axis) {
      if (flow_.size_of(input, axis).of != TokenFlow::Size::kTokens) continue;
      is_of_tokens = true;
      (axis + shift == axes.tokens ? tokens : keys) = axis;
    }
    if (!is_of_tokens)
      fail("[Cache] ", node.label(), " computes with a number that depends on how many tokens there are, '",
           input->name(), "'");
    return positions_->rows_and_keys(input, tokens, keys);
  }

  // Of a model of a fixed number of tokens: sizes that count them, and operands with a row for each.
  void open_sizes(Node* node, const TokenAxes& axes) {
    const int64_t rank = flow_.rank(node->output());
    if ((node->is("Reshape") || node->is("Expand")) && !axes.merged) {
      Value* const sizes = positions_->sizes_with(node->input(1), rank, axes.tokens, lengths_.fresh);
      node->set_input(1, axes.keys < 0 ? sizes : positions_->sizes_with(sizes, rank, axes.keys, lengths_.total));
    }
    if (!is_elementwise(*node) && !node->is("Concat")) return;
    for (int i = 0; i < node->num_inputs(); ++i) {
      Value* const input = node->input(i);
      if (!input || flow_.is_stream(input)) continue;
      const int64_t shift = rank - flow_.rank(input);
      const auto own = [&](int64_t axis) {
        return axis >= shift && flow_.is_of_tokens(input, axis - shift) ? axis - shift : -1;
      };
      const int64_t tokens = own(axes.tokens), keys = axes.keys < 0 ? -1 : own(axes.keys);
      if (tokens >= 0 || keys >= 0) node->set_input(i, positions_->rows_and_keys(input, tokens, keys));
    }
  }

  // The value for earlier and new tokens, from where they are kept.
  Value* all_tokens(Node* before, Value* value) {
    const auto same = [&](const KeptTensor& kept) { return kept.value == value; };
    if (const auto found = std::ranges::find_if(kept_, same); found != kept_.end()) {
      Builder b(&graph_, before);
      if (!found->all) found->all = concat({b.var(found->past), b.var(value)}, found->axis).value();
      return found->all;
    }
    Node* node = value->producer();
    std::vector<Value*> inputs = node->inputs();
    inputs[0] = all_tokens(before, inputs[0]);
    for (size_t i = 1; i < inputs.size(); ++i) inputs[i] = inputs[i] ? positions_->all(inputs[i]) : nullptr;
    if (flow_.fixed_length() > 0 && (node->is("Reshape") || node->is("Expand")))
      inputs[1] = positions_->sizes_with(node->input(1), flow_.rank(value), flow_.of(value).tokens, lengths_.total);
    Node* const copy = graph_.add_node(*node, inputs, {graph_.unique_name(value->name() + "_all")}, before);
    copy->mutable_shell().clear_name();
    return copy->output();
  }

  // Scores of places that are not in use are as small as masks make them.
  void hide_unused(Node* softmax, int64_t keys) {
    Builder b(&graph_, softmax);
    constexpr double kHidden = -3e38;
    Var in_use = b.var(in_use_);
    std::vector<int64_t> behind;
    for (int64_t i = 1; i < flow_.rank(softmax->output()) - keys; ++i) behind.push_back(i);
    if (!behind.empty()) in_use = unsqueeze(in_use, behind);
    softmax->set_input(0, where(in_use, b.var(softmax->input(0)), kHidden).value());
  }

  std::vector<CachedTensor> finish() {
    std::vector<CachedTensor> tensors;
    Builder b(&graph_);
    for (const KeptTensor& kept : kept_) {
      b.set_name("present." + kept.name);
      Value* const result = form_ == CacheForm::kGrowing ? kept.all : kept.value;
      Value* const present = b.op("Identity", {b.var(result)}).value();
      graph_.add_output(present);
      CachedTensor tensor{kept.past->name(), present->name(), kept.axis, {}, kept.value->dtype()};
      for (int64_t i = 0; i < flow_.rank(kept.value); ++i) {
        const TokenFlow::Size size = flow_.size_of(kept.value, i);
        tensor.sizes.push_back({size.number, size.of == TokenFlow::Size::kTexts});
      }
      tensors.push_back(tensor);
    }
    remove_unneeded(&model_, read_before_);
    for (Node* node : graph_.nodes()) forget_shapes(node);
    infer_types(&graph_);
    return tensors;
  }

  Model& model_;
  Graph& graph_;
  CacheForm form_;
  TextInputs inputs_;
  std::vector<Node*> masks_;
  TokenFlow flow_;
  std::vector<Node*> nodes_;  // before any is added
  std::unordered_set<const Value*> read_before_;
  std::vector<KeptTensor> kept_;
  int64_t keys_ = 0, values_ = 0;  // layers that have them
  AllPositions::Lengths lengths_;
  Value* in_use_ = nullptr;  // bool[places and new tokens]
  std::optional<AllPositions> positions_;
};

// Operators for attention and rotary positions as the nodes that they stand for.
void write_out_attention(Graph* graph) {
  for (Node* node : graph->nodes()) {
    if (node->is("Attention") || node->is("RotaryEmbedding")) inline_function(node);
  }
  infer_types(graph);
}

// Where an export with a cache of its own puts new keys after earlier ones, of which there are none (drop_cache).
void drop_empty_pieces(Graph* graph) {
  for (Node* node : graph->nodes()) {
    if (!node->is("Concat") || node->num_inputs() != 2 || !node->output()->has_rank()) continue;
    const auto axis = static_cast<size_t>(normalize_axis(node->attr("axis", 0), node->output()->rank()));
    for (int i = 0; i < 2; ++i) {
      const Value *piece = node->input(i), *other = node->input(1 - i);
      if (!piece->has_rank() || !(*piece->type().dims)[axis].same(Dim(int64_t{0})) || !other->producer()) continue;
      graph->replace(node->output(), node->input(1 - i));
      break;
    }
  }
}

}  // namespace

std::vector<CachedTensor> add_cache(Model* model, CacheForm form) {
  infer_types(model->graph.get());
  write_out_attention(model->graph.get());
  drop_empty_pieces(model->graph.get());
  simplify_indexing(*model);
  simplify(*model);
  return CacheWriter(model, form).run();
}

}  // namespace onnx_train
