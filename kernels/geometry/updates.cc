#include "kernels/geometry/updates.h"

#include <algorithm>
#include <map>

#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/places.h"
#include "onnx_passes/functions/dynamic_map.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

double number(const onnx::NodeProto& node, const std::string& name) {
  for (const onnx::AttributeProto& a : node.attribute()) {
    if (a.name() != name) continue;
    return a.has_t() ? from_proto(a.t()).at(0) : static_cast<double>(a.i());
  }
  return 0;
}

// Resolves the names in a node of the body.
struct Operands {
  const NodeSpec& spec;
  Places inputs, outputs;
  std::map<std::string, double> constants = {};
  std::map<std::string, const onnx::NodeProto*> guards = {};  // Where(guard, new, old), by the name of `new`

  UpdateScalar number(const std::string& name) const {
    const int input = place_of(inputs, name);
    if (input >= 0) return {input, spec.in_type(input), 0};
    return {-1, DType::kDouble, constants.at(name)};
  }
};

UpdateRule rule_of(const onnx::NodeProto& node, const Operands& operands) {
  UpdateRule rule;
  math::UpdateParameters& p = rule.parameters;
  p.decoupled = node.op_type() == "AdamW" || node.op_type() == "AdamW8bit";
  p.nesterov = number(node, "nesterov") != 0;
  p.decay = number(node, "weight_decay");
  p.momentum = number(node, "momentum");
  p.dampening = number(node, "dampening");
  p.beta1 = number(node, "beta1");
  p.beta2 = number(node, "beta2");
  p.epsilon = number(node, "epsilon");
  const bool is_sgd = node.op_type() == "Sgd";
  p.formula = !is_sgd                 ? math::UpdateFormula::kAdam
              : node.input(2).empty() ? math::UpdateFormula::kSgd
                                      : math::UpdateFormula::kMomentum;
  const int first = node.input_size() - 3;  // step, learning_rate and grad_scale are the last inputs
  rule.step = operands.number(node.input(first));
  rule.rate = operands.number(node.input(first + 1));
  rule.scale = operands.number(node.input(first + 2));
  return rule;
}

int slots_of(const UpdateRule& rule) { return static_cast<int>(rule.parameters.formula); }

void add_update(MultiTensorUpdate* all, const onnx::NodeProto& node, const Operands& operands) {
  UpdateRule rule = rule_of(node, operands);
  const auto guard_of = [&](const std::string& output) {
    const auto found = operands.guards.find(output);
    return found == operands.guards.end() ? nullptr : found->second;
  };
  if (const onnx::NodeProto* guard = guard_of(node.output(0))) rule.guard = place_of(operands.inputs, guard->input(0));
  const auto known = std::find(all->rules.begin(), all->rules.end(), rule);
  TensorUpdate update{static_cast<size_t>(known - all->rules.begin()), DType::kFloat, 0};
  if (known == all->rules.end()) all->rules.push_back(rule);
  for (int i = 0; i < 2 + slots_of(rule); ++i) update.inputs[i] = place_of(operands.inputs, node.input(i));
  for (int i = 0; i < 1 + slots_of(rule); ++i) {
    const onnx::NodeProto* guard = guard_of(node.output(i));
    update.outputs[i] = place_of(operands.outputs, guard ? guard->output(0) : node.output(i));
  }
  update.dtype = operands.spec.in_type(update.inputs[0]);
  update.size = operands.spec.in_size(update.inputs[0]);
  all->tensors.push_back(update);
}

// ---- One tensor: the node itself

onnx::NodeProto as_message(const NodeSpec& spec, Places* inputs, Places* outputs) {
  onnx::NodeProto node = spec.node().shell();
  for (int i = 0; i < spec.num_inputs(); ++i) {
    node.add_input(spec.has_input(i) ? spec.node().input(i)->name() : "");
    if (spec.has_input(i)) inputs->emplace(node.input(i), i);
  }
  for (int i = 0; i < spec.num_outputs(); ++i) {
    node.add_output(spec.has_output(i) ? spec.node().output(i)->name() : "");
    if (spec.has_output(i)) outputs->emplace(node.output(i), i);
  }
  return node;
}

MultiTensorUpdate describe_one(const NodeSpec& spec) {
  Operands operands{spec, {}, {}};
  const onnx::NodeProto node = as_message(spec, &operands.inputs, &operands.outputs);
  MultiTensorUpdate all;
  add_update(&all, node, operands);
  return all;
}

}  // namespace

UpdateRule quantized_update_rule(const NodeSpec& spec) {
  Operands operands{spec, {}, {}};
  const onnx::NodeProto node = as_message(spec, &operands.inputs, &operands.outputs);
  return rule_of(node, operands);
}

namespace {

bool has_supported_types(const NodeSpec& spec, int first_scalar) {
  for (int i = 0; i < spec.num_outputs(); ++i) {
    if (!spec.has_output(i)) return false;
  }
  return is_float_or_double(spec.in_type(0)) && spec.in_type(first_scalar) == DType::kInt64 &&
         is_float_or_double(spec.in_type(first_scalar + 1)) && is_float_or_double(spec.in_type(first_scalar + 2));
}

}  // namespace

bool supports_quantized_update(const NodeSpec& spec) {
  const DType dtype = spec.in_type(0);
  return has_supported_types(spec, 6) && spec.in_type(1) == dtype && spec.in_type(2) == DType::kUint8 &&
         spec.in_type(3) == dtype && spec.in_type(4) == DType::kUint8 && spec.in_type(5) == dtype &&
         spec.in_size(2) == spec.in_size(3) * kQuantizedBlock && spec.in_size(4) == spec.in_size(2) &&
         spec.in_size(0) <= spec.in_size(2) && spec.in_size(5) == spec.in_size(3);
}

