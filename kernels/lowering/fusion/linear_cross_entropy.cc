// Replaces the product that makes the logits of a large vocabulary, their cross entropy and the gradients of both by
// one call of LinearCrossEntropy (kernels/functions/losses.cc), which holds the logits of some positions at a time:
//
//   logits = h w (+ bias), scaled by a number, bounded by c tanh(x / c), rounded        loss, correct, dh, dw, dbias =
//   loss, l = SoftmaxCrossEntropy (logits, labels)                                        LinearCrossEntropy (h, w, ..)
//   dlogits = SoftmaxCrossEntropyGrad (dloss, logits, labels, l)                   is
//   dh = dlogits wᵀ, dw = hᵀ dlogits, dbias = Σ dlogits
//
// if nothing else reads the logits and their gradients, but an accuracy: which labels are the largest logits. Frozen
// weights have no gradient, and an evaluation has none at all. Where dloss depends on the loss the nodes stay.
#include "kernels/lowering/fusion/linear_loss_pattern.h"

#include "kernels/functions/functions.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"

namespace onnx_train {
namespace {

constexpr int kCorrect = 1, kDh = 2, kDw = 3, kDbias = 4;

Attrs attributes_of(const LinearLoss& found) {
  const Node& loss = *found.loss;
  const Value* dh = found.dh ? found.dh->output() : nullptr;
  const DType narrow = dh && is_16_bit_float(dh->dtype()) ? dh->dtype() : DType::kUndefined;
  return {{"axis", -1},
          {"ignore_index", loss.attr("ignore_index", -100)},
          {"label_smoothing", loss.attr_tensor("label_smoothing")},
          {"reduction", loss.attr("reduction", "mean")},
          {"transposed", found.class_axis == 0 ? 1 : 0},
          {"scale", Tensor::scalar(found.scale)},
          {"cap", Tensor::scalar(found.cap)},
          {"rounding", static_cast<int>(found.rounding)},
          {"narrow", static_cast<int>(narrow)}};
}

// Adds the call without the outputs that nothing would read; null where the device has no kernel for it.
Node* add_call(const LinearLoss& found, const Device& device) {
  Graph& graph = found.loss->graph();
  Builder b(&graph, found.place);
  b.set_name(found.loss->output()->name());
  Value* const labels = found.loss->input(1);
  Shape rows = labels->type().shape();
  rows.push_back(found.h->type().shape().back());
  const auto optional = [&](Value* value) { return value ? b.var(value) : Var(); };
  std::vector<Var> inputs = {with_shape(b.var(found.h), rows), b.var(found.w), b.var(labels)};
  const Var bias = found.bias ? with_shape(b.var(found.bias), {found.classes}) : Var();
  for (const Var more : {bias, optional(found.loss->input(2)), optional(found.dloss())}) inputs.push_back(more);
  while (!inputs.back()) inputs.pop_back();
  const int count = !found.gradient ? 2 : found.bias ? 5 : 4;
  Node* const whole = call_lowered(b, "LinearCrossEntropy", count, inputs, attributes_of(found))[0].value()->producer();
  std::vector<std::string> names;
  for (const Node* node : {found.loss, found.hits.empty() ? nullptr : found.hits[0], found.dh, found.dw, found.dbias}) {
    names.push_back(node ? graph.unique_name(node->output()->name()) : "");
  }
  while (names.back().empty()) names.pop_back();
  Node* const call = graph.add_node(*whole, whole->inputs(), names, found.place);
  for (int i = 0; i < call->num_outputs(); ++i) {
    if (call->output(i)) call->output(i)->set_type(whole->output(i)->type());
  }
  graph.remove(whole);
  return runs_on(device, call) ? call : nullptr;
}

void rewrite(const LinearLoss& found, const Device& device) {
  Graph& graph = found.loss->graph();
  Node* const call = add_call(found, device);
  if (!call) return;
  for (Node* node : found.hoisted) graph.move(node, call);
  const auto replace = [&](const Node* node, int output) {
    if (!node) return;
    Builder b(&graph, call->next());
    b.set_name(node->output()->name());
    graph.replace(node->output(), with_shape(b.var(call->output(output)), node->output()->type().shape()).value());
  };
  replace(found.loss, 0);
  for (const Node* hit : found.hits) replace(hit, kCorrect);
  replace(found.dh, kDh);
  replace(found.dw, kDw);
  replace(found.dbias, kDbias);
}

}  // namespace

bool linear_cross_entropy(Model& model, const Device& device) {
  bool changed = false;
  for (Node* node : model.graph->nodes()) {
    const std::optional<LinearLoss> found = find_linear_loss(node);
    if (!found) continue;
    rewrite(*found, device);
    changed = true;
  }
  if (changed) remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
