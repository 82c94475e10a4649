// Pads the logits of a vocabulary whose size is no multiple of 8: in 16 bits their rows are misaligned for tensor
// cores, and the three products of such a head would take several times as long. Rows get unread columns up to a
// multiple of 64. Zeros pad the weight, so the columns are 0; the loss and ArgMax ignore them (the attribute
// `classes`), and the gradient of the loss is 0 there. All results are unchanged.
#include <algorithm>
#include <optional>
#include <string>

#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/variant.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr int64_t kVector = 8, kPadded = 64, kLeast = 1024;  // elements

int64_t last_size(const Value& value) { return value.type().shape().back(); }

bool is_gradient(const Node& node) { return node.is("SoftmaxCrossEntropyGrad", kDomain); }

// Whether a node reads logits and its axis is their last.
bool reads_rows(const Use& use) {
  const Node& node = *use.node;
  const bool is_loss = node.is("SoftmaxCrossEntropy", kDomain) || is_gradient(node);
  if (!is_loss && !node.is("ArgMax", kDomain)) return false;
  const int64_t rank = node.input(use.index)->rank();
  const auto& inputs = node.inputs();
  return use.index == (is_gradient(node) ? 1 : 0) && std::count(inputs.begin(), inputs.end(), nullptr) == 0 &&
         normalize_axis(node.attr("axis", is_loss ? 1 : 0), rank) == rank - 1;
}

// Whether the use is a view that keeps the rows of its input.
bool is_view_of_rows(const Use& use) {
  const Value& to = *use.node->output();
  return is_view(*use.node) && use.index == 0 && to.type().is_static() && to.rank() > 0 &&
         last_size(to) == last_size(*use.node->input(0));
}

class PadClasses {
 public:
  explicit PadClasses(Graph* graph) : graph_(*graph) {}

  bool run() {
    bool changed = false;
    for (Node* node : graph_.nodes()) {
      if (!is_head(*node)) continue;
      pad(node);
      changed = true;
    }
    return changed;
  }

 private:
  // ---- Whether the node computes such logits, and all readers of them and of their gradients support padding

  bool is_head(const Node& node) {
    const std::optional<int64_t> axis = has_only(node, {EpilogueStep::kBias}) ? axis_of_columns(node) : std::nullopt;
    const Value* const logits = axis ? node.output() : nullptr;
    if (!logits || !is_16_bit_float(logits->dtype()) || !logits->type().is_static() || logits->rank() < 2) return false;
    const int64_t classes = last_size(*logits);
    const Value* const bias = addend_of(node);
    if (classes < kLeast || classes % kVector == 0 || (bias && bias->type().shape() != Shape{classes})) return false;
    weight_ = node.input(1);
    axis_ = *axis;
    return takes_logits(*logits);
  }

  bool takes_logits(const Value& logits) const {
    return all_readers(logits, [&](const Use& use) {
      if (is_view_of_rows(use)) return takes_logits(*use.node->output());
      return reads_rows(use) && (!is_gradient(*use.node) || takes_gradient(*use.node->output()));
    });
  }

  bool takes_gradient(const Value& gradient) const {
    return gradient.dtype() == weight_->dtype() && all_readers(gradient, [&](const Use& use) {
             if (is_view_of_rows(use)) return takes_gradient(*use.node->output());
             return is_gradient_of_x(use) || makes_weight_gradient(use);
           });
  }

