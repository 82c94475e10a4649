// Fuses a product with the node that follows it, where the device's product supports it: a residual sum (the C of a
// Gemm), an activation or its gradient. The product's result is then not read again, and a sum of 16 bits is rounded
// once. The operand of an activation remains an output if another node reads it, such as the gradient of GELU.
// Likewise, the gradient of a row normalization adds the residual gradient.
#include <algorithm>
#include <optional>

#include "kernels/functions/functions.h"
#include "kernels/lowering/products/products.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/readers.h"
#include "kernels/lowering/support/variant.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// A node after a product, its input that is the product's result, the other input, and the step that replaces it.
struct Follower {
  Node* node;
  int product;
  int other;  // -1: none
  EpilogueStep step;
};

std::vector<Follower> followers(Node* node) {
  using enum EpilogueStep;
  const std::string& op = node->op();
  if (op == "Add") return {{node, 0, 1, kResidual}, {node, 1, 0, kResidual}};
  if (op == "Relu") return {{node, 0, -1, kRelu}};
  if (op == "Gelu") return {{node, 0, -1, node->attr("approximate", "none") == "tanh" ? kGeluTanh : kGelu}};
  if (op == "ReluGrad") return {{node, 0, 1, kReluGradient}};
  if (op == "GeluGrad") return {{node, 0, 1, kGeluGradient}};
  if (op == "GeluTanhGrad") return {{node, 0, 1, kGeluTanhGradient}};
  return {};
}

bool is_gradient_of(const Use& use) {
  const std::vector<Follower> found = followers(use.node);
  return found.size() == 1 && found[0].other == use.index;
}

// Whether an element-wise node reads the result of an activation, perhaps via views and casts: one kernel runs both,
// and fusion with the product would add a write. The gradient of the activation does not count.
bool is_read_elementwise(const Value& value) {
  std::vector<const Value*> forms = {&value};
  while (!forms.empty()) {
    const Value* form = forms.back();
    forms.pop_back();
    for (const Use& use : form->uses()) {
      const OperatorKind kind = operator_of(*use.node).kind;
      if (is_view(*use.node) || use.node->is("Cast")) {
        forms.push_back(use.node->output());
      } else if (kind == OperatorKind::kElementwise && !is_gradient_of(use)) {
        return true;
      }
    }
  }
  return false;
}

class FuseProducts {
 public:
  FuseProducts(Graph* graph, const Device& device) : graph_(*graph), device_(device) {}

  bool run() {
    std::vector<Follower> found;
    for (Node* node = graph_.first(); node; node = node->next()) {
      const bool has_domain = node->domain().empty() || node->domain() == kDomain;
      for (Follower& follower : has_domain ? followers(node) : std::vector<Follower>()) found.push_back(follower);
    }
    bool changed = false;
    const Node* last = nullptr;  // the last follower fused and removed
    for (const Follower& follower : found) {
      if (follower.node == last || !fuse(follower)) continue;
      last = follower.node;
      changed = true;
    }
    return changed;
  }

 private:
  bool fuse(const Follower& follower) {
    Node* const node = follower.node;
    const Value* const read = node->input(follower.product);
    Value* other = follower.other < 0 ? nullptr : node->input(follower.other);
    if (!has_type_of(*read, *node->output()) || (other && !has_type_of(*other, *read))) return false;
    if (!other && is_read_elementwise(*node->output())) return false;
    // 16-bit values are widened for the node, and its result is rounded.
    Value *const narrow = widened_from(read), *const narrow_other = other ? widened_from(other) : nullptr;
    std::vector<Node*> roundings = narrowing_readers(node->output());
    const auto is_stored = [&](const Value* value) {
      return value && !roundings.empty() && value->dtype() == roundings[0]->output()->dtype();
    };
    if (narrow && (!is_stored(narrow) || (other && !is_stored(narrow_other)))) return false;

    const Value* result = narrow ? narrow : read;
    bool is_alone = is_read_once(read) && is_read_once(result);
    while (result->producer() && is_view(*result->producer())) {
      result = result->producer()->input(0);
      is_alone = is_alone && is_read_once(result);
    }
    Node* const product = result->producer();
    if (!product || &product->graph() != &graph_ || (other && !is_alone)) return false;
    const bool may_end_with = is_normalization_gradient(*product)
                                  ? product->output() == result && epilogue_of(*product).empty()
                                  : can_end_with_step(*product);
    const Operator* const fused_row = find_operator(kDomain, product->op());
    if (!may_end_with || !has_step(fused_row->steps, follower.step)) return false;
    // The gradient of a normalization computes in float32 and then rounds.
    const bool is_narrow = narrow || (is_normalization_gradient(*product) && is_stored(narrow_other));
    if (is_narrow && other) other = narrow_other;
    if (!is_narrow) roundings.clear();

    // Readers of an activation's operand or of another output may precede `node`; another operand may follow it.
    Node* const place = other && product->num_outputs() == 1 ? node : product;
    if (other && place == product && !is_before(*other, *product)) return false;
    Builder b(&graph_, place);
    std::vector<Value*> inputs = product->inputs();
    if (other) {
      inputs.resize(static_cast<size_t>(place_of_input(kDomain, product->op(), row_of(follower.step).reads)));
      inputs.push_back(with_shape(b.var(other), result->type().shape()).value());
    }
    const DType stored = is_narrow ? roundings[0]->output()->dtype() : product->output()->dtype();
    Node* const call = add_call(follower, *product, inputs, stored, !is_alone, place);
    if (!runs_on(device_, call)) return false;
    variant_->keep();
    const Var fused = with_shape(b.var(call->output()), node->output()->type().shape());
    for (Node* rounding : roundings) {
      graph_.replace(rounding->output(), fused.value());
      graph_.remove(rounding);
    }
    if (!is_narrow) graph_.replace(node->output(), fused.value());
    graph_.remove(node);
    if (!is_alone) graph_.replace(product->output(), call->output(output_at(*call, "kept")));
    for (int i = 1; i < product->num_outputs(); ++i) {
      if (product->output(i)) graph_.replace(product->output(i), call->output(i));
    }
    return true;
  }

