// Operators that compute element by element, with broadcasting or without.
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr const char* kUnary = "x[S...] -> y[S...]";
constexpr const char* kBinary = "a[~S...] b[~S...] -> y[S...]";
constexpr const char* kVariadic = "x[~S...] more*[~S...] -> y[S...]";
constexpr const char* kGradient = "dy[~S...] of[~S...] -> dx[S...]";

}  // namespace

std::vector<Operator> elementwise_operators() {
  std::vector<Operator> rows = {
      {"Clip", "x[S...] min?[] max?[] -> y[S...]"},
      {"PRelu", "x[S...] slope[~S...] -> y[S...]"},
      {"Where", "condition[~S...] a[~S...] b[~S...] -> y[S...]"},
      {"CastLike", "x[S...] like -> y[S...]"},
      {"BitCast", "x -> y"},
      {"Dropout", "x[S...] ratio?[] training_mode?[] -> y[S...] mask?[S...]"},
      {"SwishGrad", kGradient, kDomain, ElementTypes::kOneFloat},
      {"Swish", kUnary, kDomain, ElementTypes::kOneFloat},
      {"DropoutGrad", "dy[S...] mask:bool[S...] ratio:float[] -> dx[S...]", kDomain, ElementTypes::kOneFloat},
  };
  for (const char* op :
       {"Neg",    "Abs",     "Sign", "Relu",        "LeakyRelu", "Elu",      "Selu",     "Celu", "ThresholdedRelu",
        "Shrink", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Gelu", "Swish",
        "Mish",   "Sqrt",    "Exp",  "Reciprocal",  "Log",       "Erf",      "Floor",    "Ceil", "Round",
        "Sin",    "Cos",     "Tan",  "Asin",        "Acos",      "Atan",     "Sinh",     "Cosh", "Asinh",
        "Acosh",  "Atanh",   "Not",  "BitwiseNot",  "IsNaN",     "IsInf",    "Cast"}) {
    rows.push_back({op, kUnary});
  }
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Mod", "Pow", "Equal", "Less", "LessOrEqual", "Greater",
                         "GreaterOrEqual", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"}) {
    rows.push_back({op, kBinary});
  }
  for (const char* op : {"Max", "Min", "Sum", "Mean"}) rows.push_back({op, kVariadic});
  for (const char* op : {"ReluGrad", "SigmoidGrad", "TanhGrad", "GeluGrad", "GeluTanhGrad"}) {
    rows.push_back({op, kGradient, kDomain, ElementTypes::kOneFloat});
  }
  return rows;
}

}  // namespace onnx_train
