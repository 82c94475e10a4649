#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

const OpInput kRate = {.value = Tensor::scalar(0.125f)}, kScale = {.value = Tensor::scalar(0.75f)};

OpInput step(int64_t number) { return {.value = Tensor::scalar<int64_t>(number)}; }

OpCase row(const char* op, std::vector<OpInput> inputs, Attrs attrs, int num_outputs) {
  OpCase result{op, std::move(inputs), std::move(attrs), num_outputs, "onnx_train"};
  result.gradient = false;
  return result;
}

Attrs sgd_attributes(double momentum, double dampening, int nesterov, double weight_decay) {
  return {{"momentum", Tensor::scalar(momentum)},
          {"dampening", Tensor::scalar(dampening)},
          {"nesterov", nesterov},
          {"weight_decay", Tensor::scalar(weight_decay)}};
}

Attrs adam_attributes(double weight_decay) {
  return {{"beta1", Tensor::scalar(0.9)},
          {"beta2", Tensor::scalar(0.999)},
          {"epsilon", Tensor::scalar(1e-8)},
          {"weight_decay", Tensor::scalar(weight_decay)}};
}

OpCase adam(const char* op, const Shape& shape, int64_t number, double weight_decay) {
  const OpInput w = {shape}, first_moment = {shape}, second_moment = {shape, 0.1, 1};
  return row(op, {w, w, first_moment, second_moment, step(number), kRate, kScale}, adam_attributes(weight_decay), 3);
}

}  // namespace

std::vector<OpCase> optimizer_cases() {
  const OpInput w = {{7, 5}}, large = {{130, 300}}, empty = {{0, 3}}, absent = {.absent = true};
  return {
      row("Sgd", {w, w, absent, step(1), kRate, kScale}, sgd_attributes(0, 0, 0, 0.01), 1),
      row("Sgd", {w, w, w, step(1), kRate, kScale}, sgd_attributes(0.9, 0.5, 0, 0), 2),
      row("Sgd", {w, w, w, step(4), kRate, kScale}, sgd_attributes(0.9, 0.5, 0, 0.1), 2),
      row("Sgd", {large, large, large, step(2), kRate, kScale}, sgd_attributes(0.9, 0, 1, 0.1), 2),
      row("Sgd", {empty, empty, empty, step(2), kRate, kScale}, sgd_attributes(0.9, 0, 1, 0.1), 2),
      adam("Adam", {7, 5}, 1, 0.1),
      adam("Adam", {}, 5, 0),
      adam("AdamW", {130, 300}, 3, 0.1),
      adam("AdamW", {1}, 1000, 0),
      adam("AdamW", {0}, 1, 0),
      row("GlobalNorm", {w, large, empty, {{}}}, {}, 1),
      row("GlobalNorm", {w}, {}, 1),
  };
}

}  // namespace onnx_train
