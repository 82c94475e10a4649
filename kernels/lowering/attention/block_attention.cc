// Replaces attention by two calls, BlockAttention and BlockAttentionGrad, that store no scores: memory grows linearly,
// not quadratically, with the number of tokens.
#include "kernels/lowering/attention/block_attention.h"

#include <algorithm>
#include <limits>

#include "kernels/functions/functions.h"
#include "kernels/lowering/attention/attention_pattern.h"
#include "kernels/lowering/support/positions.h"
#include "kernels/lowering/types/rounding.h"

namespace onnx_train {
namespace {

int64_t keys_of(const Attention& a) {
  const Shape k = a.k.value->type().shape();
  return k[static_cast<size_t>(a.k.permutation[k.size() - 2])];
}

Attrs common_attributes(const Attention& a) {
  return {{"perm_q", a.q.permutation},
          {"perm_k", a.k.permutation},
          {"perm_v", a.v.permutation},
          {"scale", a.scale},
          {"fill", a.fill},
          {"keeps_true", a.keeps_true},
          {"guarded", a.nan_safe},
          {"hidden", -std::numeric_limits<float>::infinity()}};
}

std::vector<Var> add_forward(const Attention& a) {
  Builder b(&a.pv_product->graph(), a.pv_product);
  b.set_name(a.y.value->name());
  Attrs attrs = common_attributes(a);
  attrs.push_back({"perm_y", a.y.permutation});
  std::vector<Var> inputs = {b.var(a.q.value), b.var(a.k.value), b.var(a.v.value)};
  if (a.mask) inputs.push_back(b.var(a.mask));
  return call_lowered(b, "BlockAttention", 3, inputs, attrs);
}

// Returns y rounded if all readers round it, so that no float32 copy is kept for the backward pass.
Var stored_result(Builder& b, const Attention& a, Var y) {
  const std::vector<Node*> roundings = narrowing_readers(a.y.value);
  if (roundings.empty()) return b.var(y.value());
  return cast(b.var(roundings[0]->output()), DType::kFloat);
}

void add_backward(const Attention& a, const std::vector<Var>& forward, const Positions& positions) {
  const bool dp_first = positions.of(a.dp_product) < positions.of(a.dv_product);
  Builder b(&a.pv_product->graph(), dp_first ? a.dp_product : a.dv_product);
  b.set_name(a.dq.value->name());
  Attrs attrs = common_attributes(a);
  attrs.push_back({"perm_dy", a.dy.permutation});
  attrs.push_back({"perm_y", inverse_permutation(a.y.permutation)});
  attrs.push_back({"perm_dq", a.dq.permutation});
  attrs.push_back({"perm_dk", a.dk.permutation});
  attrs.push_back({"perm_dv", a.dv.permutation});
  std::vector<Var> inputs = {b.var(a.dy.value), b.var(a.q.value), b.var(a.k.value), b.var(a.v.value)};
  inputs.push_back(stored_result(b, a, forward[0]));
  for (const Var& statistic : {forward[1], forward[2]}) inputs.push_back(b.var(statistic.value()));
  if (a.mask) inputs.push_back(b.var(a.mask));
  const std::vector<Var> gradients = call_lowered(b, "BlockAttentionGrad", 3, inputs, attrs);
  Graph& graph = b.graph();
  graph.replace(a.dq.value, gradients[0].value());
  graph.replace(a.dk.value, gradients[1].value());
  graph.replace(a.dv.value, gradients[2].value());
}

void rewrite(Attention a, const Positions& positions) {
  Graph& graph = a.pv_product->graph();
  const std::vector<Var> forward = add_forward(a);
  if (a.trains) add_backward(a, forward, positions);
  graph.replace(a.y.value, forward[0].value());
  std::sort(a.nodes.begin(), a.nodes.end(),
            [&](const Node* x, const Node* y) { return positions.of(x) > positions.of(y); });
  for (Node* node : a.nodes) graph.remove(node);
}

}  // namespace

Attrs attention_attributes(const Node& call) {
  Attrs attrs;
  for (const char* name : {"scale", "fill", "hidden"}) attrs.emplace_back(name, call.attr(name, 0.0f));
  for (const char* name : {"keeps_true", "guarded", "packed"}) {
    if (call.has_attr(name)) attrs.emplace_back(name, call.attr(name, 0));
  }
  for (const char* name : {"perm_dy", "perm_q", "perm_k", "perm_v", "perm_y", "perm_dq", "perm_dk", "perm_dv"}) {
    if (call.has_attr(name)) attrs.emplace_back(name, call.attr(name, Shape{}));
  }
  return attrs;
}

bool block_attention(Model& model, int64_t least_keys, bool through_roundings) {
  std::vector<Node*> softmaxes;
  const Positions positions(*model.graph);
  for (Node* node = model.graph->first(); node; node = node->next()) {
    if (node->is("Softmax")) softmaxes.push_back(node);
  }
  bool changed = false;
  for (Node* softmax : softmaxes) {
    std::optional<Attention> attention = find_attention(softmax, through_roundings);
    if (!attention || keys_of(*attention) < least_keys) continue;
    rewrite(std::move(*attention), positions);
    changed = true;
  }
  return changed;
}

}  // namespace onnx_train
