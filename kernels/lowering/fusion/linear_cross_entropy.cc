// Replaces the product that makes the logits of a large vocabulary, their cross entropy and the gradients of both by
// one call of LinearCrossEntropy (kernels/functions/losses.cc), which holds the logits of some positions at a time:
//
//   logits = h w (+ bias), scaled by a number, bounded by c tanh(x / c), rounded
//   loss, l = SoftmaxCrossEntropy (logits, labels)                                 loss, .., dh, dw, dbias =
//   dlogits = SoftmaxCrossEntropyGrad (dloss, logits, labels, l)                is   LinearCrossEntropy (h, w, ..)
//   dh = dlogits wᵀ, dw = hᵀ dlogits, dbias = Σ dlogits
//
// if nothing else reads the logits and their gradients, but an accuracy, which asks which labels are the largest
// logits, and LabelScores, of which other metrics are made. Frozen weights have no gradient, and an evaluation has none
// at all. Where dloss depends on the loss the nodes stay; on a GPU also where the positions are few (kernels/geometry).
#include "kernels/lowering/fusion/linear_loss_pattern.h"

#include <array>

#include "kernels/device.h"
#include "kernels/functions/functions.h"
#include "kernels/geometry/linear_loss.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"

namespace onnx_train {
namespace {

using enum LinearLossSpec::Output;

// The results that replace the call's outputs, in its order; null for what nothing reads.
std::array<const Value*, kOutputs> results_of(const LinearLoss& found) {
  const auto score = [&](int i) -> const Value* {
    for (const Node* node : found.scores) {
      if (const Value* value = i < node->num_outputs() ? node->output(i) : nullptr) return value;
    }
    return nullptr;
  };
  return {found.loss->output(),
          found.hits.empty() ? nullptr : found.hits[0]->output(),
          score(0),
          score(1),
          found.dh,
          found.dw,
          found.dbias};
}

Attrs attributes_of(const LinearLoss& found, int64_t rows) {
  const Node& loss = *found.loss;
  const DType narrow = found.dh && is_16_bit_float(found.dh->dtype()) ? found.dh->dtype() : DType::kUndefined;
  return {{"axis", -1},
          {"ignore_index", loss.attr("ignore_index", -100)},
          {"label_smoothing", loss.attr_tensor("label_smoothing")},
          {"reduction", loss.attr("reduction", "mean")},
          {"transposed", found.class_axis == 0 ? 1 : 0},
          {"scale", Tensor::scalar(found.scale)},
          {"cap", Tensor::scalar(found.cap)},
          {"rounding", static_cast<int>(found.rounding)},
          {"narrow", static_cast<int>(narrow)},
          {"rows", rows}};
}

// Adds the call without the outputs that nothing would read; null where the device has no kernel for it.
Node* add_call(const LinearLoss& found, const Device& device, int64_t chunk_rows) {
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
  const int count = !found.gradient ? kDh : found.bias ? kOutputs : kDbias;
  const Attrs attributes = attributes_of(found, chunk_rows);
  Node* const whole = call_lowered(b, "LinearCrossEntropy", count, inputs, attributes)[0].value()->producer();
  std::vector<std::string> names;
  for (const Value* result : results_of(found)) names.push_back(result ? graph.unique_name(result->name()) : "");
  while (names.back().empty()) names.pop_back();
  Node* const call = graph.add_node(*whole, whole->inputs(), names, found.place);
  for (int i = 0; i < call->num_outputs(); ++i) {
    if (call->output(i)) call->output(i)->set_type(whole->output(i)->type());
  }
  graph.remove(whole);
  return runs_on(device, call) ? call : nullptr;
}

bool rewrite(const LinearLoss& found, const Device& device) {
  Graph& graph = found.loss->graph();
  const int64_t positions = num_elements(found.loss->input(1)->type().shape());
  const bool is_gpu = !device.uses_host_memory();
  const int64_t rows = is_gpu ? chunk_rows_on_gpu(positions, found.h->type().shape().back()) : 0;
  if (is_gpu && rows == 0) return false;
  Node* const call = add_call(found, device, rows);
  if (!call) return false;
  for (Node* node : found.hoisted) graph.move(node, call);
  const auto replace = [&](Value* value, int output) {
    if (!value) return;
    Builder b(&graph, call->next());
    b.set_name(value->name());
    graph.replace(value, with_shape(b.var(call->output(output)), value->type().shape()).value());
  };
  replace(found.loss->output(), kLoss);
  for (const Node* hit : found.hits) replace(hit->output(), kCorrect);
  for (const Node* node : found.scores) {
    for (int i = 0; i < node->num_outputs(); ++i) replace(node->output(i), kLogP + i);
  }
  replace(found.dh, kDh);
  replace(found.dw, kDw);
  replace(found.dbias, kDbias);
  return true;
}

}  // namespace

bool linear_cross_entropy(Model& model, const Device& device) {
  bool changed = false;
  for (Node* node : model.graph->nodes()) {
    const std::optional<LinearLoss> found = find_linear_loss(node);
    if (found && rewrite(*found, device)) changed = true;
  }
  if (changed) remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