  static bool is_normalization_gradient(const Node& node) {
    return node.is("LayerNormalizationGrad", kDomain) || node.is("RMSNormalizationGrad", kDomain);
  }

  // Whether the value is computed before the node runs.
  static bool is_before(const Value& value, const Node& node) {
    const Node* at = value.producer();
    while (at && at != &node) at = at->next();
    return !value.producer() || at;
  }

  // Whether the node is a product, perhaps with a bias, without a fused follower.
  static bool can_end_with_step(const Node& node) {
    if (!has_only(node, {EpilogueStep::kBias})) return false;
    const bool is_product =
        node.op() == "MatMul" || node.op() == "Gemm" || node.op() == "TransposedMatMul" || node.op() == "ScaledMatMul";
    const auto& inputs = node.inputs();
    const auto is_vector = [](const Value* v) { return v && v->rank() < 2; };
    if (is_product && (is_vector(node.input(0)) || is_vector(node.input(1)))) return false;
    return is_product && (node.domain().empty() || node.domain() == kDomain) &&
           std::find(inputs.begin(), inputs.end(), nullptr) == inputs.end() && node.attr("alpha", 1.0f) == 1 &&
           node.attr("beta", 1.0f) == 1;
  }

  // Adds the call of a variant that computes the product and the follower and stores the result as `stored`. It also
  // keeps the product's result if `keeps`.
  Node* add_call(const Follower& follower, const Node& product, const std::vector<Value*>& inputs, DType stored,
                 bool keeps, Node* place) {
    Variant& variant = variant_.emplace(product, static_cast<int>(inputs.size()));
    Epilogue epilogue = epilogue_of(product);
    if (epilogue.empty()) variant.add_attribute(kEpilogue);
    if (keeps) epilogue.push_back(EpilogueStep::kKeep);
    epilogue.push_back(follower.step);
    std::vector<std::string> read, written, combined;
    for (int i = 0; i < product.num_inputs(); ++i) read.push_back(product.input(i) ? Variant::input(i) : "");
    for (int i = 0; i < product.num_outputs(); ++i) written.push_back(i == 0 ? "product" : "y" + std::to_string(i));
    variant.add_node(product, read, written);
    const DType computed = follower.node->output()->dtype();
    for (int i = 0; i < follower.node->num_inputs(); ++i) {
      const bool is_product = i == follower.product;
      const std::string operand = is_product ? "product" : Variant::input(static_cast<int>(inputs.size()) - 1);
      const bool is_wide = (is_product ? product.output()->dtype() : stored) == computed;
      combined.push_back(is_wide ? operand : converted(operand, computed));
    }
    variant.add_node(*follower.node, combined, {"y"});
    const std::string result = stored == computed ? "y" : converted("y", stored);
    variant.add_output(result, follower.node->output(), {stored, product.output()->type().dims});
    if (keeps) variant.add_output("product", product.output(), product.output()->type());
    for (int i = 1; i < product.num_outputs(); ++i) {
      const Value* const other = product.output(i);
      variant.add_output(written[static_cast<size_t>(i)], other, other ? other->type() : TensorType());
    }
    Node* call = variant.add_call(inputs, place);
    call->set_attr(kEpilogue, to_string(epilogue));
    return call;
  }

  // Adds a cast to the variant's body and returns its name.
  std::string converted(const std::string& value, DType dtype) {
    const std::string name = value + "_cast";
    variant_->add_cast(value, name, dtype);
    return name;
  }

  Graph& graph_;
  const Device& device_;
  std::optional<Variant> variant_;
};

}  // namespace

bool fuse_products(Model& model, const Device& device) {
  const bool changed = FuseProducts(model.graph.get(), device).run();
  remove_dead_nodes(model);  // also removes views for products without a kernel
  return changed;
}

}  // namespace onnx_train
