#include "onnx_passes/tokens/separate_documents.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/document_starts.h"
#include "onnx_passes/tokens/token_axes.h"

namespace onnx_train {
namespace {

// An input that says which tokens read which others, [batch, tokens, tokens] or [batch, 1, tokens, tokens].
const Value* mask_of_pairs(const Graph& graph) {
  for (const Value* input : graph.inputs()) {
    const bool is_mask = input->name().find("mask") != std::string::npos && !input->is_initializer();
    if (is_mask && input->has_rank() && (input->rank() == 3 || input->rank() == 4)) return input;
  }
  return nullptr;
}

class DocumentSeparator {
 public:
  explicit DocumentSeparator(Model* model)
      : model_(*model), graph_(*model->graph), inputs_(text_inputs(graph_)), flow_(graph_, inputs_) {}

  void run() {
    const std::vector<Node*> nodes = graph_.nodes();
    starts_ = graph_.add_input(kDocumentStarts, {DType::kInt64, *inputs_.tokens->type().dims});
    for (Node* node : nodes) {
      if (node->is("Softmax") && is_scores(node->input(0))) {
        hide_others(node);
      } else if (node->is("Add") || node->is("Sub")) {
        for (int i = 0; i < 2; ++i) restart_positions(node, i);
      }
    }
    const auto values = std::ranges::count_if(flow_.reads(), [](const TokenFlow::Read& read) { return read.is_value; });
    if (hidden_ == 0)
      fail(
          "[Documents] the model has no attention: no Softmax of products of queries and keys, in which documents of a "
          "row could be kept apart");
    if (hidden_ < values)
      fail("[Documents] the model has ", values, " products of scores and values, and ", hidden_,
           " Softmax of scores: documents of a row would read each other in the others");
    add_adapted_note(&model_, note());
  }

 private:
  std::string note() const {
    const std::string places = restarted_ > 0 ? concat("positions begin anew in each document (", restarted_names_, ")")
                               : !inputs_.by_token.empty() ? "positions are those of the data"
                                                           : "positions are taken for relative, and go on";
    return concat("documents: '", kDocumentStarts, "' keeps those of a row apart in ", hidden_,
                  hidden_ == 1 ? " attention; " : " attentions; ", places);
  }

  bool is_scores(const Value* value) const { return flow_.is_stream(value) && flow_.of(value).keys >= 0; }

  // Whether a query and a key are of one document, bool, with the axes of scores of this rank.
  Value* same_document(const Value* scores) {
    const TokenAxes& axes = flow_.of(scores);
    const int64_t rank = flow_.rank(scores);
    const TokenFlow::Size batch = flow_.size_of(scores, 0);
    const bool has_batch = axes.tokens > 0 && axes.keys > axes.tokens && !axes.merged &&
                           ((batch.of == TokenFlow::Size::kTexts && batch.number == 1) || has_fixed_batch());
    if (!has_batch)
      fail("[Documents] the scores '", scores->name(), "' ", to_string(scores->type()),
           " are not [batch, heads, tokens, tokens], so that documents cannot be told apart in them");
    Value*& same = same_[{rank, axes.tokens, axes.keys}];
    if (same) return same;
    Builder b(&graph_, graph_.first());
    b.set_name("same_document");
    const auto along = [&](int64_t tokens) {
      std::vector<int64_t> others;
      for (int64_t axis = 1; axis < rank; ++axis) {
        if (axis != tokens) others.push_back(axis);
      }
      return unsqueeze(b.var(starts_), others);
    };
    const Var of_query = along(axes.tokens);
    return same = equal(of_query, along(axes.keys)).value();
  }

  bool has_fixed_batch() const { return inputs_.tokens->type().dims->front().known(); }

