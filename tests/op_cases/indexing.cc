#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

OpInput x(Shape shape) { return {.shape = std::move(shape)}; }

OpInput ints(Shape shape, const std::vector<int64_t>& values) {
  return {.shape = {}, .value = Tensor::of<int64_t>(std::move(shape), values), .dtype = DType::kInt64};
}

OpInput constant(OpInput input) {
  input.constant = true;
  return input;
}

std::vector<OpCase> gathers() {
  return {
      {.op = "Gather", .inputs = {x({5, 3}), ints({2, 2}, {4, 0, -1, 0})}},
      {.op = "Gather", .inputs = {x({2, 5, 3}), ints({3}, {1, 1, -5})}, .attrs = {{"axis", 1}}},
      {.op = "Gather", .inputs = {x({4, 5}), ints({}, {2})}, .attrs = {{"axis", -1}}},
      {.op = "Gather", .inputs = {x({4, 5}), ints({0}, {})}},
      {.op = "Gather",
       .inputs = {x({4, 3}), {.shape = {}, .value = Tensor::of<int32_t>({2}, {3, -4}), .dtype = DType::kInt32}}},
      {.op = "GatherGrad",
       .inputs = {x({2, 3, 70}), ints({3}, {1, -3, 1}), constant(ints({3}, {2, 4, 70}))},
       .attrs = {{"axis", 1}},
       .domain = "onnx_train",
       .gradient = false,
       .dynamic = false},
      {.op = "GatherGrad",
       .inputs = {x({0, 3}), ints({0}, {}), constant(ints({2}, {4, 3}))},
       .attrs = {{"axis", 0}},
       .domain = "onnx_train",
       .gradient = false,
       .dynamic = false},
  };
}

}  // namespace

std::vector<OpCase> indexing_cases() {
  std::vector<OpCase> all;
  for (auto family : {gathers}) {
    for (OpCase& row : family()) all.push_back(std::move(row));
  }
  return all;
}

}  // namespace onnx_train
