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
      {.op = "AddGatherGrad",
       .inputs = {x({4, 70}), x({2, 3, 70}), ints({2, 3}, {1, -3, 1, 0, 3, 1})},
       .domain = "onnx_train",
       .gradient = false},
      {.op = "AddGatherGrad",
       .inputs = {x({4}), x({3}), {.shape = {}, .value = Tensor::of<int32_t>({3}, {3, -4, 3}), .dtype = DType::kInt32}},
       .domain = "onnx_train",
       .gradient = false},
      {.op = "AddGatherGrad",
       .inputs = {x({2, 3}), x({0, 3}), ints({0}, {})},
       .domain = "onnx_train",
       .gradient = false},
  };
}

std::vector<OpCase> coalesced_rows() {
  const auto row = [](OpInput dy, OpInput indices, const std::vector<int64_t>& shape) {
    return OpCase{.op = "CoalesceRows",
                  .inputs = {std::move(dy), std::move(indices), constant(ints({std::ssize(shape)}, shape))},
                  .num_outputs = 2,
                  .domain = "onnx_train",
                  .gradient = false,
                  .dynamic = false};
  };
  std::vector<int64_t> many(3000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i * i % 4999) - 2500;
  const OpInput narrow{.value = Tensor::of<int32_t>({3}, {3, -4, 3}), .dtype = DType::kInt32};
  return {
      row(x({2, 3, 70}), ints({2, 3}, {1, -3, 1, 0, 3, 1}), {4, 70}),
      row(x({3}), narrow, {4}),
      row(x({5}), ints({}, {-1}), {7, 5}),
      row(x({4, 2, 3}), ints({4}, {0, 0, -1, 0}), {1, 2, 3}),
      row(x({0, 3}), ints({0}, {}), {4, 3}),
      row(x({3000, 8}), ints({3000}, many), {1'000'000, 8}),
  };
}

std::vector<OpCase> gathers_of_elements() {
  return {
      {.op = "GatherElements", .inputs = {x({3, 4}), ints({2, 4}, {0, 1, 2, -1, 0, 0, 1, 1})}},
      {.op = "GatherElements", .inputs = {x({3, 4}), ints({3, 2}, {0, 0, 3, -4, 1, 2})}, .attrs = {{"axis", 1}}},
      {.op = "GatherElements", .inputs = {x({2, 3, 2}), ints({1, 2, 2}, {0, 2, 2, 0})}, .attrs = {{"axis", -2}}},
      {.op = "GatherElements", .inputs = {x({2, 3}), ints({2, 0}, {})}, .attrs = {{"axis", 1}}},
      {.op = "GatherND", .inputs = {x({3, 4}), ints({3, 2}, {0, 1, 2, -1, 0, 1})}},
      {.op = "GatherND", .inputs = {x({3, 4, 2}), ints({2, 1, 1}, {2, -3})}},
      {.op = "GatherND", .inputs = {x({2, 3, 4}), ints({2, 2, 1}, {0, 2, 1, 1})}, .attrs = {{"batch_dims", 1}}},
      {.op = "GatherND", .inputs = {x({2, 3, 4}), ints({2, 3, 1}, {0, 2, 1, 1, -1, 3})}, .attrs = {{"batch_dims", 2}}},
  };
}

// Each reduction; the places of "none" differ, those of the others repeat.
std::vector<OpCase> scatters() {
  std::vector<OpCase> rows = {
      {.op = "ScatterElements", .inputs = {x({3, 3}), ints({2, 3}, {1, 0, 2, 0, 2, -2}), x({2, 3})}},
      {.op = "ScatterElements", .inputs = {x({2, 5}), ints({2, 2}, {1, 3, -1, 0}), x({2, 2})}, .attrs = {{"axis", 1}}},
      {.op = "ScatterElements", .inputs = {x({2, 5}), ints({0, 2}, {}), x({0, 2})}},
      {.op = "ScatterND", .inputs = {x({4, 3}), ints({2, 1}, {2, -4}), x({2, 3})}},
      {.op = "ScatterND", .inputs = {x({4, 3}), ints({2, 2}, {2, 0, 3, -1}), x({2})}},
  };
  for (const char* reduction : {"add", "mul", "max", "min"}) {
    const OpInput data{.shape = {2, 5}, .distinct = true}, rows_of_data{.shape = {4, 3}, .distinct = true};
    rows.push_back({.op = "ScatterElements",
                    .inputs = {data, ints({2, 3}, {1, 1, 4, -1, 0, 0}), {.shape = {2, 3}, .distinct = true}},
                    .attrs = {{"axis", 1}, {"reduction", reduction}}});
    rows.push_back({.op = "ScatterND",
                    .inputs = {rows_of_data, ints({3, 1}, {2, 0, 2}), {.shape = {3, 3}, .distinct = true}},
                    .attrs = {{"reduction", reduction}}});
  }
  // Zeros among the factors: one at a place, in the data or in the updates, and two.
  rows.push_back({.op = "ScatterElements",
                  .inputs = {{.shape = {}, .value = Tensor::of<float>({4}, {0, 2, 0, 3})},
                             ints({4}, {0, 1, 1, 2}),
                             {.shape = {}, .value = Tensor::of<float>({4}, {3, 0, 2, 0})}},
                  .attrs = {{"reduction", "mul"}}});
  return rows;
}

