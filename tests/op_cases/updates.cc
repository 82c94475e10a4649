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

// A gradient of the table's rows or of some, of which every third row is zero.
Tensor some_rows_of_zeros(Shape shape) {
  Tensor g(DType::kFloat, std::move(shape));
  const int64_t columns = g.size() / std::max<int64_t>(g.shape()[0], 1);
  for (int64_t i = 0; i < g.size(); ++i) {
    if (i / columns % 3 != 2) g.set(i, static_cast<double>(i * 37 % 23 - 11) / 11);
  }
  return g;
}

// `places`: of SparseAdamRows; null for SparseAdam.
OpCase sparse_adam(const Shape& table, const std::vector<int64_t>* places, int64_t number) {
  Shape rows = table;
  if (places) rows[0] = std::ssize(*places);
  std::vector<OpInput> inputs = {{table}, {.value = some_rows_of_zeros(rows)}};
  if (places) inputs.push_back({.value = Tensor::ints(*places), .dtype = DType::kInt64});
  inputs.insert(inputs.end(), {{table}, {table, 0.1, 1}, step(number), kRate, kScale});
  OpCase result =
      row(places ? "SparseAdamRows" : "SparseAdam", std::move(inputs),
          {{"beta1", Tensor::scalar(0.9)}, {"beta2", Tensor::scalar(0.99)}, {"epsilon", Tensor::scalar(1e-6)}}, 3);
  result.dynamic = false;  // a gradient of a given shape
  return result;
}

// Of an optimizer without a kernel. Slots are at least 0.1, as means of squares are; one without a shape is absent.
OpCase bodied(const char* op, const Shape& shape, const std::vector<Shape>& slots, int64_t number, Attrs attrs,
              double weight_decay = 0.1) {
  std::vector<OpInput> inputs = {{shape}, {.shape = shape, .away_from = {0}}};
  for (const Shape& slot : slots) inputs.push_back({slot, 0.1, 1});
  inputs.insert(inputs.end(), {step(number), kRate, kScale});
  attrs.emplace_back("weight_decay", Tensor::scalar(weight_decay));
  return row(op, std::move(inputs), std::move(attrs), static_cast<int>(1 + slots.size()));
}

OpCase without_slot(OpCase given, size_t slot) {
  given.inputs[2 + slot] = {.absent = true};
  --given.num_outputs;
  return given;
}

Attrs numbers(const std::vector<std::pair<const char*, double>>& values) {
  Attrs attrs;
  for (const auto& [name, value] : values) attrs.emplace_back(name, Tensor::scalar(value));
  return attrs;
}

Attrs with(Attrs attrs, const char* name, int value) {
  attrs.emplace_back(name, value);
  return attrs;
}

// AdamW with moments in blocks of 256 bytes, the last one filled up.
OpCase quantized(const Shape& shape, int64_t number) {
  const int64_t blocks = (num_elements(shape) + 255) / 256;
  const OpInput places = {.shape = {blocks, 256}, .low = 0, .high = 255, .dtype = DType::kUint8};
  const OpInput maxima = {{blocks, 1}, 0.1, 1};
  OpCase result = row("AdamW8bit", {{shape}, {shape}, places, maxima, places, maxima, step(number), kRate, kScale},
                      adam_attributes(0.1), 5);
  result.dynamic = false;  // a weight's shape is known
  return result;
}

