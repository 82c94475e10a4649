// Batch normalization fused with the operations that usually follow: y = relu(normalized + residual), the epilogue
// "relu" or "residual, relu" (onnx_passes/operators/epilogue.h). In mixed precision, round_to is the type to which
// every result before Relu is rounded. The gradient has the epilogue "relu" if the normalization ends with it: then it
// reads y, and its output dz is the gradient of Relu's operand. fuse_batch_normalization.cc emits these functions.
#include <algorithm>

#include "kernels/functions/functions.h"
#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/epilogue.h"

namespace onnx_train {
namespace {

// Returns the function `op`, with `parameters` and with `more_outputs` after y: `normalize` adds the node that computes
// them.
FunctionText with_epilogue(const FunctionCall& call, const std::string& op, const std::string& parameters,
                           const std::string& more_outputs,
                           const std::function<Terms(Body&, const Terms& parameters)>& normalize) {
  const auto count = static_cast<size_t>(1 + std::count(parameters.begin(), parameters.end(), ','));
  const Epilogue epilogue = epilogue_of(call.attrs);
  if (!has_step(epilogue, EpilogueStep::kRelu))
    fail("no body of ", op, " has the epilogue '", to_string(epilogue), "'");
  const bool adds = has_step(epilogue, EpilogueStep::kResidual), rounds = is_set(call.attrs, "round_to");
  Body f(concat(op, " <", kEpilogue, ": string, round_to: int = 0, epsilon: float = 1e-5> (", parameters,
                adds ? ", residual" : "", ") => (y", more_outputs, ")"),
         call);
  f.depends_on(concat(rounds ? "rounded_" : "", adds ? "add_" : "", "relu"));
  const auto rounded = [&](const Term& y) {
    return rounds ? cast_like(f.op("Cast", {y}, "to: int = @round_to"), f.input("x")) : y;
  };
  Terms inputs = f.inputs();
  inputs.resize(count);
  Terms outputs = normalize(f, inputs);
  outputs[0] = rounded(outputs[0]);
  if (adds) outputs[0] = rounded(outputs[0] + f.input("residual"));
  outputs[0] = f.op("Relu", {outputs[0]});
  return f.text(outputs);
}

constexpr const char* kEpsilon = "epsilon: float = @epsilon";

FunctionText batch_normalization(const FunctionCall& call) {
  return with_epilogue(call, "BatchNormalization", "x, scale, bias, mean, var", "", [](Body& f, const Terms& inputs) {
    return Terms{f.op("BatchNormalization", inputs, kEpsilon)};
  });
}

FunctionText batch_normalization_train(const FunctionCall& call) {
  constexpr const char* kOp = "BatchNormalizationTrain";
  if (epilogue_of(call.attrs).empty()) return find_function(kOp).text(call);
  return with_epilogue(call, kOp, "x, scale, bias", ", mean, var",
                       [](Body& f, const Terms& inputs) { return f.apply(kOp, 3, inputs, kEpsilon); });
}

FunctionText batch_normalization_grad(const FunctionCall& call) {
  constexpr const char* kOp = "BatchNormalizationGrad";
  if (epilogue_of(call.attrs).empty()) return find_function(kOp).text(call);
  Body f(concat(kOp, " <", kEpilogue,
                ": string, epsilon: float = 1e-5> (x, scale, mean, var, dy, y) => (dx, dscale, dbias, dz)"),
         call);
  f.depends_on("relu");
  const Term dz = where(f.input("y") > 0, f.input("dy"), 0);
  Terms inputs = f.inputs();
  inputs.resize(4);
  inputs.push_back(dz);
  Terms outputs = f.apply(kOp, 3, inputs, kEpsilon);
  outputs.push_back(dz);
  return f.text(outputs);
}

}  // namespace

std::vector<FunctionRow> batch_normalization_functions() {
  return {
      {"BatchNormalization", batch_normalization},
      {"BatchNormalizationTrain", batch_normalization_train},
      {"BatchNormalizationGrad", batch_normalization_grad},
  };
}

}  // namespace onnx_train