// Rows of few numbers, so that several are equal in some or all columns.
OpCase sorted_rows(Shape shape) {
  const OpInput few{.shape = std::move(shape), .low = -2, .high = 3, .dtype = DType::kInt32};
  OpCase row = {.op = "SortRows", .inputs = {few}, .domain = "onnx_train", .gradient = false, .dynamic = false};
  if (few.shape[1] == 0) row.no_body = "ArgMax has no result for no elements";
  return row;
}

std::vector<OpCase> selections() {
  const auto scalar = [](int64_t v) {
    return OpInput{.shape = {}, .value = Tensor::scalar<int64_t>(v), .dtype = DType::kInt64, .constant = true};
  };
  const OpInput distinct{.shape = {3, 7}, .distinct = true};
  const OpInput condition{.shape = {}, .value = Tensor::of<bool>({3}, {true, false, true}), .constant = true};
  return {
      {.op = "OneHot", .inputs = {ints({2, 2}, {0, 3, -1, 9}), scalar(4), x({2})}, .dynamic = false},
      {.op = "OneHot", .inputs = {ints({3}, {0, 3, -1}), scalar(4), x({2})}, .attrs = {{"axis", 0}}},
      {.op = "TopK", .inputs = {distinct, constant(ints({1}, {3}))}, .num_outputs = 2},
      {.op = "TopK",
       .inputs = {distinct, constant(ints({1}, {2}))},
       .attrs = {{"axis", 0}, {"largest", 0}},
       .num_outputs = 2,
       .dynamic = false},
      {.op = "ArgMax", .inputs = {distinct}, .attrs = {{"axis", 1}}, .gradient = false},
      {.op = "ArgMin", .inputs = {distinct}, .attrs = {{"axis", 0}, {"keepdims", 0}}, .gradient = false},
      {.op = "NonZero",
       .inputs = {{.shape = {}, .value = Tensor::of<bool>({2, 2}, {true, false, true, true}), .constant = true}},
       .gradient = false},
      sorted_rows({4, 3}),
      sorted_rows({300, 2}),
      sorted_rows({1, 1}),
      sorted_rows({0, 3}),
      sorted_rows({3, 0}),
      {.op = "Compress", .inputs = {x({3, 4}), condition}, .attrs = {{"axis", 0}}, .dynamic = false},
      {.op = "Compress", .inputs = {x({2, 4}), condition}, .attrs = {{"axis", -1}}},
      {.op = "Compress", .inputs = {x({2, 4}), condition}},
  };
}

}  // namespace

std::vector<OpCase> indexing_cases() {
  std::vector<OpCase> all;
  const OpInput begin = {.value = Tensor::ints({1, 3})};
  all.push_back({.op = "TensorScatter", .inputs = {x({2, 3, 6, 4}), x({2, 3, 2, 4}), begin}, .opset = 24});
  all.push_back({.op = "TensorScatter",
                 .inputs = {x({2, 4, 3}), x({2, 3, 3}), begin},
                 .attrs = {{"axis", 1}, {"mode", "circular"}},
                 .opset = 24});
  all.push_back({.op = "TensorScatter", .inputs = {x({2, 4, 3}), x({2, 2, 3})}, .opset = 24});
  for (auto family : {gathers, coalesced_rows, gathers_of_elements, scatters, selections}) {
    for (OpCase& row : family()) all.push_back(std::move(row));
  }
  return all;
}

}  // namespace onnx_train
