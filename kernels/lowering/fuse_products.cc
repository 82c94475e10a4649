// Fuses a product with the node that follows it, where the device's product does both: a residual sum, which is the C
// of a Gemm, and an activation or its gradient. So the product's result is not read again, and a sum of 16 bits is
// rounded once. The operand of an activation is an output as well if another node reads it: the gradient of GELU does.
#include <algorithm>
#include <memory>

#include "kernels/functions/functions.h"
#include "kernels/lowering/lowering.h"
#include "kernels/lowering/outline.h"
#include "kernels/lowering/products.h"
#include "kernels/lowering/readers.h"
#include "kernels/lowering/widened.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// What follows a product: a node, its input that is the product's result, and the input that it combines with it.
struct Follower {
  Node* node;
  int product;
  int other;              // -1: none
  const char* attribute;  // of the fused product
  std::string function;   // the attribute's value; empty: 1
};

std::vector<Follower> followers(Node* node) {
  const std::string& op = node->op();
  const auto activation = [&](const char* function) {
    return std::vector<Follower>{{node, 0, -1, "activation", function}};
  };
  const auto gradient = [&](const char* function) {
    return std::vector<Follower>{{node, 0, 1, "activation_gradient", function}};
  };
  if (op == "Add") return {{node, 0, 1, "residual", ""}, {node, 1, 0, "residual", ""}};
  if (op == "Relu") return activation("Relu");
  if (op == "ReluGrad") return gradient("Relu");  // of its result, which has the sign of its operand
  if (op == "Gelu") return activation(node->attr("approximate", "none") == "tanh" ? "GeluTanh" : "Gelu");
  if (op == "GeluGrad") return gradient("Gelu");
  if (op == "GeluTanhGrad") return gradient("GeluTanh");
  return {};
}

bool is_gradient_of(const Use& use) {
  const std::vector<Follower> found = followers(use.node);
  return found.size() == 1 && found[0].other == use.index;
}

// Whether an element-wise node reads the result of an activation, as it is or in another form: one kernel runs both,
// and the product would write a value for it. The gradient of the activation runs elsewhere.
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
    const Node* last = nullptr;  // the follower that was fused and removed
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
    // Values of 16 bits are widened for the node, and its result is rounded.
    Value* const narrow = widened_from(read);
    const std::vector<Node*> roundings = narrow ? narrowing_readers(node->output()) : std::vector<Node*>();
    if (narrow) {
      const auto has_narrow_type = [&](const Value* value) { return value && value->dtype() == narrow->dtype(); };
      if (roundings.empty() || !has_narrow_type(roundings[0]->output())) return false;
      if (other && !has_narrow_type(widened_from(other))) return false;
      if (other) other = widened_from(other);
    }

    const Value* result = narrow ? narrow : read;
    bool is_alone = is_read_once(read) && is_read_once(result);
    while (result->producer() && is_view(*result->producer())) {
      result = result->producer()->input(0);
      is_alone = is_alone && is_read_once(result);
    }
    Node* const product = result->producer();
    if (!product || &product->graph() != &graph_ || !can_take_epilogue(*product) || (other && !is_alone)) return false;

    // What reads an activation's operand may stand before the activation; another operand is there for `node`.
    Node* const place = other ? node : product;
    Builder b(&graph_, place);
    std::vector<Value*> inputs = product->inputs();
    if (other) inputs.push_back(with_shape(b.var(other), result->type().shape()).value());
    Node* const call = add_call(follower, *product, inputs, !is_alone, place);
    if (!runs_on(device_, call)) return false;
    graph_.context().functions.push_back(function_);
    const Var fused = with_shape(b.var(call->output(is_alone ? 0 : 1)), node->output()->type().shape());
    for (Node* rounding : roundings) {
      graph_.replace(rounding->output(), fused.value());
      graph_.remove(rounding);
    }
    if (!narrow) graph_.replace(node->output(), fused.value());
    graph_.remove(node);
    if (!is_alone) graph_.replace(product->output(), call->output(0));
    return true;
  }

  // Whether the node is a product, perhaps with a bias, that nothing else has been fused with.
  static bool can_take_epilogue(const Node& node) {
    for (const char* attribute : {"residual", "activation", "activation_gradient"}) {
      if (node.has_attr(attribute)) return false;
    }
    const bool is_product = node.op() == "MatMul" || node.op() == "Gemm" || node.op() == "TransposedMatMul";
    const auto& inputs = node.inputs();
    const auto is_vector = [](const Value* v) { return v && v->rank() < 2; };
    if (is_product && (is_vector(node.input(0)) || is_vector(node.input(1)))) return false;
    return is_product && (node.domain().empty() || node.domain() == kDomain) && node.num_outputs() == 1 &&
           std::find(inputs.begin(), inputs.end(), nullptr) == inputs.end() && node.attr("alpha", 1.0f) == 1 &&
           node.attr("beta", 1.0f) == 1;
  }

  // The call of function_, a new one, whose body is the product and the follower. It writes the product's result, too,
  // if `writes_both`.
  Node* add_call(const Follower& follower, const Node& product, const std::vector<Value*>& inputs, bool writes_both,
                 Node* place) {
    const DType dtype = product.output()->dtype();
    onnx::NodeProto shell = product.shell(), first = product.shell(), second = follower.node->shell();
    function_ = new_function(&graph_.context(), product.op());
    for (size_t i = 0; i < inputs.size(); ++i) function_->add_input("x" + std::to_string(i));
    for (const onnx::AttributeProto& attribute : first.attribute()) function_->add_attribute(attribute.name());
    function_->add_attribute(follower.attribute);
    for (int i = 0; i < product.num_inputs(); ++i) first.add_input(function_->input(i));
    first.add_output("product");
    *function_->add_node() = std::move(first);
    for (int i = 0; i < follower.node->num_inputs(); ++i) {
      const std::string stored = i == follower.product ? "product" : function_->input(product.num_inputs());
      second.add_input(is_narrow_type(dtype) ? converted(stored, DType::kFloat) : stored);
    }
    second.add_output("y");
    *function_->add_node() = std::move(second);
    if (writes_both) function_->add_output("product");
    function_->add_output(is_narrow_type(dtype) ? converted("y", dtype) : "y");

    shell.set_domain(kDomain);
    shell.set_overload(function_->overload());
    std::vector<std::string> names;
    if (writes_both) names.push_back(graph_.unique_name(product.output()->name()));
    names.push_back(graph_.unique_name(follower.node->output()->name()));
    Node* call = graph_.add_node(shell, inputs, names, place);
    if (follower.function.empty()) {
      call->set_attr(follower.attribute, 1);
    } else {
      call->set_attr(follower.attribute, follower.function);
    }
    for (Value* output : call->outputs()) output->set_type(product.output()->type());
    return call;
  }

  // The name of the converted value in the body of function_.
  std::string converted(const std::string& value, DType dtype) {
    const std::string name = value + "_cast";
    add_cast(function_.get(), value, name, dtype);
    return name;
  }

  Graph& graph_;
  const Device& device_;
  std::shared_ptr<onnx::FunctionProto> function_;
};

}  // namespace

bool fuse_products(Model& model, const Device& device) {
  const bool changed = FuseProducts(model.graph.get(), device).run();
  remove_dead_nodes(model);  // and views that were made for products that the device does not have
  return changed;
}

}  // namespace onnx_train
