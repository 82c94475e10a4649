#include "runtime/onnxruntime/optimizer_model.h"

#include "onnx_passes/ir/error.h"
#include "runtime/onnxruntime/training_checkpoint.h"

namespace onnx_train {
namespace {

constexpr const char* kAnother = "; give another optimizer: --optimizer";

float attribute_of(const onnx::NodeProto& node, const std::string& name, float otherwise) {
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() == name)
      return attribute.type() == onnx::AttributeProto::INT ? static_cast<float>(attribute.i()) : attribute.f();
  }
  return otherwise;
}

// Numbers are what their user has written, 0.999, and not the float that is next to it, 0.9990000128746033.
std::string adamw(const onnx::NodeProto& node, const std::string& learning_rate) {
  constexpr float kAsPyTorch = 0;
  const auto number = [&](const char* name, float otherwise) {
    return float_text(attribute_of(node, name, otherwise));
  };
  const std::string numbers =
      concat("lr=", learning_rate, ", betas=(", number("alpha", 0.9f), ", ", number("beta", 0.999f),
             "), eps=", number("epsilon", 1e-8f), ", weight_decay=", number("weight_decay", 1e-2f));
  const bool corrects = attribute_of(node, "correct_bias", 1) != 0;
  if (attribute_of(node, "adam_mode", kAsPyTorch) != kAsPyTorch)
    return concat("hf_adamw(", numbers, corrects ? "" : ", correct_bias=false", ")");
  if (!corrects)
    fail("the optimizer is AdamW as PyTorch's, without correction of the bias, which is not here", kAnother);
  return concat("adamw(", numbers, ")");
}

}  // namespace

RecoveredOptimizer recover_optimizer(const onnx::GraphProto& graph, const std::string& learning_rate) {
  RecoveredOptimizer result;
  for (const onnx::NodeProto& node : graph.node()) {
    if (node.op_type() == "InplaceClipGradNorm") {
      result.clip_norm = static_cast<double>(attribute_of(node, "max_norm", 1));
      continue;
    }
    if (!result.expression.empty())
      fail("the optimizer has more than one update, '", node.name(), "' among them", kAnother);
    if (node.op_type() == "AdamWOptimizer") {
      result.expression = adamw(node, learning_rate);
    } else if (node.op_type() == "SGDOptimizerV2") {
      result.expression = concat("sgd(lr=", learning_rate, ")");
    } else {
      fail("the optimizer has the node '", node.name(), "' (", node.op_type(), "), which is no AdamW or SGD", kAnother);
    }
  }
  if (result.expression.empty()) fail("the optimizer has no update", kAnother);
  return result;
}

}  // namespace onnx_train