  void hide_others(Node* softmax) {
    Value* const scores = softmax->input(0);
    Value* const same = same_document(scores);
    Node* const made = scores->producer();
    constexpr double kHidden = std::numeric_limits<float>::lowest();
    Builder b(&graph_, made);
    ++hidden_;
    const bool is_read_once = made && scores->uses().size() == 1 && !graph_.is_output(scores);
    const auto stream = [&](int i) { return flow_.is_stream(made->input(i)); };
    if (is_read_once && made->is("Add") && stream(0) != stream(1)) {  // a mask is added
      const int mask = stream(0) ? 1 : 0;
      made->set_input(mask, where(b.var(same), b.var(made->input(mask)), kHidden).value());
    } else if (is_read_once && made->is("Where") && !stream(0) && stream(1) != stream(2)) {  // a mask selects
      const Var keeps = b.var(made->input(0)), one = b.var(same);
      made->set_input(0, (stream(1) ? logical_and(keeps, one) : logical_or(keeps, logical_not(one))).value());
    } else {
      Builder before(&graph_, softmax);
      softmax->set_input(0, where(before.var(same), before.var(scores), kHidden).value());
    }
  }

  // The operand i of a sum is positions if it has the axis of the tokens, and is not computed of these.
  void restart_positions(Node* node, int i) {
    const Value* sum = node->output();
    Value* const positions = node->input(i);
    if (!flow_.is_stream(sum) || flow_.of(sum).keys >= 0 || flow_.is_stream(positions)) return;
    const TokenAxes& axes = flow_.of(sum);
    const int64_t axis = axes.tokens - (flow_.rank(sum) - flow_.rank(positions));
    if (axes.merged || axis < 0 || !flow_.is_of_tokens(positions, axis)) return;
    bool fits = axes.tokens == 1;
    for (int64_t before = 0; before < axis; ++before)
      fits = fits && flow_.shape_of(positions)[static_cast<size_t>(before)] == 1;
    if (!fits)
      fail(
          "[Documents] the positions '", positions->name(), "' that ", node->label(),
          " adds are computed for each text, so that they cannot begin anew in each document; export the model with an "
          "input position_ids");
    Builder b(&graph_, node);
    b.set_name("positions_in_documents");
    Var table = b.var(positions);
    if (axis > 0) {
      std::vector<int64_t> ones(static_cast<size_t>(axis));
      std::iota(ones.begin(), ones.end(), int64_t{0});
      table = squeeze(table, ones);
    }
    node->set_input(i, gather(table, b.var(places_in_documents()), 0).value());
    restarted_names_ += concat(restarted_++ == 0 ? "'" : ", '", positions->name(), "'");
  }

  // The place of each token in its document, int64[batch, tokens].
  Value* places_in_documents() {
    if (places_) return places_;
    Builder b(&graph_, graph_.first());
    b.set_name("place_in_document");
    const Var starts = b.var(starts_), one = b.scalar(DType::kInt64, 1);
    const Var all = b.op("Range", {b.scalar(DType::kInt64, 0), squeeze(dim(starts, 1), {0}), one});
    return places_ = (all - starts).value();
  }

  Model& model_;
  Graph& graph_;
  const TextInputs inputs_;
  const TokenFlow flow_;
  Value* starts_ = nullptr;
  Value* places_ = nullptr;
  std::map<std::vector<int64_t>, Value*> same_;  // by rank and axes
  int64_t hidden_ = 0, restarted_ = 0;
  std::string restarted_names_;
};

}  // namespace

Pass separate_documents() {
  return {"separate_documents", [](Model& model) {
            if (const Value* mask = mask_of_pairs(*model.graph)) {
              add_adapted_note(&model, concat("documents: the data's '", mask->name(), "' ", to_string(mask->type()),
                                              " keeps those of a row apart"));
              return true;
            }
            try {
              DocumentSeparator(&model).run();
            } catch (const Error& error) {
              // What finds the tokens speaks of the cache that it was made for.
              constexpr std::string_view kCache = "[Cache]";
              const std::string text = error.what();
              if (!text.starts_with(kCache)) throw;
              throw Error("[Documents]" + text.substr(kCache.size()), error.code());
            }
            return true;
          }};
}

}  // namespace onnx_train
