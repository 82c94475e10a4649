#include "onnx_passes/operators/random.h"

namespace onnx_train {

bool is_random(const Node& node) {
  return node.domain().empty() &&
         (node.op().starts_with("Random") || node.op() == "Bernoulli" || node.op() == "Multinomial");
}

}  // namespace onnx_train
