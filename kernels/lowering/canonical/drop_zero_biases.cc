// Exporters write a bias of zeros for a convolution without one. Adding it wastes time, and cuDNN has no convolution of
// 16-bit images with a float32 bias.
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

bool adds_bias(const Node& node) { return node.is("Conv") || node.is("ConvTranspose") || node.is("Gemm"); }

}  // namespace

bool drop_zero_biases(Model& model) {
  bool changed = false;
  for (Node *node = model.graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    if (!adds_bias(*node) || node->num_inputs() < 3 || !constant_of(node->input(2)).holds_only(0)) continue;
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
