#include "onnx_passes/tokens/token_rules.h"

#include <algorithm>
#include <numeric>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

int64_t product_of(const Shape& shape, int64_t end) {
  return std::accumulate(shape.begin(), shape.begin() + end, int64_t{1}, std::multiplies<>());
}

bool is_one_of(const Node& node, std::initializer_list<const char*> ops) {
  return std::ranges::any_of(ops, [&](const char* op) { return node.op() == op; });
}

// Where an axis is among the last ones of a result of higher rank.
TokenAxes moved_axes(TokenAxes axes, int64_t by) {
  axes.tokens += by;
  if (axes.keys >= 0) axes.keys += by;
  return axes;
}

}  // namespace

void TokenRules::refuse(const Node& node, const std::string& why) const { fail("[Cache] ", node.label(), " ", why); }

bool TokenRules::follow(Node* node) {
  const auto is_stream = [&](const Value* v) { return flow_.is_stream(v); };
  const bool reads = std::ranges::any_of(node->inputs(), is_stream);
  for (const auto& subgraph : node->subgraphs()) {
    for (const Node* inner = subgraph.graph->first(); inner; inner = inner->next()) {
      if (std::ranges::any_of(inner->inputs(), is_stream)) refuse(*node, "reads tokens in a subgraph");
    }
  }
  if (!reads || reads_shape_only(*node)) return false;
  const TokenAxes axes = rule(node);
  for (const Value* output : node->outputs()) {
    if (!output) continue;
    const auto dim = [&](int64_t axis) { return axis < flow_.rank(output) && flow_.is_of_tokens(output, axis); };
    if ((!axes.merged && !dim(axes.tokens)) || (axes.keys >= 0 && !dim(axes.keys)))
      refuse(*node, concat("does not keep the axis of tokens in '", output->name(), "' ", to_string(output->type())));
    flow_.axes_[output] = axes;
  }
  return true;
}

const TokenAxes& TokenRules::first_stream(const Node& node) const {
  return flow_.of(*std::ranges::find_if(node.inputs(), [&](const Value* v) { return flow_.is_stream(v); }));
}

TokenAxes TokenRules::rule(Node* node) {
  const bool standard = node->domain().empty();
  if (is_elementwise(*node) || is_one_of(*node, {"Identity", "Dropout"})) return elementwise(*node);
  if (standard && is_one_of(*node, {"MatMul", "Gemm"})) return product(node);
  if (is_view(*node)) return view(*node);
  if (is_reduction(*node)) return reduction(*node);
  if (standard && is_one_of(*node, {"ArgMax", "ArgMin"})) return reduction(*node);
  if (is_one_of(*node, {"LayerNormalization", "RMSNormalization"})) {
    const TokenAxes axes = flow_.of(node->input(0));
    const int64_t from = normalize_axis(node->attr("axis", -1), flow_.rank(node->input(0)));
    if (axes.kind != TokenAxes::kStream || axes.keys >= 0 || from <= axes.tokens)
      refuse(*node, "normalizes over tokens");
    return axes;
  }
  if (!standard) refuse(*node, "is not known to compute each token alone");
  if (is_one_of(*node, {"Softmax", "LogSoftmax", "Hardmax", "TopK"})) {
    return along(*node, node->attr("axis", -1), flow_.rank(node->input(0)));
  }
  if (is_one_of(*node, {"CumSum", "CumProd"}) && !constant_of(node->input(1)).empty())
    return along(*node, static_cast<int64_t>(constant_of(node->input(1)).at(0)), flow_.rank(node->input(0)));
  if (node->is("Gather")) return gather(*node);
  if (is_one_of(*node, {"Concat", "Split", "GatherElements"}) || node->is("Slice") || node->is("Pad"))
    return pieces(*node);
  if (is_one_of(*node, {"Expand", "Tile"})) return aligned_last(*node);
  if (node->is("Transpose")) {
    TokenAxes axes = flow_.of(node->input(0));
    std::vector<int64_t> perm = node->attr("perm", std::vector<int64_t>{});
    for (int64_t i = flow_.rank(node->input(0)); perm.empty() && i > 0;) perm.push_back(--i);
    const auto to = [&](int64_t axis) { return axis < 0 ? axis : std::ranges::find(perm, axis) - perm.begin(); };
    if (axes.merged) refuse(*node, "moves rows that are tokens of several texts");
    axes.tokens = to(axes.tokens), axes.keys = to(axes.keys);
    return axes;
  }
  refuse(*node, "is not known to compute each token alone");
}

