#include "onnx_passes/weights/constant_weights.h"

#include <algorithm>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/weight_roles.h"

namespace onnx_train {
namespace {

// A ConstantOfShape with more elements than a message may hold stays a node.
constexpr int64_t kMaxFilled = int64_t{1} << 28;

bool is_constant_node(const Node& node) {
  const Value* y = node.output();
  if (!y || !is_float(y->dtype()) || !y->has_rank()) return false;
  if (node.is("Constant")) return true;
  return node.is("ConstantOfShape") && y->type().is_static() && num_elements(y->type().shape()) <= kMaxFilled;
}

// The contents of a constant node, moved if possible, because weights are large.
onnx::TensorProto take_contents(Node* node) {
  onnx::TensorProto tensor;
  if (node->is("Constant") && node->has_attr("value")) {
    for (auto& attribute : *node->mutable_shell().mutable_attribute()) {
      if (attribute.name() == "value") tensor.Swap(attribute.mutable_t());
    }
  } else if (node->is("Constant")) {
    to_proto(constant_of(node->output()), "", &tensor);
  } else {
    const Tensor fill = node->attr_tensor("value");
    const Value* y = node->output();
    to_proto(Tensor::full(y->dtype(), y->type().shape(), fill.empty() ? 0 : fill.at(0)), "", &tensor);
  }
  return tensor;
}

class Lifting {
 public:
  explicit Lifting(Graph* main) : main_(main), stored_(main->initializers()) {}

  std::vector<std::string> run() {
    lift(main_, "");
    return std::move(names_);
  }

 private:
  // Whether the value is data, such as the point at which a network is evaluated, or the zeros of a layer without a
  // bias: layers compute with it whose weights are initializers of the file, so that the file would have it there, too,
  // if it were a weight.
  bool is_data(const Value& value) const {
    return std::all_of(value.uses().begin(), value.uses().end(), [&](const Use& use) {
      const Node& node = *use.node;
      const bool multiplies = node.is("MatMul") || node.is("Gemm") || node.is("Conv");
      const bool normalizes = node.is("LayerNormalization") || node.is("InstanceNormalization");
      const bool is_operand = use.index == 0 ? multiplies : use.index == 2 && (multiplies || normalizes);
      return is_operand && stored_.contains(node.input(1));
    });
  }

  // `path` names the subgraph: "then_branch/".
  void lift(Graph* graph, const std::string& path) {
    // Initializers of a body are judged as those of the main graph are, among which they are then.
    for (Value* value : std::vector<Value*>(graph->initializers())) {
      if (graph == main_ || graph->is_input(value) || graph->is_output(value) || !is_float(value->dtype())) continue;
      const bool is_weight = is_read_as_weight(*value);
      graph->replace(value, add(value, path, is_weight, [&] { return value->shared_initializer(); }));
      graph->remove_initializer(value);
    }
    for (Node *node = graph->first(), *next = nullptr; node; node = next) {
      next = node->next();
      for (const auto& subgraph : node->subgraphs()) lift(subgraph.graph.get(), path + subgraph.attribute + "/");
      if (!is_constant_node(*node) || !is_read_as_weight(*node->output()) || is_data(*node->output())) continue;
      graph->replace(node->output(), add(node->output(), path, /*is_weight=*/true,
                                         [&] { return make_initializer("", from_proto(take_contents(node))); }));
      graph->remove(node);
    }
  }

  // Replaces `value` by an initializer of the main graph that takes over its name.
  template <typename F>
  Value* add(Value* value, const std::string& path, bool is_weight, const F& contents) {
    const std::string name = value->name();
    const TensorType type = value->type();
    value->graph().rename(value, value->graph().unique_name(name + "/constant"));
    Value* weight = main_->add_initializer(main_->find(name) ? main_->unique_name(path + name) : name, contents());
    weight->set_type(type);
    if (is_weight) names_.push_back(weight->name());
    return weight;
  }

  Graph* main_;
  const Marks<Value> stored_;  // the initializers of the file
  std::vector<std::string> names_;
};

}  // namespace

std::vector<std::string> lift_weights(Model* model) { return Lifting(model->graph.get()).run(); }

void read_initializers_directly(Graph* graph) {
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    for (const auto& subgraph : node->subgraphs()) read_initializers_directly(subgraph.graph.get());
    const bool hands_on = node->is("Identity") && node->input(0) && node->input(0)->is_initializer() && node->output();
    if (!hands_on || graph->is_output(node->output()) || node->input(0)->graph().is_input(node->input(0))) continue;
    graph->replace(node->output(), node->input(0));
    graph->remove(node);
  }
}

}  // namespace onnx_train
