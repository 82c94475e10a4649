// Products of 8-bit operands. Mixed precision rounds the operands of a product with a weight to 8-bit floats, as
// FakeQuantize, and multiplies them in 16 bits; those numbers times their scales are exact in either form. Here each
// such tensor is stored in 8 bits, once for all its readers, and the products read that:
//
//   MatMul(Cast(FakeQuantize(x, s)), Cast(FakeQuantize(w, t))) -> ScaledMatMul(Quantize(x, s), Quantize(w, t), s, t)
//
// Matrix units read both operands along the axis of the sum. y = x w, dx = dy wᵀ and dw = xᵀ dy sum each of the three
// tensors over one axis or the other, so Quantize also writes the transposed tensor; that of x is what waits for the
// backward pass. In the same pass over x Quantize finds the largest magnitude, for delayed scaling, and sums the
// columns, which is the gradient of a bias. It applies the activation, or multiplies by the slope, that makes x if
// nothing else reads x: products of 8 bits have no such epilogue.
#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>

#include "kernels/functions/functions.h"
#include "kernels/geometry/reductions.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/positions.h"
#include "kernels/lowering/support/readers.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/name_list.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr int64_t kSizes = 16;  // m, n and k of an 8-bit product are multiples of it

// A tensor that is stored in 8 bits.
struct QuantizedTensor {
  Node* rounding;                             // its FakeQuantize
  bool by_rows = false, by_columns = false;   // how products read it: as it is, and transposed
  Value* stored_sums = nullptr;               // sums of its columns that a product computes, or null
  Node* node = nullptr;                       // Quantize
  Value *rows = nullptr, *columns = nullptr;  // its outputs

  bool is_read() const { return (rows && !rows->uses().empty()) || (columns && !columns->uses().empty()); }
};

// An operand of a product, which sums over its last axis, or over its rows and then reads it transposed.
struct QuantizedOperand {
  QuantizedTensor* tensor;
  bool is_transposed;

  Value* value() const { return is_transposed ? tensor->columns : tensor->rows; }
  Value* scale() const { return tensor->rounding->input(1); }
};

// y = a bᵀ
struct QuantizedProduct {
  Node* node;
  QuantizedOperand a, b;
};

// A value that Quantize computes, too, and the value that it replaces.
struct Computed {
  Value *value, *replaced;
};

int64_t columns_of(const Value& value) { return value.type().shape().back(); }

class QuantizeProducts {
 public:
  QuantizeProducts(Graph* graph, const Device& device) : graph_(*graph), device_(device), positions_(*graph) {}

  bool run() {
    for (Node* node = graph_.first(); node; node = node->next()) find_product(node);
    for (QuantizedTensor& tensor : tensors_) quantize(&tensor);
    bool changed = false;
    for (const QuantizedProduct& product : products_) changed = multiply(product) || changed;
    for (const auto& [tensor, computed] : computed_) {
      // A tensor that no product reads has no Quantize.
      if (tensor->is_read()) graph_.replace(computed.replaced, computed.value);
    }
    for (const QuantizedTensor& tensor : tensors_) {
      if (tensor.is_read()) quantized_.push_back(tensor.node);
    }
    return changed;
  }

  // Requires that dead nodes are removed.
  bool absorb_activations() {
    bool changed = false;
    for (Node* node : quantized_) changed = absorb_activation(node) || changed;
    return changed;
  }

 private:
  // ---- Products

  void find_product(Node* node) {
    const std::optional<int64_t> columns = axis_of_columns(*node);
    const bool is_gradient = !columns && is_gradient_of_weight(*node);
    const int summed = is_gradient ? summed_operand(*node).value_or(-1) : -1;
    const bool is_alone = is_gradient || has_only(*node, {EpilogueStep::kBias});
    const auto is_known = [](const Value* value) { return value->type().is_static() && value->rank() >= 2; };
    if (!(columns || is_gradient) || !is_alone || !is_known(node->input(0)) || !is_known(node->output())) return;
    const Shape y = node->output()->type().shape();
    const int64_t k = is_gradient ? node->input(0)->type().shape()[0] : columns_of(*node->input(0));
    if (!fits(k) || !fits(y.back()) || !fits(num_elements(y) / y.back())) return;

    const bool transposed[2] = {is_gradient, is_gradient || *columns == 1};
    Node* roundings[2];
    for (int i : {0, 1}) {
      roundings[i] = rounding_of(node->input(i), transposed[i]);
      if (!roundings[i]) return;
    }
    if (summed >= 0) {
      QuantizedTensor* const tensor = tensor_of(roundings[summed]);
      if (tensor->stored_sums) return;
      tensor->stored_sums = node->output(output_at(*node, "sums"));
    }
    QuantizedOperand operands[2];
    for (int i : {0, 1}) {
      operands[i] = {tensor_of(roundings[i]), transposed[i]};
      (transposed[i] ? operands[i].tensor->by_columns : operands[i].tensor->by_rows) = true;
    }
    const bool is_swapped = is_gradient && node->attr("perm_y", identity(2)) != identity(2);  // yᵀ = bᵀ a
    products_.push_back({node, operands[is_swapped ? 1 : 0], operands[is_swapped ? 0 : 1]});
  }

