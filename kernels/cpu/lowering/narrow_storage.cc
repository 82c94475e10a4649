// Kernels that read and write bfloat16 where mixed precision has rounded, and compute in float32 between: the casts
// around a node go into it.
#include <algorithm>
#include <memory>
#include <set>

#include "kernels/cpu/lowering/lowering.h"
#include "kernels/cpu/lowering/widened.h"
#include "kernels/device.h"
#include "kernels/lowering/outline.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train::cpu {
namespace {

// Which operands of an operator may be bfloat16, for a kernel of the same name with Bfloat16 in front.
struct NarrowRow {
  const char* op;
  const char* domain;
  std::vector<int> inputs, outputs;
};

const std::vector<NarrowRow>& storage_rows() {
  static const std::vector<NarrowRow> rows = {
      {"Bfloat16MatMul", kDomain, {}, {0}},
      {"Bfloat16Gemm", kDomain, {}, {0}},
      {"Bfloat16TransposedMatMul", kDomain, {}, {0}},
      {"Bfloat16Conv", kDomain, {}, {0}},
      {"Bfloat16ConvGradInput", kDomain, {}, {0}},
      {"Bfloat16ChannelsLastConv", kDomain, {}, {0}},
      {"Bfloat16ChannelsLastConvGradInput", kDomain, {}, {0}},
      {"BatchNormalization", "", {0}, {0}},
      {"RoundedBatchNormalizationRelu", kDomain, {0}, {0}},
      {"RoundedBatchNormalizationAddRelu", kDomain, {0, 5}, {0}},
      {"BatchNormalizationTrain", kDomain, {0}, {0}},
      {"RoundedBatchNormalizationReluTrain", kDomain, {0}, {0}},
      {"RoundedBatchNormalizationAddReluTrain", kDomain, {0, 3}, {0}},
      {"BatchNormalizationGrad", kDomain, {0, 4}, {0}},
      {"BatchNormalizationFrozenGrad", kDomain, {0, 4}, {0}},
      {"BatchNormalizationReluGrad", kDomain, {0, 4, 5}, {0, 3}},
      {"ChannelsLastGroupNormalization", kDomain, {0}, {0}},
      {"ChannelsLastGroupNormalizationGrad", kDomain, {0, 2}, {0}},
      {"MaxPool", "", {0}, {0}},
      {"MaxPoolGrad", kDomain, {0, 1}, {0}},
      {"AveragePool", "", {0}, {0}},
      {"AveragePoolGrad", kDomain, {0}, {0}},
      {"GlobalAveragePool", "", {0}, {0}},
      {"GlobalMaxPool", "", {0}, {0}},
      {"ChannelsLastMaxPool", kDomain, {0}, {0}},
      {"ChannelsLastMaxPoolGrad", kDomain, {0, 1}, {0}},
      {"ChannelsLastAveragePool", kDomain, {0}, {0}},
      {"ChannelsLastAveragePoolGrad", kDomain, {0}, {0}},
      {"SoftmaxCrossEntropy", kDomain, {0}, {}},
      {"SoftmaxCrossEntropyGrad", kDomain, {1}, {0}},
      {"ArgMax", "", {0}, {}},
      {"ArgMin", "", {0}, {}},
      {"Softmax", "", {0}, {0}},
      {"LogSoftmax", "", {0}, {0}},
      {"SoftmaxGrad", kDomain, {0, 1}, {0}},
      {"LogSoftmaxGrad", kDomain, {0, 1}, {0}},
      {"LayerNormalization", "", {0}, {0}},
      {"LayerNormalizationGrad", kDomain, {0, 2}, {0}},
      {"RMSNormalization", "", {0}, {0}},
      {"RMSNormalization", kDomain, {0}, {0}},
      {"RMSNormalizationGrad", kDomain, {0, 2}, {0}},
      {"Dropout", kDomain, {0}, {0}},
      {"GatherGrad", kDomain, {0}, {}},
      {"CoalesceRows", kDomain, {0}, {}},
  };
  return rows;
}

// Whose products take bfloat16 operands then.
const std::vector<NarrowRow>& recurrent_rows() {
  static const std::vector<NarrowRow> rows = {
      {"LSTMTrain", kDomain, {0, 1, 2, 5}, {0, 3}},   {"LSTMGrad", kDomain, {0, 2, 5, 6, 8}, {0}},
      {"GRUTrain", kDomain, {0, 1, 2, 5}, {0, 2, 3}}, {"GRUGrad", kDomain, {0, 2, 3, 4, 5, 6}, {0, 3}},
      {"RNNTrain", kDomain, {0, 1, 2, 5}, {0}},       {"RNNGrad", kDomain, {0, 2, 3, 4}, {0}},
  };
  return rows;
}

// A node with its casts, as a function and a call of it.
class Narrowed {
 public:
  Narrowed(Node* node, const NarrowRow& row) : node_(*node), graph_(node->graph()) {
    for (int i = 0; i < node->num_inputs(); ++i) {
      const bool may = std::find(row.inputs.begin(), row.inputs.end(), i) != row.inputs.end();
      sources_.push_back(may ? widened_from(node->input(i)) : nullptr);
    }
    for (int i = 0; i < node->num_outputs(); ++i) {
      const bool may = std::find(row.outputs.begin(), row.outputs.end(), i) != row.outputs.end();
      narrowings_.push_back(may ? narrowing_readers(node->output(i)) : std::vector<Node*>());
    }
  }

