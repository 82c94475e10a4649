// Batch normalization fused with the operations that usually follow: y = relu(normalized + residual), the epilogue
// "relu" or "residual, relu" (onnx_passes/operators/epilogue.h). In mixed precision, round_to is the type to which
// every result before Relu is rounded. The gradient has the epilogue "relu" if the normalization ends with it: then it
// reads y, and its output dz is the gradient of Relu's operand. fuse_batch_normalization.cc emits these functions.
#include "kernels/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/epilogue.h"

namespace onnx_train {
namespace {

// Returns the function `op`: `normalization` computes y, and perhaps other outputs, from `parameters`.
FunctionText with_epilogue(const FunctionCall& call, const std::string& op, const std::string& parameters,
                           const std::string& more_outputs, const std::string& normalization) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  if (!has_step(epilogue, EpilogueStep::kRelu))
    fail("no body of ", op, " has the epilogue '", to_string(epilogue), "'");
  const bool adds = has_step(epilogue, EpilogueStep::kResidual), rounds = is_set(call.attrs, "round_to");
  std::string text = concat(op, " <", kEpilogue, ": string, round_to: int = 0, epsilon: float = 1e-5> (", parameters,
                            adds ? ", residual" : "", ") => (y", more_outputs, ")\n{\n  normalized", more_outputs,
                            " = ", normalization, " <epsilon: float = @epsilon> (", parameters, ")\n");
  std::string last = "normalized";
  const auto round = [&] {
    if (!rounds) return;
    text += concat("  narrow_", last, " = Cast <to: int = @round_to> (", last, ")\n  rounded_", last,
                   " = CastLike (narrow_", last, ", x)\n");
    last = "rounded_" + last;
  };
  round();
  if (adds) {
    text += concat("  sum = Add (", last, ", residual)\n");
    last = "sum";
    round();
  }
  text += concat("  y = Relu (", last, ")\n}");
  return {text, concat(rounds ? "rounded_" : "", adds ? "add_" : "", "relu")};
}

FunctionText batch_normalization(const FunctionCall& call) {
  return with_epilogue(call, "BatchNormalization", "x, scale, bias, mean, var", "", "BatchNormalization");
}

FunctionText batch_normalization_train(const FunctionCall& call) {
  constexpr const char* kOp = "BatchNormalizationTrain";
  if (epilogue_of(call.attrs).empty()) return find_function(kOp).text(call);
  FunctionText made = with_epilogue(call, kOp, "x, scale, bias", ", mean, var", concat(kDomain, ".", kOp));
  made.inner = kOp;
  return made;
}

constexpr const char* kBatchNormalizationGrad = R"(
BatchNormalizationGrad <epilogue: string, epsilon: float = 1e-5> (x, scale, mean, var, dy, y) => (dx, dscale, dbias, dz)
{
  zero_float = Constant <value: tensor = float {0}> ()
  zero = CastLike (zero_float, y)
  positive = Greater (y, zero)
  dz = Where (positive, dy, zero)
  dx, dscale, dbias = onnx_train.BatchNormalizationGrad <epsilon: float = @epsilon> (x, scale, mean, var, dz)
}
)";

FunctionText batch_normalization_grad(const FunctionCall& call) {
  constexpr const char* kOp = "BatchNormalizationGrad";
  return epilogue_of(call.attrs).empty() ? find_function(kOp).text(call)
                                         : FunctionText{kBatchNormalizationGrad, "relu", kOp};
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
