// Exporters write a bias of zeros for a convolution without one. Adding it wastes time, and cuDNN has no convolution of
// 16-bit images with a float32 bias.
#include "kernels/lowering/lowering.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/builder.h"

namespace onnx_train {
namespace {

bool adds_bias(const Node& node) { return node.is("Conv") || node.is("ConvTranspose") || node.is("Gemm"); }

bool is_zero_bias(const Value* value) {
  const Tensor constant = constant_of(value);
  if (constant.empty()) return false;
  for (int64_t i = 0; i < constant.size(); ++i) {
    if (constant.at(i) != 0) return false;
  }
  return true;
}

}  // namespace

bool drop_zero_biases(Model& model) {
  bool changed = false;
  for (Node *node = model.graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    if (!adds_bias(*node) || node->num_inputs() < 3 || !node->input(2) || !is_zero_bias(node->input(2))) continue;
    Builder b(model.graph.get(), node);
    b.set_name(node->output()->name());
    const Var without = b.like(*node, {b.var(node->input(0)), b.var(node->input(1))})[0];
    model.graph->replace(node->output(), without.value());
    model.graph->remove(node);
    changed = true;
  }
  return changed;
}

}  // namespace onnx_train