  // False when nothing around the node is narrow, or no kernel takes it so.
  bool replace() {
    const bool reads = std::any_of(sources_.begin(), sources_.end(), [](const Value* v) { return v; });
    const bool writes = std::any_of(narrowings_.begin(), narrowings_.end(), [](const auto& n) { return !n.empty(); });
    if (!reads && !writes) return false;
    Node* call = add_call();
    if (!find_kernel(Device::cpu(), NodeSpec(*call, std::vector<Tensor>(sources_.size()), num_threads()))) {
      graph_.remove(call);
      return false;
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
  static std::string numbered(const char* base, size_t i) { return base + std::to_string(i); }

  void add_cast(const std::string& from, const std::string& to, DType dtype) {
    onnx::NodeProto* cast = function_->add_node();
    cast->set_op_type("Cast");
    cast->add_input(from);
    cast->add_output(to);
    onnx::AttributeProto* attribute = cast->add_attribute();
    attribute->set_name("to");
    attribute->set_type(onnx::AttributeProto::INT);
    attribute->set_i(static_cast<int>(dtype));
  }

  // Inputs and outputs are the node's, in its order; so are its attributes, which the body repeats as constants.
  void write_body() {
    onnx::NodeProto inner = node_.shell();
    for (size_t i = 0; i < sources_.size(); ++i) {
      const std::string name = numbered("x", i);
      function_->add_input(name);
      if (sources_[i]) add_cast(name, name + "_wide", DType::kFloat);
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
      if (!narrowings_[i].empty()) add_cast(numbered("y", i) + "_wide", numbered("y", i), DType::kBFloat16);
    }
  }

  Node* add_call() {
    const std::string op = node_.op().starts_with("Bfloat16") ? node_.op() : "Bfloat16" + node_.op();
    function_ = new_function(&graph_.context(), op);
    write_body();
    onnx::NodeProto shell = node_.shell();
    shell.set_op_type(op);
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
      const DType dtype = narrowings_[i].empty() ? output->dtype() : DType::kBFloat16;
      call->output(static_cast<int>(i))->set_type({dtype, output->type().dims});
    }
    return call;
  }

  Node& node_;
  Graph& graph_;
  std::vector<Value*> sources_;                 // by input: what it is widened from; null where it stays
  std::vector<std::vector<Node*>> narrowings_;  // by output
  std::shared_ptr<onnx::FunctionProto> function_;
};

bool narrow(Model& model, const std::vector<NarrowRow>& rows) {
  // Casts go while others are looked at: only nodes of the rows are kept in mind.
  std::vector<std::pair<Node*, const NarrowRow*>> found;
  for (Node* node : model.graph->nodes()) {
    for (const NarrowRow& row : rows) {
      if (node->is(row.op, row.domain)) found.emplace_back(node, &row);
    }
  }
  bool changed = false;
  for (const auto& [node, row] : found) changed = Narrowed(node, *row).replace() || changed;
  return changed;
}

}  // namespace

bool bfloat16_recurrences(Model& model) { return narrow(model, recurrent_rows()); }

bool narrow_storage(Model& model) { return narrow(model, storage_rows()); }

}  // namespace onnx_train::cpu
