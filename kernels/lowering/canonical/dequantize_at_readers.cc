// Weights that are stored as integers are floats only while a node reads them: forward and backward pass compute them
// anew, each in front of its product, and no copy waits between the two.
#include "kernels/lowering/canonical/quantization.h"
#include "onnx_passes/inference/builder.h"

namespace onnx_train {
namespace {

// A node that reads the weight, at once or through a Transpose of its own.
struct Reader {
  Use use;
  const Node* transpose;
};

std::vector<Reader> readers_of(const Value& weight) {
  std::vector<Reader> readers;
  for (const Use& use : weight.uses()) {
    if (!use.node->is("Transpose")) {
      readers.push_back({use, nullptr});
      continue;
    }
    for (const Use& through : use.node->output()->uses()) readers.push_back({through, use.node});
  }
  return readers;
}

bool is_stored(const Value& integers) {
  const Node* node = integers.producer();
  return integers.is_initializer() || (node && node->op() == "UnpackInt4" && node->input(0)->is_initializer());
}

}  // namespace

bool dequantize_at_readers(Model& model) {
  bool changed = false;
  for (const Node* node : model.graph->nodes()) {  // not the copies
    if (!node->is("DequantizeLinear") || !is_stored(*node->input(0)) || model.graph->is_output(node->output()))
      continue;
    // Each has its own directly before it, the first one, too: the file may have all of them at its beginning. The node
    // itself is dead then.
    for (const auto& [use, transpose] : readers_of(*node->output())) {
      Builder b(model.graph.get(), use.node);
      b.set_name(node->output()->name() + "/again");
      std::vector<Var> inputs;
      for (Value* input : node->inputs()) inputs.push_back(input ? b.var(input) : Var());
      if (const Node* unpack = node->input(0)->producer()) inputs[0] = b.like(*unpack, {b.var(unpack->input(0))})[0];
      Var weight = b.like(*node, inputs)[0];
      if (transpose) weight = b.like(*transpose, {weight})[0];
      use.node->set_input(use.index, weight.value());
      changed = true;
    }
  }
  return changed;
}

}  // namespace onnx_train
