#include <algorithm>

#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/lowering/canonical/segments.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"

namespace onnx_train {
namespace {

// Returns the contents of constant shapes, axes and similar inputs, on which a kernel's support for a node may depend.
Tensor small_constant(const Value* value) {
  return value && value->has_rank() && value->rank() <= 1 ? constant_of(value) : Tensor();
}

}  // namespace

bool expand_functions(Model& model, const Device& device) {
  bool changed = false;
  Node* node = model.graph->first();
  while (node) {
    Node* previous = node->previous();
    Node* next = node->next();
    std::vector<Tensor> constants;
    for (const Value* v : node->inputs()) constants.push_back(small_constant(v));
    const NodeSpec spec(*node, std::move(constants), num_threads());
    const auto are_static = [](const std::vector<Value*>& values) {
      return std::all_of(values.begin(), values.end(), [](const Value* v) { return !v || v->type().is_static(); });
    };
    // Inference may leave outputs open (present_key of an Attention without past_key) that the body determines.
    const bool runs = are_static(node->outputs()) && find_kernel(device, spec);
    const bool waits = !runs && !computed_sizes(*node).empty();  // for cut_segments: a Range is no Loop
    if (are_static(node->inputs()) && !runs && !waits && inline_function(node)) {
      changed = true;
      node = previous ? previous->next() : model.graph->first();  // the body may contain calls, too
    } else {
      node = next;
    }
  }
  return changed;
}

}  // namespace onnx_train
