#include <cmath>
#include <numbers>

#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double clip(double x, double low, double high) { return std::min(std::max(x, low), high); }

struct Activation {
  const char* op;
  Attrs attrs;
  std::function<double(double)> expected;
  std::vector<double> kinks = {};
  int64_t opset = 21;
  const char* domain = "";
};

std::vector<Activation> activations() {
  constexpr double kAlpha = 1.67326319217681884765625f, kGamma = 1.05070102214813232421875f;
  constexpr double kSlope = 0.01f;
  const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
  const auto gelu = [](double x) { return x * 0.5 * (1 + std::erf(x / std::numbers::sqrt2)); };
  const auto gelu_tanh = [](double x) {
    return x * 0.5 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  };
  return {
      {"Relu", {}, [](double x) { return std::max(x, 0.0); }, {0}},
      {"LeakyRelu", {}, [](double x) { return x < 0 ? kSlope * x : x; }, {0}},
      {"LeakyRelu", {{"alpha", 0.25f}}, [](double x) { return x < 0 ? 0.25 * x : x; }, {0}},
      {"Elu", {}, [](double x) { return x < 0 ? std::expm1(x) : x; }, {0}},
      {"Elu", {{"alpha", 0.5f}}, [](double x) { return x < 0 ? 0.5 * std::expm1(x) : x; }, {0}},
      {"Selu", {}, [](double x) { return kGamma * (x < 0 ? kAlpha * std::expm1(x) : x); }, {0}},
      {"Celu", {{"alpha", 2.0f}}, [](double x) { return x < 0 ? 2 * std::expm1(x / 2) : x; }, {0}},
      {"ThresholdedRelu", {{"alpha", 0.5f}}, [](double x) { return x > 0.5 ? x : 0; }, {0.5}},
      {"Shrink",
       {{"lambd", 0.5f}, {"bias", 0.25f}},
       [](double x) { return x > 0.5    ? x - 0.25
                             : x < -0.5 ? x + 0.25
                                        : 0; },
       {-0.5, 0.5}},
      {"Sigmoid", {}, sigmoid},
      {"HardSigmoid", {{"alpha", 0.25f}}, [](double x) { return clip(0.25 * x + 0.5, 0, 1); }, {-2, 2}},
      {"HardSwish", {}, [](double x) { return x * clip(x / 6 + 0.5, 0, 1); }, {-3, 3}},
      {"Tanh", {}, [](double x) { return std::tanh(x); }},
      {"Softplus", {}, softplus},
      {"Softsign", {}, [](double x) { return x / (1 + std::fabs(x)); }, {0}},
      {"Gelu", {}, gelu},
      {"Gelu", {{"approximate", "tanh"}}, gelu_tanh},
      {"Mish", {}, [=](double x) { return x * std::tanh(softplus(x)); }},
      {"Swish", {{"alpha", 1.5f}}, [](double x) { return x * sigmoid(1.5 * x); }, {}, 24},
      {"Swish", {{"alpha", 1.5f}}, [](double x) { return x * sigmoid(1.5 * x); }, {}, 21, "onnx_train"},
      {"Swish", {}, [](double x) { return x * sigmoid(x); }, {}, 21, "onnx_train"},
  };
}

std::vector<Shape> axis_shapes() { return {{4, 5}, {2, 3, 33}, {1, 1}, {0, 3}, {1, 0}, {2, 3, 0}, {70, 4}}; }

}  // namespace

std::vector<OpCase> activation_cases() {
  std::vector<OpCase> cases;
  for (const Activation& f : activations()) {
    for (const Shape& shape : std::vector<Shape>{{6, 9}, {1}, {}, {0, 3}}) {
      const auto expected = [=](const std::vector<Tensor>& x) {
        Tensor y = x[0].clone();
        for (int64_t i = 0; i < y.size(); ++i) y.set(i, f.expected(y.at(i)));
        return y;
      };
      cases.push_back({.op = f.op,
                       .inputs = {{shape, -4, 4, f.kinks}},
                       .attrs = f.attrs,
                       .domain = f.domain,
                       .expected = expected,
                       .opset = f.opset});
    }
  }
  for (const Shape& slope : std::vector<Shape>{{2, 3, 4}, {3, 1}, {1}, {4}}) {
    cases.push_back({.op = "PRelu", .inputs = {{{2, 3, 4}, -2, 2, {0}}, {slope}}});
  }
  for (const Shape& shape : axis_shapes()) {
    for (int axis = -static_cast<int>(shape.size()); axis < static_cast<int>(shape.size()); axis += 2) {
      const Attrs attrs = {{"axis", axis}};
      cases.push_back({.op = "Softmax", .inputs = {{shape, -3, 3}}, .attrs = attrs});
      cases.push_back({.op = "LogSoftmax", .inputs = {{shape, -3, 3}}, .attrs = attrs});
      cases.push_back(
          {.op = "Hardmax", .inputs = {{.shape = shape, .zero_gradient = true, .distinct = true}}, .attrs = attrs});
      for (const char* op : {"SoftmaxGrad", "LogSoftmaxGrad"}) {
        cases.push_back({.op = op, .inputs = {{shape}, {shape, -2, 0}}, .attrs = attrs, .domain = "onnx_train"});
      }
    }
  }
  cases.push_back({.op = "Softmax", .inputs = {{{4, 5}, -3, 3}}});
  for (const char* op : {"ReluGrad", "SigmoidGrad", "TanhGrad", "GeluGrad", "GeluTanhGrad"}) {
    for (const Shape& shape : std::vector<Shape>{{6, 9}, {1}, {}, {0, 3}}) {
      const bool only_sign = op == std::string("ReluGrad");  // is all it reads of its second input
      const OpInput x{.shape = shape, .low = -3, .high = 3, .away_from = {0}, .zero_gradient = only_sign};
      cases.push_back({.op = op, .inputs = {{shape}, x}, .domain = "onnx_train"});
    }
  }
  for (const Attrs& attrs : {Attrs{}, Attrs{{"alpha", 1.75f}}}) {
    for (const Shape& shape : std::vector<Shape>{{6, 9}, {1}, {}, {0, 3}}) {
      cases.push_back({.op = "SwishGrad", .inputs = {{shape}, {shape, -3, 3}}, .attrs = attrs, .domain = "onnx_train"});
    }
  }
  return cases;
}

}  // namespace onnx_train
