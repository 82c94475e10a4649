// Weights that are stored as integers are floats only while a node reads them: forward and backward pass compute them
// anew, each in front of its product, and no copy waits between the two. Integers that are stored in 4 bits are 8 bits
// only then, too.
#include <map>

#include "kernels/lowering/canonical/quantization.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/initializer.h"

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

// Integers of 4 bits that are stored as two in a byte, in rows of whole bytes: their bytes are constants of the plan.
class PackedIntegers {
 public:
  explicit PackedIntegers(Graph* graph) : graph_(*graph) {}

  // What UnpackInt4 makes of `bytes_of`, or of rows of it.
  bool contains(const Value& integers) const {
    if (!integers.is_initializer() || graph_.is_input(&integers) || integers.rank() == 0) return false;
    const Tensor* beside = contents_beside(integers.shared_initializer());
    return beside && beside->packed() && beside->dtype() == DType::kInt8 && beside->shape().back() % 2 == 0;
  }

  Value* bytes_of(const Value& integers) {
    Value*& bytes = bytes_[&integers];
    if (bytes) return bytes;
    const Tensor& packed = contents_beside(integers.shared_initializer())->stored();
    Shape shape = integers.type().shape();
    shape.back() /= 2;
    return bytes = graph_.add_initializer(graph_.unique_name(integers.name() + "/packed"), packed.reshaped(shape));
  }

 private:
  Graph& graph_;
  std::map<const Value*, Value*> bytes_;
};

// Rows of a table of such integers are taken apart after they are looked up.
bool unpack_after_lookups(Graph* graph, PackedIntegers* packed) {
  bool changed = false;
  for (Node* node : graph->nodes()) {
    const Value* table = node->is("Gather") ? node->input(0) : nullptr;
    if (!table || !packed->contains(*table) || table->rank() != 2 || node->attr("axis", 0) != 0) continue;
    Builder b(graph, node);
    b.set_name(node->output()->name() + "/packed");
    const Var rows = b.like(*node, {b.var(packed->bytes_of(*table)), b.var(node->input(1))})[0];
    b.set_name(node->output()->name() + "/unpacked");
    graph->replace(node->output(), call(b, "UnpackInt4", {rows}).value());
    graph->remove(node);
    changed = true;
  }
  return changed;
}

}  // namespace

bool dequantize_at_readers(Model& model) {
  PackedIntegers packed(model.graph.get());
  bool changed = unpack_after_lookups(model.graph.get(), &packed);
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
      if (packed.contains(*node->input(0)))
        inputs[0] = call(b, "UnpackInt4", {b.var(packed.bytes_of(*node->input(0)))});
      Var weight = b.like(*node, inputs)[0];
      if (transpose) weight = b.like(*transpose, {weight})[0];
      use.node->set_input(use.index, weight.value());
      changed = true;
    }
  }
  return changed;
}

}  // namespace onnx_train