  static bool fits(int64_t size) { return size > 0 && size % kSizes == 0; }

  // Returns the FakeQuantize whose result is the operand, in 16 bits and perhaps with other leading sizes, or null.
  static Node* rounding_of(Value* operand, bool is_transposed) {
    const Node* narrowing = before_views(operand)->producer();
    if (!narrowing || !is_rounding(*narrowing)) return nullptr;
    Node* const node = before_views(narrowing->input(0))->producer();
    if (!node || !node->is("FakeQuantize", kDomain)) return nullptr;
    const Value& x = *node->output();
    const bool is_matrix = x.type().is_static() && x.rank() >= 2 && operand->type().is_static();
    return is_matrix && columns_of(x) == columns_of(*operand) && (!is_transposed || operand->rank() == 2) ? node
                                                                                                          : nullptr;
  }

  QuantizedTensor* tensor_of(Node* rounding) {
    QuantizedTensor*& tensor = tensor_of_[rounding];
    if (!tensor) tensor = &tensors_.emplace_back(QuantizedTensor{rounding});
    return tensor;
  }

  // ---- Tensors

  // Adds Quantize, if the device has it.
  void quantize(QuantizedTensor* tensor) {
    Node* const rounding = tensor->rounding;
    Value* const narrow = widened_from(rounding->input(0));
    Value* const x = narrow ? narrow : rounding->input(0);
    // Directly after x, the node precedes all readers of what it computes instead of others.
    const bool follows_x = x->producer() && positions_.is_before(rounding->input(1), x->producer());
    Node* const place = follows_x ? x->producer()->next() : rounding;
    std::vector<Value*> magnitudes, sums;
    if (follows_x) find_reductions(*x, &magnitudes, &sums);
    if (tensor->stored_sums) sums = {tensor->stored_sums};
    std::vector<std::string> outputs;
    if (tensor->by_rows) outputs.push_back("rows");
    if (tensor->by_columns) outputs.push_back("columns");
    if (!magnitudes.empty() || !sums.empty()) outputs.push_back("magnitude");
    if (!sums.empty()) outputs.push_back("sums");
    Attrs attrs = {{"to", rounding->attr("to", 0)}, {"writes", join_names(outputs)}};
    if (!sums.empty()) attrs.emplace_back("sums_of", tensor->stored_sums ? "stored" : "x");
    Builder b(&graph_, place);
    b.set_name(rounding->output()->name() + "/8_bits");
    const auto made =
        call_lowered(b, "Quantize", static_cast<int>(outputs.size()), {b.var(x), b.var(rounding->input(1))}, attrs);
    if (!runs_on(device_, made[0].value()->producer())) return;
    tensor->node = made[0].value()->producer();
    for (size_t i = 0; i < outputs.size(); ++i) {
      Value* const output = made[i].value();
      if (outputs[i] == "rows") tensor->rows = output;
      if (outputs[i] == "columns") tensor->columns = output;
      const bool is_magnitude = outputs[i] == "magnitude", is_sums = outputs[i] == "sums";
      for (Value* replaced : is_magnitude ? magnitudes : is_sums ? sums : std::vector<Value*>())
        computed_.push_back({tensor, {output, replaced}});
    }
  }

  // Adds the values ReduceMax(Abs(x)), and the sums of x's columns, to the lists. x may have been widened.
  void find_reductions(const Value& x, std::vector<Value*>* magnitudes, std::vector<Value*>* sums) const {
    for (const Use& use : x.uses()) {
      const Node& node = *use.node;
      if (&node.graph() != &graph_) continue;
      if (is_widening(node)) find_reductions(*node.output(), magnitudes, sums);
      if (use.index == 0 && sums_to_vector(node)) sums->push_back(node.output());
      const Node* const reader = node.is("Abs") ? only_reader(node.output()) : nullptr;
      if (reader && reader->is("ReduceMax") && reader->num_inputs() == 1 && reader->output()->has_rank() &&
          reader->output()->rank() == 0)
        magnitudes->push_back(reader->output());
    }
  }