  template <typename F>
  bool all_readers(const Value& value, const F& f) const {
    const auto& uses = value.uses();
    return !graph_.is_output(&value) && std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
      return &use.node->graph() == &graph_ && f(use);
    });
  }

  // dx = dy wᵀ
  bool is_gradient_of_x(const Use& dy) const {
    return dy.index == 0 && dy.node->input(1) == weight_ && axis_of_columns(*dy.node) == 1 - axis_;
  }
  // dw = xᵀ dy or dyᵀ x
  static bool makes_weight_gradient(const Use& dy) {
    const Node& node = *dy.node;
    return is_gradient_of_weight(node) && node.input(0) != node.input(1) &&
           node.attr("perm_y", identity(2)) == identity(2);
  }

  // ---- Padding; the replaced nodes become dead

  void pad(Node* product) {
    classes_ = last_size(*product->output());
    columns_ = (classes_ + kPadded - 1) / kPadded * kPadded;
    std::vector<Value*> inputs = product->inputs();
    inputs[1] = padded_weight_ = with_zeros(weight_, axis_, product);
    for (size_t i = 2; i < inputs.size(); ++i) {
      if (inputs[i]) inputs[i] = with_zeros(inputs[i], 0, product);  // the bias
    }
    pad_readers(*product->output(), like(product, inputs, {product->output()->rank() - 1})[0]);
  }

  // Pads the value with zeros along its axis of classes, before `place`.
  Value* with_zeros(Value* value, int64_t axis, Node* place) {
    Builder b(&graph_, place);
    b.set_name(value->name() + "/padded");
    std::vector<int64_t> pads(2 * static_cast<size_t>(value->rank()));
    pads[static_cast<size_t>(value->rank() + axis)] = columns_ - classes_;
    return b.op("Pad", {b.var(value), b.ints(pads)}).value();
  }

  // Returns the results of the node for padded operands. `axes` names the padded axis of each output, or -1.
  std::vector<Value*> like(Node* node, const std::vector<Value*>& inputs, const std::vector<int64_t>& axes) {
    Builder b(&graph_, node);
    b.set_name(node->output()->name());
    std::vector<Var> operands;
    for (Value* input : inputs) operands.push_back(input ? b.var(input) : Var());
    std::vector<Value*> results;
    for (const Var result : b.like(*node, operands, node->num_outputs())) {
      result.value()->set_type(padded(*node->output(static_cast<int>(results.size())), axes[results.size()]));
      results.push_back(result.value());
    }
    return results;
  }

  TensorType padded(const Value& value, int64_t axis) const {
    Shape shape = value.type().shape();
    if (axis >= 0) shape[static_cast<size_t>(axis)] = columns_;
    return {value.dtype(), Dims(shape.begin(), shape.end())};
  }

  // Redirects the readers of logits or of their gradients to padded values.
  void pad_readers(const Value& value, Value* wide) {
    for (const Use& use : std::vector<Use>(value.uses())) {
      Node* const node = use.node;
      if (is_view_of_rows(use)) {
        Builder b(&graph_, node);
        b.set_name(node->output()->name());
        const TensorType type = padded(*node->output(), node->output()->rank() - 1);
        pad_readers(*node->output(), reshape(b.var(wide), b.ints(type.shape())).value());
      } else if (reads_rows(use)) {
        pad_loss(use, wide);
      } else if (is_gradient_of_x(use)) {
        node->set_input(0, wide);
        node->set_input(1, padded_weight_);
      } else {
        pad_gradient_of_weight(use, wide);
      }
    }
  }

  void pad_gradient_of_weight(const Use& dy, Value* wide) {
    Node* const node = dy.node;
    std::vector<Value*> inputs = node->inputs();
    inputs[static_cast<size_t>(dy.index)] = wide;
    const bool sums_it = summed_operand(*node) == dy.index;
    const std::vector<int64_t> axes = {dy.index, sums_it ? 0 : -1};
    const std::vector<Value*> results = like(node, inputs, axes);
    Builder b(&graph_, node);
    for (size_t k = 0; k < results.size(); ++k) {
      Value* const result = node->output(static_cast<int>(k));
      b.set_name(result->name());
      const Var whole = b.var(results[k]);
      graph_.replace(result, (axes[k] < 0 ? whole : slice(whole, 0, classes_, axes[k])).value());
    }
  }

  // Replaces the node by a variant that ignores the columns.
  void pad_loss(const Use& logits, Value* wide) {
    Node* const node = logits.node;
    const int64_t last = wide->rank() - 1;
    const bool pads = is_gradient(*node);
    Variant variant(*node, node->num_inputs());
    variant.add_attribute("classes");
    variant.add_ints("first", {0});
    variant.add_ints("end", {classes_});
    variant.add_ints("axis", {last});
    variant.add_op("Slice", {Variant::input(logits.index), "first", "end", "axis"}, "logits");
    std::vector<std::string> read, written;
    for (int i = 0; i < node->num_inputs(); ++i) read.push_back(i == logits.index ? "logits" : Variant::input(i));
    for (int i = 0; i < node->num_outputs(); ++i) written.push_back("y" + std::to_string(i));
    variant.add_node(*node, read, written);
    if (pads) {
      std::vector<int64_t> zeros(2 * static_cast<size_t>(wide->rank()));
      zeros.back() = columns_ - classes_;
      variant.add_ints("zeros", zeros);
      variant.add_op("Pad", {written[0], "zeros"}, "padded");
      variant.add_output("padded", node->output(), padded(*node->output(), last));
    } else {
      for (size_t i = 0; i < written.size(); ++i) {
        const Value* const output = node->output(static_cast<int>(i));
        variant.add_output(written[i], output, output ? output->type() : TensorType());
      }
    }
    std::vector<Value*> inputs = node->inputs();
    inputs[static_cast<size_t>(logits.index)] = wide;
    Node* const call = variant.add_call(inputs, node);
    call->set_attr("classes", classes_);
    variant.keep();
    if (pads) return pad_readers(*node->output(), call->output());
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (node->output(i)) graph_.replace(node->output(i), call->output(i));
    }
  }

  Graph& graph_;
  // The head:
  Value *weight_ = nullptr, *padded_weight_ = nullptr;
  int64_t axis_ = 0;  // axis of the classes in the weight
  int64_t classes_ = 0, columns_ = 0;
};

}  // namespace

bool pad_classes(Model& model) {
  const bool changed = PadClasses(model.graph.get()).run();
  remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
