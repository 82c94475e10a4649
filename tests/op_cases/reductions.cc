#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

OpInput axes(const std::vector<int64_t>& values) {
  return {.shape = {}, .value = Tensor::ints(values), .dtype = DType::kInt64, .constant = true};
}

// Shapes and axes that every reduction meets: rows, columns, both ends, the middle, all, negative, none, size 1.
std::vector<OpCase> reduction(const std::string& op, const OpInput& x) {
  struct Form {
    Shape shape;
    std::vector<int64_t> axes;
    int keepdims;
  };
  const std::vector<Form> forms = {
      {{3, 4}, {1}, 1},        {{3, 4}, {0}, 0},          {{2, 3, 4, 5}, {0, 2, 3}, 1},
      {{2, 3, 4}, {1}, 0},     {{2, 3, 4}, {0, 1, 2}, 0}, {{3, 1, 4}, {-2}, 0},
      {{2, 3, 4}, {-1, 0}, 0}, {{5, 40}, {1}, 1},         {{70, 3}, {0}, 1},
  };
  std::vector<OpCase> rows;
  for (const Form& form : forms) {
    OpInput input = x;
    input.shape = form.shape;
    rows.push_back({.op = op, .inputs = {input, axes(form.axes)}, .attrs = {{"keepdims", form.keepdims}}});
  }
  OpInput input = x;
  input.shape = {2, 3, 4};
  rows.push_back({.op = op, .inputs = {input}});
  rows.push_back({.op = op, .inputs = {input}, .attrs = {{"keepdims", 0}}});
  rows.push_back({.op = op, .inputs = {input, axes({})}, .attrs = {{"keepdims", 0}}});
  rows.push_back({.op = op, .inputs = {input}, .attrs = {{"noop_with_empty_axes", 1}}});
  rows.push_back({.op = op, .inputs = {input, axes({})}, .attrs = {{"noop_with_empty_axes", 1}, {"keepdims", 0}}});
  input.shape = {};
  rows.push_back({.op = op, .inputs = {input}});
  return rows;
}

// An empty input: of the rows that are left, and of what is reduced.
std::vector<OpCase> empty(const std::string& op) {
  return {
      {.op = op, .inputs = {{.shape = {0, 4}}, axes({1})}},
      {.op = op, .inputs = {{.shape = {0, 4}}, axes({0})}, .dynamic = false},
  };
}

void append(std::vector<OpCase>* all, std::vector<OpCase> rows) {
  for (OpCase& row : rows) all->push_back(std::move(row));
}

// Σ over everything, the slow way.
Tensor naive_sum(const std::vector<Tensor>& inputs) {
  double sum = 0;
  for (int64_t i = 0; i < inputs[0].size(); ++i) sum += inputs[0].at(i);
  return Tensor::scalar<double>(sum);
}

}  // namespace