void add_bodied(std::vector<OpCase>* cases) {
  const Shape w = {7, 5}, filter = {6, 2, 3, 3}, vector = {9};
  const Attrs moments = numbers({{"beta1", 0.9}, {"beta2", 0.99}, {"epsilon", 1e-6}});
  const Attrs three_moments = numbers({{"beta1", 0.98}, {"beta2", 0.92}, {"beta3", 0.99}, {"epsilon", 1e-6}});
  const Attrs rms = with(numbers({{"alpha", 0.9}, {"epsilon", 1e-6}, {"momentum", 0.8}}), "centered", 1);
  const Attrs factored = numbers({{"beta2_decay", -0.8}, {"epsilon1", 0}, {"epsilon2", 1e-3}, {"d", 0.5}});
  const Attrs lars = numbers({{"momentum", 0.9}, {"dampening", 0.1}, {"trust_coeff", 0.02}, {"epsilon", 1e-8}});
  const Attrs muon =
      with(with(numbers({{"momentum", 0.9}, {"epsilon", 1e-7}, {"rate_scale", 1.5}}), "nesterov", 1), "ns_steps", 5);
  const OpCase rms_prop = bodied("RmsProp", w, {w, w, w}, 3, rms);
  // The mean of squares must not be less than the square of the mean.
  OpCase centered = rms_prop;
  centered.inputs[4] = {w, -0.1, 0.1};
  OpCase nadam = bodied("NAdam", w, {w, w, {}}, 3,
                        numbers({{"beta1", 0.9}, {"beta2", 0.99}, {"epsilon", 1e-6}, {"momentum_decay", 0.004}}));
  nadam.inputs[4] = {{}, 0.4, 0.5};
  OpCase tall = bodied("Muon", {12, 4}, {{12, 4}}, 2, muon);
  for (OpCase matrix : {tall, bodied("Muon", {4, 12}, {{4, 12}}, 2, muon), bodied("Muon", filter, {filter}, 1, muon)}) {
    matrix.tolerance = 1e-4;  // the steps of Newton and Schulz enlarge small singular values
    matrix.dynamic = false;   // a weight's shape is known
    cases->push_back(matrix);
  }
  const Attrs averaging =
      numbers({{"beta1", 0.9}, {"beta2", 0.99}, {"epsilon", 1e-6}, {"r", 0}, {"weight_lr_power", 2}});
  const OpCase schedule_free = bodied("ScheduleFreeAdamW", w, {w, w, {}, {}, w}, 2, averaging);
  OpCase of_matrix = bodied("Adafactor", w, {{7, 1}, {1, 5}, {}}, 3, factored);
  cases->insert(cases->end(),
                {bodied("Amsgrad", w, {w, w, w}, 3, moments),
                 bodied("AmsgradW", {}, {{}, {}, {}}, 1, moments),
                 centered,
                 without_slot(without_slot(rms_prop, 1), 2),
                 bodied("Adagrad", w, {w}, 4, numbers({{"lr_decay", 0.1}, {"epsilon", 1e-10}})),
                 bodied("Adadelta", w, {w, w}, 2, numbers({{"rho", 0.9}, {"epsilon", 1e-6}})),
                 bodied("Adamax", w, {w, w}, 2, moments),
                 nadam,
                 bodied("RAdam", w, {w, w}, 2, moments),
                 bodied("RAdam", w, {w, w}, 50, with(moments, "decoupled", 1)),
                 bodied("Lion", w, {w}, 2, moments),
                 bodied("HfAdamW", w, {w, w}, 3, with(moments, "correct_bias", 1)),
                 bodied("HfAdamW", w, {w, w}, 3, with(moments, "correct_bias", 0)),
                 bodied("Adan", w, {w, w, w, w}, 1, three_moments),
                 bodied("Adan", w, {w, w, w, w}, 3, with(three_moments, "no_prox", 1)),
                 schedule_free,
                 without_slot(of_matrix, 2),
                 without_slot(without_slot(bodied("Adafactor", vector, {{}, {}, vector}, 1, factored), 0), 1),
                 bodied("Lamb", w, {w, w}, 3, moments),
                 bodied("Lamb", {0}, {{0}, {0}}, 3, moments),
                 bodied("Lamb", vector, {vector, vector}, 3, moments, 0),
                 quantized({30, 17}, 3),
                 quantized({512}, 1),
                 bodied("Lars", w, {w}, 1, lars),
                 bodied("Lars", vector, {vector}, 2, with(with(lars, "nesterov", 1), "always_adapt", 1), 0),
                 without_slot(bodied("Lars", vector, {vector}, 2, lars, 0), 0)});
}

}  // namespace

std::vector<OpCase> update_cases() {
  const OpInput w = {{7, 5}}, large = {{130, 300}}, empty = {{0, 3}}, absent = {.absent = true};
  std::vector<int64_t> every_third;
  for (int64_t i = 0; i < 900; i += 3) every_third.push_back(i);
  const std::vector<int64_t> named = {3, 0, -4, 6, -7};
  std::vector<OpCase> cases = {
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
      sparse_adam({7, 5}, nullptr, 1),
      sparse_adam({900, 3, 4}, nullptr, 3),
      sparse_adam({0, 4}, nullptr, 3),
      sparse_adam({7, 5}, &named, 2),
      sparse_adam({900, 70}, &every_third, 7),
      adam("Adam", {7, 5}, 1, 0.1),
      adam("Adam", {}, 5, 0),
      adam("AdamW", {130, 300}, 3, 0.1),
      adam("AdamW", {1}, 1000, 0),
      adam("AdamW", {0}, 1, 0),
      row("GlobalNorm", {w, large, empty, {{}}}, {}, 1),
      row("GlobalNorm", {w}, {}, 1),
  };
  add_bodied(&cases);
  return cases;
}

}  // namespace onnx_train
