// Lets kernels read and write 16-bit floats where mixed precision has rounded, and compute in float32 in between:
// absorbs the casts around a node into the node.
#include <algorithm>
#include <memory>
#include <set>

#include "kernels/lowering/lowering.h"
#include "kernels/lowering/outline.h"
#include "kernels/lowering/widened.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

bool contains(const std::vector<int>& list, int i) { return std::find(list.begin(), list.end(), i) != list.end(); }

// Replaces a node and its casts by a call of a function in our domain.
class Narrowed {
 public:
  Narrowed(Node* node, const Operator& row) : node_(*node), graph_(node->graph()) {
    for (int i = 0; i < node->num_inputs(); ++i) {
      const bool may = contains(row.narrow_inputs, i);
      sources_.push_back(may ? widened_from(node->input(i)) : nullptr);
    }
    for (int i = 0; i < node->num_outputs(); ++i) {
      const bool may = contains(row.narrow_outputs, i);
      narrowings_.push_back(may ? narrowing_readers(node->output(i)) : std::vector<Node*>());
    }
  }

  // Returns false if no cast surrounds the node, or if no kernel supports the narrow form.
  bool replace(const Device& device) {
    const bool reads = std::any_of(sources_.begin(), sources_.end(), [](const Value* v) { return v; });
    const bool writes = std::any_of(narrowings_.begin(), narrowings_.end(), [](const auto& n) { return !n.empty(); });
    if (!reads && !writes) return false;
    Node* call = add_call();
    if (!runs_on(device, call)) {
      if (!reads || !writes) return false;
      // Some kernels round what they write and read float32.
      std::fill(sources_.begin(), sources_.end(), nullptr);
      return replace(device);
    }
    graph_.context().functions.push_back(function_);
    std::set<Node*> widenings;
    for (int i = 0; i < node_.num_inputs(); ++i) {
      if (sources_[static_cast<size_t>(i)]) widenings.insert(node_.input(i)->producer());
    }
    for (int i = 0; i < node_.num_outputs(); ++i) {
      const std::vector<Node*>& casts = narrowings_[static_cast<size_t>(i)];
      for (Node* cast : casts) graph_.replace(cast->output(), call->output(i));
      for (Node* cast : casts) graph_.remove(cast);
      if (casts.empty() && node_.output(i)) graph_.replace(node_.output(i), call->output(i));
    }
    graph_.remove(&node_);
    for (Node* cast : widenings) {
      if (cast->output()->uses().empty() && !graph_.is_output(cast->output())) graph_.remove(cast);
    }
    return true;
  }

 private:
  DType narrow_type(size_t output) const { return narrowings_[output][0]->output()->dtype(); }

  static std::string numbered(const char* base, size_t i) { return base + std::to_string(i); }

  // Inputs, outputs and attributes are those of the node, in its order; the body repeats the attributes as constants.
  void write_body() {
    onnx::NodeProto inner = node_.shell();
    for (size_t i = 0; i < sources_.size(); ++i) {
      const std::string name = numbered("x", i);
      function_->add_input(name);
      if (sources_[i]) add_cast(function_.get(), name, name + "_wide", DType::kFloat);
      inner.add_input(!node_.input(static_cast<int>(i)) ? "" : sources_[i] ? name + "_wide" : name);
    }
    for (size_t i = 0; i < narrowings_.size(); ++i) {
      const bool there = node_.output(static_cast<int>(i));
      inner.add_output(!there ? "" : narrowings_[i].empty() ? numbered("y", i) : numbered("y", i) + "_wide");
    }
    for (const onnx::AttributeProto& attribute : inner.attribute()) function_->add_attribute(attribute.name());
    *function_->add_node() = std::move(inner);
    for (size_t i = 0; i < narrowings_.size(); ++i) {
      function_->add_output(numbered("y", i));
      if (narrowings_[i].empty()) continue;
      add_cast(function_.get(), numbered("y", i) + "_wide", numbered("y", i), narrow_type(i));
    }
  }

  Node* add_call() {
    function_ = new_function(&graph_.context(), node_.op());
    write_body();
    onnx::NodeProto shell = node_.shell();
    shell.set_domain(kDomain);
    shell.set_overload(function_->overload());
    std::vector<Value*> inputs = node_.inputs();
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = sources_[i] ? sources_[i] : inputs[i];
    std::vector<std::string> names;
    for (size_t i = 0; i < narrowings_.size(); ++i) {
      const Value* output = node_.output(static_cast<int>(i));
      const Value* named = narrowings_[i].empty() ? output : narrowings_[i][0]->output();
      names.push_back(named ? graph_.unique_name(named->name()) : "");
    }
    Node* call = graph_.add_node(shell, inputs, names, &node_);
    for (size_t i = 0; i < narrowings_.size(); ++i) {
      const Value* output = node_.output(static_cast<int>(i));
      if (!output) continue;
      const DType dtype = narrowings_[i].empty() ? output->dtype() : narrow_type(i);
      call->output(static_cast<int>(i))->set_type({dtype, output->type().dims});
    }
    return call;
  }

  Node& node_;
  Graph& graph_;
  std::vector<Value*> sources_;                 // by input: the 16-bit value it is widened from; null if it stays
  std::vector<std::vector<Node*>> narrowings_;  // by output
  std::shared_ptr<onnx::FunctionProto> function_;
};

// Narrows the nodes of the operators for which `takes(node, row)` holds.
bool narrow(Model& model, const Device& device, bool (*takes)(const Node&, const Operator&)) {
  // Casts are removed during the traversal, so only nodes with a row are collected first.
  std::vector<std::pair<Node*, const Operator*>> found;
  for (Node* node : model.graph->nodes()) {
    const Operator& row = operator_of(*node);
    if (takes(*node, row)) found.emplace_back(node, &row);
  }
  bool changed = false;
  for (const auto& [node, row] : found) changed = Narrowed(node, *row).replace(device) || changed;
  return changed;
}

}  // namespace

bool bfloat16_recurrences(Model& model, const Device& device) {
  return narrow(model, device, [](const Node&, const Operator& row) { return row.kind == OperatorKind::kRecurrence; });
}

// The operands of products are already narrow: bfloat16_products.cc.
bool narrow_storage(Model& model, const Device& device) {
  return narrow(model, device, [](const Node& node, const Operator& row) {
    if (row.kind == OperatorKind::kProduct) return is_narrow_type(node.input(0)->dtype());
    return row.kind != OperatorKind::kRecurrence && !(row.narrow_inputs.empty() && row.narrow_outputs.empty());
  });
}

}  // namespace onnx_train
