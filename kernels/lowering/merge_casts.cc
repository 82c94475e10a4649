// One kernel for the 16-bit copies of all weights that a step of mixed precision begins with: hundreds of nodes, most
// of them of small tensors, whose launches would take longer than their bytes.
#include "kernels/lowering/lowering.h"
#include "kernels/lowering/outline.h"
#include "kernels/lowering/widened.h"

namespace onnx_train {
namespace {

// Whether the node rounds a value that is there before any node runs.
bool rounds_at_start(const Node& node) {
  const Value* x = node.is("Cast") ? node.input(0) : nullptr;
  return x && !x->producer() && x->dtype() == DType::kFloat && is_narrow_type(node.output()->dtype()) &&
         x->type().is_static();
}

}  // namespace

bool merge_casts(Model& model) {
  std::vector<Node*> casts;
  Node* first = nullptr;  // of the others
  for (Node* node = model.graph->first(); node; node = node->next()) {
    if (rounds_at_start(*node)) {
      casts.push_back(node);
    } else if (!first) {
      first = node;
    }
  }
  if (casts.size() < 2) return false;
  for (Node* node : casts) {
    if (first) model.graph->move(node, first);
  }
  outline(casts, "Casts");
  return true;
}

}  // namespace onnx_train