namespace {

// ---- Many tensors: the updates in the body of the call

// Whether `node` is an update whose tensors are inputs of the body and whose scalars are inputs or constants. Sets the
// types of its outputs to those of the tensors that they replace.
bool is_update_of(const Graph& body, Node* node) {
  for (int i = 0; i < node->num_inputs(); ++i) {
    const Value* input = node->input(i);
    const bool scalar = i + 3 >= node->num_inputs();
    if (input && !body.is_input(input) && !(scalar && input->producer() && input->producer()->is("Constant")))
      return false;
  }
  for (int i = 0; i < node->num_outputs(); ++i) {
    const Value* old = node->input(i == 0 ? 0 : i + 1);
    if (!old || !node->output(i)) return false;
    node->output(i)->set_type(old->type());
  }
  check_shapes(*node);
  return true;
}

// Returns the input that an output of an update replaces.
Value* replaced(const Node& update, const Value* output) {
  const auto& outputs = update.outputs();
  const auto i = std::find(outputs.begin(), outputs.end(), output) - outputs.begin();
  return update.input(i == 0 ? 0 : static_cast<int>(i) + 1);
}

// Whether `node` is Where(guard, new, old) for an update's result and the tensor that it replaces, and all results of
// the update have this guard. Sets the type of the node's output.
bool is_guard_in(const Graph& body, Node* node) {
  if (!node->is("Where") || !node->input(1)->producer() || !is_update_of_one(*node->input(1)->producer())) return false;
  const Node& update = *node->input(1)->producer();
  const Value* guard = node->input(0);
  if (!body.is_input(guard) || guard->dtype() != DType::kBool || num_elements(guard->type().shape()) != 1 ||
      node->input(2) != replaced(update, node->input(1)))
    return false;
  for (const Value* output : update.outputs()) {
    if (output->uses().size() != 1 || body.is_output(output)) return false;
    const Node* reader = output->uses()[0].node;
    if (!reader->is("Where") || reader->input(0) != guard || reader->input(1) != output) return false;
  }
  node->output()->set_type(node->input(2)->type());
  return true;
}

// Whether the body has the form that merge_updates writes: constants, updates of the call's inputs, and guards that
// produce its outputs.
bool supports_all(const NodeSpec& spec) {
  const onnx::FunctionProto* body = function_of(spec.node());
  if (!body || body->input_size() != spec.num_inputs() || body->output_size() != spec.num_outputs()) return false;
  Graph scratch(spec.node().graph().shared_context());
  std::vector<Value*> inputs;
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!spec.has_input(i)) return false;
    inputs.push_back(scratch.add_input(concat("in", i), spec.node().input(i)->type()));
  }
  const auto outputs = instantiate(*body, spec.node().shell(), &scratch, nullptr, inputs, "body");
  for (Node* node = scratch.first(); node; node = node->next()) {
    if (node->is("Constant")) {
      infer_types(node);
    } else if (!(is_update_of_one(*node) && is_update_of(scratch, node)) && !is_guard_in(scratch, node)) {
      return false;
    }
  }
  for (int i = 0; i < spec.num_outputs(); ++i) {
    const Value* made = outputs[static_cast<size_t>(i)];
    if (!made || !made->producer() || made->producer()->is("Constant") || !spec.has_output(i)) return false;
    if (made->type() != spec.node().output(i)->type() || !made->uses().empty()) return false;
  }
  return true;
}

MultiTensorUpdate describe_all(const NodeSpec& spec) {
  const onnx::FunctionProto& body = *function_of(spec.node());
  Operands operands{spec, places_of(body.input()), places_of(body.output())};
  for (const onnx::NodeProto& node : body.node()) {
    if (node.op_type() == "Constant") operands.constants.emplace(node.output(0), number(node, "value"));
    if (node.op_type() == "Where") operands.guards.emplace(node.input(1), &node);
  }
  MultiTensorUpdate all;
  for (const onnx::NodeProto& node : body.node()) {
    if (node.op_type() != "Constant" && node.op_type() != "Where") add_update(&all, node, operands);
  }
  return all;
}

}  // namespace

std::vector<InPlace> MultiTensorUpdate::in_place() const {
  std::vector<InPlace> pairs;
  for (const TensorUpdate& u : tensors) {
    pairs.push_back({u.outputs[0], u.inputs[0]});
    for (int slot = 0; slot < 2 && u.outputs[1 + slot] >= 0; ++slot) {
      pairs.push_back({u.outputs[1 + slot], u.inputs[2 + slot]});
    }
  }
  return pairs;
}

const std::vector<UpdateRow>& update_rows() {
  static constexpr auto kSgdSupports = [](const NodeSpec& spec) { return has_supported_types(spec, 3); };
  static constexpr auto kAdamSupports = [](const NodeSpec& spec) { return has_supported_types(spec, 4); };
  static const std::vector<UpdateRow> rows = {
      {"Sgd", kSgdSupports, describe_one},
      {"Adam", kAdamSupports, describe_one},
      {"AdamW", kAdamSupports, describe_one},
      {"Updates", supports_all, describe_all},
  };
  return rows;
}

bool is_update_of_one(const Node& node) {
  const auto& rows = update_rows();
  return node.domain() == kDomain && std::any_of(rows.begin(), rows.end(), [&](const UpdateRow& row) {
           return row.describe == describe_one && node.op() == row.op;
         });
}

}  // namespace onnx_train