std::vector<OpCase> reduction_cases() {
  const OpInput any, positive{.shape = {}, .low = 0.5, .high = 2}, distinct{.shape = {}, .distinct = true};
  const OpInput away_from_zero{.shape = {}, .away_from = {0}};
  std::vector<OpCase> all;
  append(&all, reduction("ReduceSum", any));
  append(&all, reduction("ReduceMean", any));
  append(&all, reduction("ReduceMax", distinct));
  append(&all, reduction("ReduceMin", distinct));
  append(&all, reduction("ReduceProd", away_from_zero));
  append(&all, reduction("ReduceL1", away_from_zero));
  append(&all, reduction("ReduceL2", away_from_zero));
  append(&all, reduction("ReduceLogSum", positive));
  append(&all, reduction("ReduceLogSumExp", any));
  append(&all, reduction("ReduceSumSquare", any));
  for (const char* op : {"ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceProd"}) append(&all, empty(op));
  // More elements than one piece takes, and an order of summation that does not depend on threads.
  all.push_back(
      {.op = "ReduceSum", .inputs = {{.shape = {300, 700}}}, .attrs = {{"keepdims", 0}}, .expected = naive_sum});
  all.push_back({.op = "ReduceMean", .inputs = {{.shape = {3000, 5}}, axes({0})}});
  all.push_back({.op = "ReduceMean", .inputs = {{.shape = {90, 3, 4, 5}}, axes({2, 3})}});  // many short rows
  all.push_back({.op = "ReduceSum", .inputs = {{.shape = {60, 3, 500}}, axes({0, 2})}});
  // Zeros among the factors: one, and two.
  all.push_back(
      {.op = "ReduceProd",
       .inputs = {{.shape = {3, 3}, .value = Tensor::of<float>({3, 3}, {2, 0, 3, 0, 0, 5, 1, 2, 3})}, axes({1})}});
  OpInput factors = {.value = Tensor::full(DType::kFloat, {2, 3, 4}, 1.5)};
  for (const int64_t zero : {1, 6, 7, 20}) factors.value.set(zero, 0);
  factors.value.set(2, -0.5);
  for (const std::vector<int64_t>& several : std::vector<std::vector<int64_t>>{{0, 1}, {1, 2}, {0, 2}, {-1, 0}}) {
    all.push_back({.op = "ReduceProd", .inputs = {factors, axes(several)}, .attrs = {{"keepdims", 0}}});
  }
  OpInput one_zero = {.value = Tensor::full(DType::kFloat, {2, 3, 4}, 1.25)};
  one_zero.value.set(7, 0);
  all.push_back({.op = "ReduceProd", .inputs = {one_zero}});
  all.push_back({.op = "ReduceProd", .inputs = {factors}, .attrs = {{"noop_with_empty_axes", 1}}});
  for (const int reverse : {0, 1}) {
    for (const int64_t axis : {0, 1, 2}) {
      all.push_back({.op = "LinearScan",
                     .inputs = {factors, {{2, 3, 4}}},
                     .attrs = {{"axis", axis}, {"reverse", reverse}, {"first", axis == 1 ? 0.0f : 1.0f}},
                     .domain = "onnx_train"});
    }
  }
  all.push_back(
      {.op = "LinearScan", .inputs = {{{3, 700}}, {{3, 700}}}, .attrs = {{"axis", 1}}, .domain = "onnx_train"});
  all.push_back({.op = "LinearScan", .inputs = {{{0, 3}}, {{0, 3}}}, .attrs = {{"axis", 0}}, .domain = "onnx_train"});
  all.push_back({.op = "DifferentiatedOnce",
                 .inputs = {{{2, 3}}},
                 .attrs = {{"reason", "it has none; take another"}},
                 .domain = "onnx_train",
                 .gradient = false});
  all.push_back({.op = "ReduceSum",
                 .inputs = {{.shape = {3, 4}, .low = -9, .high = 9, .dtype = DType::kInt32}, axes({1})},
                 .gradient = false});
  all.push_back({.op = "ReduceMax",
                 .inputs = {{.shape = {3, 4}, .low = -9, .high = 9, .dtype = DType::kInt64}, axes({1})},
                 .gradient = false});
  // Zeros among the factors: none, the first, one between, two, all.
  const Tensor zeros = Tensor::of<float>({5, 4}, {2, 3, -1, 2, 0, 3, 4, 2, 2, 3, 0, 4, 2, 0, 0, 3, 0, 0, 0, 0});
  for (int exclusive : {0, 1}) {
    for (int reverse : {0, 1}) {
      const OpInput axis = {.shape = {}, .value = Tensor::scalar<int64_t>(1), .constant = true};
      for (const OpInput& x : {OpInput{.shape = {3, 4, 2}}, OpInput{.value = zeros}}) {
        all.push_back({.op = "CumProd",
                       .inputs = {x, axis},
                       .attrs = {{"exclusive", exclusive}, {"reverse", reverse}},
                       .opset = 26});
      }
    }
  }
  for (int exclusive : {0, 1}) {
    for (int reverse : {0, 1}) {
      for (int64_t axis : {0, 1, -1}) {
        all.push_back(
            {.op = "CumSum",
             .inputs = {{.shape = {3, 4, 2}}, {.shape = {}, .value = Tensor::scalar<int64_t>(axis), .constant = true}},
             .attrs = {{"exclusive", exclusive}, {"reverse", reverse}}});
      }
    }
  }
  return all;
}

}  // namespace onnx_train
