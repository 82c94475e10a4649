#include "kernels/lowering/types/narrow_nodes.h"

#include <algorithm>
#include <optional>
#include <set>

#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/variant.h"
#include "kernels/lowering/types/rounding.h"
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
      // Some kernels write 16 bits but read float32.
      std::fill(sources_.begin(), sources_.end(), nullptr);
      return replace(device);
    }
    variant_->keep();
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
  // The call has the inputs, outputs and attributes of the node, in its order.
  Node* add_call() {
    variant_.emplace(node_, node_.num_inputs());
    std::vector<Value*> inputs = node_.inputs();
    std::vector<std::string> read, written;
    for (int i = 0; i < node_.num_inputs(); ++i) {
      const std::string name = Variant::input(i);
      Value* const source = sources_[static_cast<size_t>(i)];
      if (source) {
        variant_->add_cast(name, name + "_wide", DType::kFloat);
        inputs[static_cast<size_t>(i)] = source;
      }
      read.push_back(!node_.input(i) ? "" : source ? name + "_wide" : name);
    }
    for (size_t i = 0; i < narrowings_.size(); ++i) {
      const bool there = node_.output(static_cast<int>(i));
      written.push_back(!there ? "" : narrowings_[i].empty() ? output_name(i) : output_name(i) + "_wide");
    }
    variant_->add_node(node_, read, written);
    for (size_t i = 0; i < narrowings_.size(); ++i) add_output(i, written[i]);
    return variant_->add_call(inputs, &node_);
  }

  static std::string output_name(size_t i) { return "y" + std::to_string(i); }

  void add_output(size_t i, const std::string& wide) {
    const Value* const output = node_.output(static_cast<int>(i));
    if (narrowings_[i].empty()) {
      variant_->add_output(output_name(i), output, output ? output->type() : TensorType());
    } else {
      const Value& narrow = *narrowings_[i][0]->output();
      variant_->add_cast(wide, output_name(i), narrow.dtype());
      variant_->add_output(output_name(i), &narrow, {narrow.dtype(), output->type().dims});
    }
  }

  Node& node_;
  Graph& graph_;
  std::vector<Value*> sources_;                 // by input: the 16-bit value before the cast, or null
  std::vector<std::vector<Node*>> narrowings_;  // by output
  std::optional<Variant> variant_;
};

}  // namespace

bool narrow_nodes(Model& model, const Device& device, const std::function<bool(const Node&)>& takes) {
  std::vector<Node*> found;  // collected first, because casts are removed as well
  for (Node* node : model.graph->nodes()) {
    const Operator& row = operator_of(*node);
    const bool may = !row.narrow_inputs.empty() || !row.narrow_outputs.empty();
    if (may && takes(*node)) found.push_back(node);
  }
  bool changed = false;
  for (Node* node : found) changed = Narrowed(node, operator_of(*node)).replace(device) || changed;
  return changed;
}

}  // namespace onnx_train