// Streams agree where both have the axis; a mask of keys alone is broadcast over tokens.
TokenAxes TokenRules::elementwise(const Node& node) const {
  const int64_t to = flow_.rank(node.output());
  TokenAxes result{.kind = TokenAxes::kStream};
  for (const Value* input : node.inputs()) {
    if (!flow_.is_stream(input)) continue;
    const TokenAxes axes = moved_axes(flow_.of(input), to - flow_.rank(input));
    if (result.tokens >= 0 && (axes.tokens != result.tokens || axes.merged != result.merged ||
                               (axes.keys >= 0 && result.keys >= 0 && axes.keys != result.keys)))
      refuse(node, "combines tokens with other tokens");
    const int64_t keys = std::max(axes.keys, result.keys);
    result = axes;
    result.keys = keys;
  }
  for (const Value* input : node.inputs()) {
    if (!input || !flow_.is_positional(input)) continue;
    for (int64_t i = 0; i < flow_.rank(input); ++i) {
      const int64_t at = i + to - flow_.rank(input);
      const bool fits = !result.merged && (at == result.tokens || at == result.keys);
      if (flow_.size_of(input, i).of == TokenFlow::Size::kTokens && !fits)
        refuse(node, "combines tokens with those of another axis");
    }
  }
  return result;
}

TokenAxes TokenRules::product(Node* node) {
  const Value *a = node->input(0), *b = node->input(1);
  const bool is_gemm = node->is("Gemm");
  if (is_gemm && (flow_.is_stream(b) || flow_.is_stream(node->input(2)) || node->attr("transA", 0) != 0))
    refuse(*node, "mixes tokens");
  for (const Value* input : node->inputs()) {
    for (int64_t i = 0; input && flow_.is_positional(input) && i < flow_.rank(input); ++i) {
      if (flow_.size_of(input, i).of == TokenFlow::Size::kTokens) refuse(*node, "mixes tokens by their positions");
    }
  }
  if (flow_.rank(a) < 2 || flow_.rank(b) < 2) refuse(*node, "is a product of vectors");
  const int64_t to = flow_.rank(node->output());
  const TokenAxes x = moved_axes(flow_.of(a), to - flow_.rank(a)), y = moved_axes(flow_.of(b), to - flow_.rank(b));
  if (flow_.is_stream(a) && flow_.is_stream(b)) return attended(node, x, y);
  const TokenAxes& stream = flow_.is_stream(a) ? x : y;
  // The axis that is summed over.
  const int64_t inner = flow_.is_stream(a) ? to - 1 : to - 2;
  if (stream.tokens == inner || stream.keys >= 0) refuse(*node, "mixes tokens by weights");
  return stream;
}

TokenAxes TokenRules::attended(Node* node, const TokenAxes& a, const TokenAxes& b) {
  const int64_t to = flow_.rank(node->output()), rows = to - 2, last = to - 1;
  if (a.merged || b.merged || b.keys >= 0) refuse(*node, "mixes tokens of several texts");
  TokenAxes result = a;
  if (a.keys < 0 && a.tokens == rows && b.tokens == last) {
    result.keys = last;
    flow_.reads_.push_back({node, 1, false});
    return result;
  }
  if (a.keys == last && a.tokens == rows && b.tokens == rows) {
    result.keys = -1;
    flow_.reads_.push_back({node, 1, true});
    return result;
  }
  const bool is_batch = a.tokens == b.tokens && a.tokens < rows && a.keys < 0;
  if (!is_batch) refuse(*node, "mixes tokens, and is not attention of the form softmax(q kᵀ) v");
  return result;
}

// Elements keep their order: the axis is where as many elements come before it.
TokenAxes TokenRules::view(const Node& node) const {
  const Value* input = node.input(0);
  if (!flow_.is_stream(input)) refuse(node, "has a shape that depends on tokens");
  TokenAxes axes = flow_.of(input);
  const Shape from = flow_.shape_of(input), to = flow_.shape_of(node.output());
  const int64_t before = axes.merged ? axes.before : product_of(from, axes.tokens);
  const auto place = [&](int64_t elements) -> int64_t {
    for (int64_t i = 0; i < static_cast<int64_t>(to.size()); ++i) {
      if (product_of(to, i) == elements && flow_.is_of_tokens(node.output(), i)) return i;
    }
    return -1;
  };
  if (axes.keys >= 0) axes.keys = place(product_of(from, axes.keys));
  if (flow_.of(input).keys >= 0 && axes.keys < 0) refuse(node, "merges the axis of keys with another one");
  axes.tokens = place(before);
  axes.merged = axes.tokens < 0;
  if (!axes.merged) return axes;
  if (axes.keys >= 0) refuse(node, "merges the axis of tokens with another one");
  axes.before = before;
  for (axes.tokens = 0; product_of(to, axes.tokens + 1) <= before;) ++axes.tokens;
  return axes;
}