  // Whether the node makes a vector of the sums over all axes but the last.
  static bool sums_to_vector(const Node& node) {
    if (!sums_columns(node) || node.input(0)->dtype() != DType::kFloat) return false;
    const Value& sums = *node.output();
    return sums.type().is_static() && sums.type().shape() == Shape{columns_of(*node.input(0))};
  }

  // ---- The product of the tensors

  bool multiply(const QuantizedProduct& product) {
    Node* const node = product.node;
    Value *const left = product.a.value(), *const right = product.b.value();
    if (!left || !right) return false;
    Builder b(&graph_, node);
    b.set_name(node->output()->name());
    Shape shape = node->output()->type().shape();
    shape.back() = columns_of(*left);
    std::vector<Var> inputs = {with_shape(b.var(left), shape), b.var(right), b.var(product.a.scale()),
                               b.var(product.b.scale())};
    Attrs attrs = {{"to", static_cast<int>(node->output()->dtype())}};
    if (Value* const addend = addend_of(*node)) {
      const bool is_matrix = addend->type().is_static() && addend->type().shape() == node->output()->type().shape();
      const EpilogueStep step = is_matrix ? EpilogueStep::kResidual : EpilogueStep::kBias;
      attrs.emplace_back(kEpilogue, to_string(Epilogue{step}));
      inputs.resize(static_cast<size_t>(place_of_input(kDomain, "ScaledMatMul", row_of(step).reads)));
      inputs.push_back(b.var(addend));
    }
    const Var y = call_lowered(b, "ScaledMatMul", inputs, attrs);
    if (!runs_on(device_, y.value()->producer())) return false;
    graph_.replace(node->output(), y.value());
    if (node->num_outputs() == 1) graph_.remove(node);  // sums are replaced later
    return true;
  }

  // ---- Activations

  // Returns the attribute and the value of a node that Quantize applies; nothing for others.
  static std::optional<std::pair<const char*, const char*>> function_of(const Node& node) {
    constexpr const char *kForward = "activation", *kBackward = "activation_gradient";
    if (node.is("Gelu")) return {{kForward, node.attr("approximate", "none") == "tanh" ? "GeluTanh" : "Gelu"}};
    if (node.is("Relu")) return {{kForward, "Relu"}};
    if (node.is("GeluGrad", kDomain)) return {{kBackward, "Gelu"}};
    if (node.is("GeluTanhGrad", kDomain)) return {{kBackward, "GeluTanh"}};
    if (node.is("ReluGrad", kDomain)) return {{kBackward, "Relu"}};
    return {};
  }

  // Quantize(Cast(Gelu(Cast(x)))) -> Quantize(x) with the attribute activation
  bool absorb_activation(Node* node) {
    Value* const x = node->input(0);
    const Node* const narrowing = only_reader(x) ? x->producer() : nullptr;
    if (!narrowing || !is_rounding(*narrowing) || !only_reader(narrowing->input(0))) return false;
    const Node* const applied = narrowing->input(0)->producer();
    const auto function = applied ? function_of(*applied) : std::nullopt;
    if (!function) return false;
    Builder b(&graph_, node);
    b.set_name(node->output()->name());
    std::vector<Var> inputs;
    for (Value* operand : applied->inputs()) {
      Value* const narrow = widened_from(operand);
      if (!narrow || narrow->dtype() != x->dtype() || !has_type_of(*narrow, *x)) return false;
      inputs.push_back(b.var(narrow));
    }
    inputs.insert(inputs.begin() + 1, b.var(node->input(1)));
    Attrs attrs = {{"to", node->attr("to", 0)}, {"writes", node->attr("writes", "")}};
    if (node->has_attr("sums_of")) attrs.emplace_back("sums_of", node->attr("sums_of", ""));
    attrs.emplace_back(function->first, function->second);
    const auto made = call_lowered(b, "Quantize", node->num_outputs(), inputs, attrs);
    if (!runs_on(device_, made[0].value()->producer())) return false;
    for (int i = 0; i < node->num_outputs(); ++i) graph_.replace(node->output(i), made[static_cast<size_t>(i)].value());
    graph_.remove(node);
    return true;
  }

  Graph& graph_;
  const Device& device_;
  const Positions positions_;
  std::deque<QuantizedTensor> tensors_;
  std::unordered_map<const Node*, QuantizedTensor*> tensor_of_;
  std::vector<QuantizedProduct> products_;
  std::vector<std::pair<const QuantizedTensor*, Computed>> computed_;
  std::vector<Node*> quantized_;
};

}  // namespace

bool quantize_products(Model& model, const Device& device) {
  QuantizeProducts pass(model.graph.get(), device);
  const bool changed = pass.run();
  remove_dead_nodes(model);  // reductions and casts, whose operand has fewer readers then
  if (pass.absorb_activations()) remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
