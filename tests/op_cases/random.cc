#include "tests/op_cases/op_case.h"

namespace onnx_train {

namespace {

// ONNX's own, which a session draws from a key of its own: two sessions draw the same numbers.
void add_standard(std::vector<OpCase>* cases) {
  const auto add = [&](const char* op, std::vector<OpInput> inputs, Attrs attrs) {
    cases->push_back({.op = op,
                      .inputs = std::move(inputs),
                      .attrs = std::move(attrs),
                      .gradient = false,
                      .no_derivative = "each run draws other numbers"});
  };
  for (const Shape& shape : {Shape{4, 3, 5}, Shape{7}, Shape{}, Shape{0, 4}}) {
    const OpInput x = {.shape = shape}, p = {.shape = shape, .low = -0.5, .high = 1.5};
    add("RandomNormal", {}, {{"shape", shape}, {"mean", 2.0f}, {"scale", 0.5f}});
    add("RandomUniform", {}, {{"shape", shape}, {"low", -1.0f}, {"seed", 3.0f}});
    add("RandomNormalLike", {x}, {{"mean", 2.0f}, {"scale", 0.5f}});
    add("RandomUniformLike", {x}, {{"low", -1.0f}, {"high", 2.0f}});
    add("Bernoulli", {p}, {});
    add("Bernoulli", {p}, {{"dtype", static_cast<int>(DType::kInt32)}});
  }
  for (const Shape& shape : {Shape{3, 5}, Shape{0, 4}, Shape{2, 1}}) {
    for (const DType dtype : {DType::kInt32, DType::kInt64}) {
      add("Multinomial", {{.shape = shape}}, {{"sample_size", 4}, {"dtype", static_cast<int>(dtype)}});
    }
  }
}

}  // namespace

std::vector<OpCase> random_cases() {
  std::vector<OpCase> cases;
  const OpInput key = {{2}, 0, 0, {}, Tensor::of<uint64_t>({2}, {0x123456789abcdef, 77})};
  const auto scalar = [](float value, std::string no_derivative = "") {
    return OpInput{.value = Tensor::scalar(value), .no_derivative = std::move(no_derivative)};
  };
  const auto mask = [](Shape shape) { return OpInput{std::move(shape), 0, 2, {}, {}, DType::kBool}; };

  for (const Shape& shape : {Shape{4, 3, 5}, Shape{1}, Shape{}, Shape{0, 4}, Shape{40, 65}}) {
    const OpInput x = {shape};
    // In a large tensor, some number is so close to the ratio that the mask jumps between two differences.
    const std::string jumps = shape == Shape{40, 65} ? "the mask jumps" : "";
    cases.push_back({"Dropout", {x, key, scalar(0, "there are no ratios below")}, {{"stream", 3}}, 2, "onnx_train"});
    cases.push_back({"Dropout", {x, key, scalar(0.3f, jumps)}, {{"stream", 3}}, 2, "onnx_train"});
    cases.push_back({"Dropout", {x, key, scalar(1, "there are no ratios above")}, {{"stream", 3}}, 2, "onnx_train"});
    cases.push_back({"Dropout", {x, key, scalar(0.5f, jumps)}, {{"stream", 4}}, 1, "onnx_train"});
    cases.push_back({"DropoutGrad", {x, mask(shape), scalar(0.3f)}, {}, 1, "onnx_train"});
    const auto dims = OpInput{{}, 0, 0, {}, Tensor::ints(shape), DType::kInt64, true};
    for (const char* op : {"RandomUniform", "RandomNormal"}) {
      cases.push_back({.op = op,
                       .inputs = {key, dims},
                       .attrs = {{"stream", 9}},
                       .domain = "onnx_train",
                       .gradient = false,
                       .dynamic = false});
    }
  }
  cases.push_back({"Dropout", {{{3, 4}}}});  // ONNX's own, in inference
  add_standard(&cases);
  return cases;
}

}  // namespace onnx_train
