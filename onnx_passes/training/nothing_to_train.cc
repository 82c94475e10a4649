#include "onnx_passes/training/nothing_to_train.h"

#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

std::string nothing_to_train(const std::string& name, const Graph& graph, const BuildOptions& options) {
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (computes_in_integers(*node))
      return concat(name, " has no weights to train, for ", node->label(),
                    " computes in integers, which have no gradient; ", replacement_advice(*node));
  }
  if (!options.train.empty() || !options.freeze.empty())
    return concat("--train and --freeze leave nothing of ", name, " to train");
  return concat(
      name,
      " has no weights to train; name constants that are weights (--train NAME), or take the gradients of its "
      "inputs: onnx-train grad");
}

}  // namespace onnx_train
