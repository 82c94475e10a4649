// Operators that compute element by element, with broadcasting or without.
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr const char* kUnary = "x[S...] -> y[S...]";
constexpr const char* kBinary = "a[~S...] b[~S...] -> y[S...]";
constexpr const char* kVariadic = "x[~S...] more*[~S...] -> y[S...]";
constexpr const char* kGradient = "dy[~S...] of[~S...] -> dx[S...]";

// Facts of a row, to be combined.
enum Fact : unsigned {
  kOurs = 1,        // in our domain, one float type for all
  kActivation = 2,  // PrecisionRole::kActivation
  kCheap = 4,
  kSelects = 8,  // from input 0
  kSelectsAll = 16,
  kSettings = 32,  // inputs but the first one
};

struct Row {
  const char* op;
  const char* shapes;
  unsigned facts = 0;
  NeutralOperand neutral = {};
};

constexpr InputRange kBoth = {0, 2}, kSecond = {1, 2};

constexpr Row kRows[] = {
    {"Neg", kUnary, kActivation | kCheap | kSelects},
    {"Abs", kUnary, kActivation | kCheap | kSelects},
    {"Sign", kUnary},
    {"Floor", kUnary},
    {"Ceil", kUnary},
    {"Round", kUnary},
    {"Sqrt", kUnary, kCheap},
    {"Reciprocal", kUnary},
    {"Exp", kUnary},
    {"Log", kUnary},
    {"Erf", kUnary, kActivation},
    {"Sin", kUnary},
    {"Cos", kUnary},
    {"Tan", kUnary},
    {"Asin", kUnary},
    {"Acos", kUnary},
    {"Atan", kUnary},
    {"Sinh", kUnary},
    {"Cosh", kUnary},
    {"Asinh", kUnary},
    {"Acosh", kUnary},
    {"Atanh", kUnary},
    {"Not", kUnary, kCheap},
    {"BitwiseNot", kUnary},
    {"IsNaN", kUnary},
    {"IsInf", kUnary},
    {"Cast", kUnary, kCheap},
    {"CastLike", "x[S...] like -> y[S...]", kSettings},
    {"BitCast", "x -> y"},

    {"Relu", kUnary, kActivation | kCheap | kSelects},
    {"LeakyRelu", kUnary, kActivation},
    {"Elu", kUnary, kActivation},
    {"Selu", kUnary, kActivation},
    {"Celu", kUnary, kActivation},
    {"ThresholdedRelu", kUnary, kActivation},
    {"Shrink", kUnary},
    {"Clip", "x[S...] min?[] max?[] -> y[S...]", kActivation | kCheap | kSettings},
    {"Sigmoid", kUnary, kActivation},
    {"HardSigmoid", kUnary, kActivation},
    {"HardSwish", kUnary, kActivation},
    {"Tanh", kUnary, kActivation},
    {"Softplus", kUnary, kActivation},
    {"Softsign", kUnary, kActivation},
    {"Gelu", kUnary, kActivation},
    {"Swish", kUnary, kActivation},
    {"Swish", kUnary, kActivation | kOurs},
    {"Mish", kUnary, kActivation},

    {"Add", kBinary, kActivation | kCheap, {0, kBoth}},
    {"Sub", kBinary, kActivation | kCheap, {0, kSecond}},
    {"Mul", kBinary, kActivation | kCheap, {1, kBoth}},
    {"Div", kBinary, kActivation | kCheap, {1, kSecond}},
    {"Mod", kBinary, kSettings},
    {"Pow", kBinary, kSettings, {1, kSecond}},
    {"Max", kVariadic, kActivation | kCheap | kSelectsAll},
    {"Min", kVariadic, kActivation | kCheap | kSelectsAll},
    {"Sum", kVariadic, kActivation},
    {"Mean", kVariadic},
    {"Equal", kBinary, kCheap},
    {"Less", kBinary, kCheap},
    {"LessOrEqual", kBinary, kCheap},
    {"Greater", kBinary, kCheap},
    {"GreaterOrEqual", kBinary, kCheap},
    {"And", kBinary, kCheap, {1, kBoth}},
    {"Or", kBinary, kCheap, {0, kBoth}},
    {"Xor", kBinary},
    {"BitwiseAnd", kBinary},
    {"BitwiseOr", kBinary},
    {"BitwiseXor", kBinary},
    {"BitShift", kBinary},

    {"ReluGrad", kGradient, kOurs | kSelects},
    {"SigmoidGrad", kGradient, kOurs},
    {"TanhGrad", kGradient, kOurs},
    {"GeluGrad", kGradient, kOurs},
    {"GeluTanhGrad", kGradient, kOurs},
    {"SwishGrad", kGradient, kOurs},
    {"FakeQuantize", "x[S...] scale[] -> y[S...]", kOurs},
    {"DropoutGrad", "dy[S...] mask:bool[S...] ratio:float[] -> dx[S...]", kOurs},
};

}  // namespace

std::vector<Operator> elementwise_operators() {
  std::vector<Operator> rows;
  for (const Row& row : kRows) {
    Operator made{row.op, row.shapes};
    made.kind = OperatorKind::kElementwise;
    if (row.facts & kOurs) {
      made.domain = kDomain;
      made.types = ElementTypes::kOneFloat;
    }
    if (row.facts & kActivation) made.precision = PrecisionRole::kActivation;
    if (row.facts & kSelects) made.selects = {0, 1};
    if (row.facts & kSelectsAll) made.selects = {0, InputRange::kAll};
    if (row.facts & kSettings) made.settings = {1, InputRange::kAll};
    made.neutral = row.neutral;
    made.cheap = row.facts & kCheap;
    rows.push_back(made);
  }
  const auto elementwise = [](const char* op, const char* shapes) {
    return Operator{op, shapes}.of_kind(OperatorKind::kElementwise).in_precision(PrecisionRole::kActivation);
  };
  rows.push_back(elementwise("PRelu", "x[S...] slope[~S...] -> y[S...]").weights_at({1}));
  rows.push_back(elementwise("Where", "condition[~S...] a[~S...] b[~S...] -> y[S...]").selecting({1, 3}));
  rows.back().cheap = true;
  rows.push_back(Operator{"Dropout", "x[S...] ratio?[] training_mode?[] -> y[S...] mask?[S...]"}.with_settings(
      {1, InputRange::kAll}));
  return rows;
}

}  // namespace onnx_train
