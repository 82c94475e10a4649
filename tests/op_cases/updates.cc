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

// What stands at a repeated place, a negative one, is not added.
OpCase sparse_sgd(const Shape& table, const std::vector<int64_t>& places) {
  Shape rows = table;
  rows[0] = std::ssize(places);
  const OpInput at{.value = Tensor::ints(places), .dtype = DType::kInt64};
  return row("SparseSgd", {{table}, {rows}, at, kRate, kScale}, {}, 1);
}

}  // namespace

std::vector<OpCase> update_cases() {
  const OpInput w = {{7, 5}}, large = {{130, 300}}, empty = {{0, 3}}, absent = {.absent = true};
  std::vector<int64_t> every_third;
  for (int64_t i = 0; i < 900; i += 3) every_third.push_back(i);
  return {
      row("Sgd", {w, w, absent, step(1), kRate, kScale}, sgd_attributes(0, 0, 0, 0.01), 1),
      row("Sgd", {w, w, w, step(1), kRate, kScale}, sgd_attributes(0.9, 0.5, 0, 0), 2),
      row("Sgd", {w, w, w, step(4), kRate, kScale}, sgd_attributes(0.9, 0.5, 0, 0.1), 2),
      row("Sgd", {large, large, large, step(2), kRate, kScale}, sgd_attributes(0.9, 0, 1, 0.1), 2),
      row("Sgd", {empty, empty, empty, step(2), kRate, kScale}, sgd_attributes(0.9, 0, 1, 0.1), 2),
      sparse_sgd({7, 5}, {3, 0, -4, 6, -7}),
      sparse_sgd({4}, {2}),
      sparse_sgd({1, 2, 3}, {0, -1}),
      sparse_sgd({4, 3}, {}),
      sparse_sgd({900, 70}, every_third),
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
