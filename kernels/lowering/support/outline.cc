#include "kernels/lowering/support/outline.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/internal_error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

class Outliner {
 public:
  Outliner(const std::vector<Node*>& nodes, const std::string& op)
      : nodes_(nodes),
        members_(nodes.begin(), nodes.end()),
        graph_(nodes.front()->graph()),
        op_(op),
        function_(new_function(&graph_.context(), op)) {}

  Node* run() {
    move_dependents_behind();
    for (const Node* node : nodes_) add_to_body(*node);
    for (const Node* node : nodes_) find_outputs(*node);
    Node* call = add_call();
    for (size_t i = nodes_.size(); i-- > 0;) graph_.remove(nodes_[i]);
    return call;
  }

 private:
  // Moves nodes between the first and the last node that depend on the group after it.
  void move_dependents_behind() {
    std::unordered_set<const Value*> dependent;
    std::vector<Node*> movers;
    Node* const last = nodes_.back();
    for (Node* node = nodes_.front();; node = node->next()) {
      bool depends = false;
      for_each_input(*node, [&](const Value* input) { depends = depends || dependent.count(input) > 0; });
      const bool member = members_.count(node) > 0;
      if (member && depends && reads_moved(*node, movers)) {
        throw InternalError(
            concat(node->label(), " cannot join ", op_, ": a node outside of the group stands between its members"));
      }
      if (member || depends) {
        for (const Value* output : node->outputs()) {
          if (output) dependent.insert(output);
        }
        if (!member) movers.push_back(node);
      }
      if (node == last) break;
    }
    Node* const behind = last->next();
    for (Node* mover : movers) graph_.move(mover, behind);
  }

  static bool reads_moved(const Node& node, const std::vector<Node*>& movers) {
    return std::any_of(movers.begin(), movers.end(), [&](const Node* mover) {
      bool reads = false;
      for_each_input(node, [&](const Value* input) { reads = reads || input->producer() == mover; });
      return reads;
    });
  }

  void add_to_body(const Node& node) {
    onnx::NodeProto copy = node.shell();
    for (const Value* input : node.inputs()) copy.add_input(input ? name_in_body(*input) : "");
    for (const Value* output : node.outputs()) copy.add_output(output ? output->name() : "");
    *function_->add_node() = std::move(copy);
  }

  std::string name_in_body(const Value& value) {
    if ((value.producer() && members_.count(value.producer())) || !known_.insert(&value).second) return value.name();
    if (is_scalar_constant(value)) {
      onnx::NodeProto* constant = function_->add_node();
      constant->set_op_type("Constant");
      constant->add_output(value.name());
      onnx::AttributeProto* attribute = constant->add_attribute();
      attribute->set_name("value");
      attribute->set_type(onnx::AttributeProto::TENSOR);
      *attribute->mutable_t() = *value.initializer();
    } else {
      function_->add_input(value.name());
      inputs_.push_back(const_cast<Value*>(&value));
    }
    return value.name();
  }

  void find_outputs(const Node& node) {
    for (Value* output : node.outputs()) {
      if (!output) continue;
      const auto outside = [&](const Use& use) { return !members_.count(use.node); };
      const auto& uses = output->uses();
      if (!graph_.is_output(output) && std::none_of(uses.begin(), uses.end(), outside)) continue;
      function_->add_output(output->name());
      outputs_.push_back(output);
    }
  }

  Node* add_call() {
    onnx::NodeProto shell;
    shell.set_op_type(op_);
    shell.set_domain(kDomain);
    shell.set_overload(function_->overload());
    Node* call = graph_.add_node(shell, inputs_, {}, nodes_.back()->next());
    for (size_t i = 0; i < outputs_.size(); ++i) call->take_output(static_cast<int>(i), outputs_[i]);
    graph_.context().functions.push_back(function_);
    return call;
  }

  const std::vector<Node*>& nodes_;
  const std::unordered_set<const Node*> members_;
  Graph& graph_;
  const std::string op_;
  const std::shared_ptr<onnx::FunctionProto> function_;
  std::unordered_set<const Value*> known_;
  std::vector<Value*> inputs_, outputs_;
};

}  // namespace

bool is_scalar_constant(const Value& value) {
  return value.is_initializer() && !value.graph().is_input(&value) && value.initializer()->dims_size() == 0;
}

Node* outline(const std::vector<Node*>& nodes, const std::string& op) { return Outliner(nodes, op).run(); }

std::shared_ptr<onnx::FunctionProto> new_function(Context* context, const std::string& op) {
  context->opsets.emplace(kDomain, 1);
  auto function = std::make_shared<onnx::FunctionProto>();
  function->set_name(op);
  function->set_domain(kDomain);
  function->set_overload(std::to_string(context->functions.size()));
  for (const auto& [domain, version] : context->opsets) {
    onnx::OperatorSetIdProto* opset = function->add_opset_import();
    opset->set_domain(domain);
    opset->set_version(version);
  }
  return function;
}

void add_cast(onnx::FunctionProto* function, const std::string& from, const std::string& to, DType dtype) {
  onnx::NodeProto* cast = function->add_node();
  cast->set_op_type("Cast");
  cast->add_input(from);
  cast->add_output(to);
  onnx::AttributeProto* attribute = cast->add_attribute();
  attribute->set_name("to");
  attribute->set_type(onnx::AttributeProto::INT);
  attribute->set_i(static_cast<int>(dtype));
}

}  // namespace onnx_train