TokenAxes TokenRules::reduction(const Node& node) const {
  TokenAxes axes = flow_.of(node.input(0));
  const int64_t from = flow_.rank(node.input(0));
  std::vector<int64_t> over;
  if (node.op().starts_with("Arg")) {
    over = {node.attr("axis", 0)};
  } else {
    const Tensor given = constant_of(node.input(1));
    if (given.empty()) refuse(node, "reduces over all axes, or over axes that are not known");
    over = given.to_ints();
  }
  TokenAxes result = axes;
  for (int64_t axis : over) {
    axis = normalize_axis(axis, from);
    if (axis == axes.tokens || axis == axes.keys) refuse(node, "reduces over tokens");
    if (node.attr("keepdims", 1) != 0) continue;
    if (axis < axes.tokens) --result.tokens;
    if (axis < axes.keys) --result.keys;
  }
  if (axes.merged && result.tokens != axes.tokens) refuse(node, "reduces before rows that are tokens of several texts");
  return result;
}

TokenAxes TokenRules::along(const Node& node, int64_t axis, int64_t of_rank) const {
  const TokenAxes& axes = flow_.of(node.input(0));
  axis = normalize_axis(axis, of_rank);
  const bool over_keys = axis == axes.keys && !node.is("Softmax");
  if (axes.kind != TokenAxes::kStream || axis == axes.tokens || over_keys) refuse(node, "mixes tokens");
  return axes;
}

// Concat, Split, Slice, Pad, GatherElements: along other axes, or along this one without effect.
TokenAxes TokenRules::pieces(const Node& node) const {
  const TokenAxes axes = first_stream(node);
  const bool is_concat = node.is("Concat");
  if (!is_concat && !flow_.is_stream(node.input(0))) refuse(node, "has places that depend on tokens");
  for (const Value* input : node.inputs()) {
    if (!flow_.is_stream(input) || input == node.input(0)) continue;
    const TokenAxes& other = flow_.of(input);
    if (other.tokens != axes.tokens || other.keys != axes.keys || other.merged != axes.merged)
      refuse(node, "combines tokens with other tokens");
  }
  if (is_concat || node.is("Split") || node.is("GatherElements")) {
    const int64_t axis = normalize_axis(node.attr("axis", 0), flow_.rank(node.output()));
    if (axis == axes.tokens || axis == axes.keys) refuse(node, "puts tokens at other places");
  } else if (node.is("Slice") && node.input(4) && !constant_of(node.input(4)).empty()) {
    for (const int64_t step : constant_of(node.input(4)).to_ints()) {
      if (step < 0) refuse(node, "turns an axis around");
    }
  }
  return axes;
}

TokenAxes TokenRules::gather(const Node& node) const {
  const Value *data = node.input(0), *at = node.input(1);
  const int64_t axis = normalize_axis(node.attr("axis", 0), flow_.rank(data));
  if (!flow_.is_stream(data)) {  // a table
    TokenAxes axes = flow_.of(at);
    if (axes.keys >= 0 || axes.merged) return refuse(node, "looks up scores"), axes;
    axes.tokens += axis;
    return axes;
  }
  if (flow_.is_stream(at)) refuse(node, "looks up tokens by tokens");
  TokenAxes axes = flow_.of(data);
  if (axis == axes.tokens || axis == axes.keys) refuse(node, "takes single tokens");
  if (flow_.is_positional(at)) refuse(node, "looks up by positions");
  const int64_t more = flow_.rank(at) - 1;
  if (axes.merged && axis < axes.tokens) refuse(node, "takes some rows of several texts");
  if (axis < axes.tokens) axes.tokens += more;
  if (axis < axes.keys) axes.keys += more;
  return axes;
}

// Expand, Tile: axes that are added come first.
TokenAxes TokenRules::aligned_last(const Node& node) const {
  if (!flow_.is_stream(node.input(0))) refuse(node, "has a shape that depends on tokens");
  if (flow_.of(node.input(0)).merged) refuse(node, "repeats rows that are tokens of several texts");
  return moved_axes(flow_.of(node.input(0)), flow_.rank(node.output()) - flow_.rank(node.input(0)));
}

}  // namespace onnx_train
