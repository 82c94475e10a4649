// Linear layers of an imported model: products and convolutions with a weight, and the bias that is added to them.
// Heads and adapters are changes of such layers. Values of a graph that one caller owns; they stay valid while the
// layer's nodes do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct LinearLayer {
  Node* node = nullptr;       // MatMul, Gemm or Conv
  Value* weight = nullptr;    // the initializer; a Transpose may be between it and the node. Or the floats of integers
  Value* bias = nullptr;      // the initializer; null if there is none
  Node* adds_bias = nullptr;  // the Add after a MatMul; null if the node itself adds the bias
  bool out_first = false;     // the weight is [out, in, sizes..]; otherwise [in, out]
  int64_t groups = 1;         // of a convolution
  double factor = 1;          // Gemm's alpha, which multiplies the product
  std::string module;         // "layers.0.q": the name of the layer in the PyTorch module, as far as the file tells it
  std::string weight_name;    // of the weight in that module: "lm_head.weight", of an embedding that is the head, too

  bool is_convolution() const { return weight->rank() > 2; }
  int64_t out() const { return weight->type().shape()[out_first ? 0 : 1]; }
  int64_t in() const { return weight->type().shape()[out_first ? 1 : 0]; }  // of one group
  double fan_in() const;                                                    // as torch counts it
  Value* result() const { return (adds_bias ? adds_bias : node)->output(); }
};

class LinearLayers {
 public:
  // Initializers that are recorded as constants (constants.h) are no weights. With `integers`, frozen weights that are
  // stored so count, too: the weight is then what a DequantizeLinear gives. With `rounded`, also what a
  // FakeQuantizeInteger makes of a weight.
  explicit LinearLayers(const Model& model, bool integers = false, bool rounded = false);

  std::optional<LinearLayer> of(Node* node) const;
  // Those of the main graph, in order.
  std::vector<LinearLayer> all() const;

 private:
  const Graph* graph_;
  std::unordered_set<std::string> constants_;
  const bool integers_, rounded_;
};

// The layer whose outputs are the classes of `output`: the last one that alone computes it. Its weight and bias may be
// stored integers or rounded (LinearLayers), and so may its result. Throws Error that names the node which is in the
// way.
LinearLayer find_head(const Model& model, Value* output);

// The numbers of the layer's weight.
Tensor weight_of(const LinearLayer& layer);

// Calls f(index, output, input) for each element of the layer's weight.
template <typename F>
void for_each_element(const LinearLayer& layer, const F& f) {
  const int64_t outs = layer.out(), ins = layer.in();
  const int64_t size = num_elements(layer.weight->type().shape()), places = size / (outs * ins);
  for (int64_t at = 0; at < size; ++at) {
    const int64_t row = at / places / (layer.out_first ? ins : outs),
                  column = at / places % (layer.out_first ? ins : outs);
    f(at, layer.out_first ? row : column, layer.out_first ? column : row);
  }
}

// |w| for each output of the layer, times Gemm's alpha; `w` has the form of its weight.
std::vector<double> norms_of_outputs(const LinearLayer& layer, const Tensor& w);
// The same as the magnitude of DoRA, [out]. Throws Error where one is zero.
Tensor magnitude_of(const LinearLayer& layer, const Tensor& w);

// A tensor uniform in ±bound. The numbers depend only on type, shape, `seed` and `name`.
Tensor draw_uniform(DType dtype, const Shape& shape, double bound, uint64_t seed, const std::string& name);

// Puts an initializer of the same name and another message in the place of `old`, which is left without readers until
// remove_unused_initializers.
Value* replace_initializer(Graph* graph, Value* old, std::shared_ptr<const onnx::TensorProto> message);

// The value whose contents a weight or a bias is: itself, the integers of a DequantizeLinear, what a
// FakeQuantizeInteger rounds. Null if that is no initializer.
Value* stored_source(Value* operand);

// All that read `value` read `changed` instead, which is computed from it by a node that has it as its first input, and
// takes over its name.
void put_after(Value* value, Value* changed);

// Whether one node alone reads the initializer, at once or through a Transpose.
bool is_read_by_one(const Value& weight);
// The layer's node reads `weight`, of the same layout, in the place of one that others read, too: a tied embedding.
void read_own_weight(const LinearLayer& layer, Value* weight);

// Removes nodes, initializers and inputs of the main graph that no output needs; inputs only if something read them
// before. `read_before`: the inputs that had readers.
void remove_unneeded(Model* model, const std::unordered_set<const Value*>& read_before);

}  // namespace onnx_train
