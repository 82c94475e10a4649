#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

OpInput integers(Shape shape) { return {.shape = std::move(shape), .low = -9, .high = 9, .dtype = DType::kInt64}; }

Tensor two_by_two_product(const std::vector<Tensor>& in) {
  Tensor y(DType::kDouble, {2, 2});
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < 3; ++k) sum += in[0].at(3 * i + k) * in[1].at(2 * k + j);
      y.set(2 * i + j, sum);
    }
  }
  return y;
}

OpCase transposed_matmul(Shape a, Shape b, Shape perm_a, Shape perm_b, Shape perm_y) {
  return {.op = "TransposedMatMul",
          .inputs = {{std::move(a)}, {std::move(b)}},
          .attrs = {{"perm_a", std::move(perm_a)}, {"perm_b", std::move(perm_b)}, {"perm_y", std::move(perm_y)}},
          .domain = "onnx_train",
          .gradient = false,
          .dynamic = false};
}

// A product that adds a bias, or else has the sums that `epilogue` names.
OpCase with_epilogue(const char* op, Shape a, Shape b, Attrs attrs, Shape bias, const char* epilogue = "bias") {
  OpCase row{.op = op, .inputs = {{std::move(a)}, {std::move(b)}}, .attrs = std::move(attrs), .domain = "onnx_train"};
  row.attrs.emplace_back("epilogue", epilogue);
  if (bias.empty()) {
    row.num_outputs = 2;
  } else {
    row.inputs.push_back({std::move(bias)});
  }
  row.gradient = false;
  row.dynamic = false;
  return row;
}

void add_epilogues(std::vector<OpCase>& cases) {
  const auto perms = [](Shape a, Shape b, Shape y) {
    return Attrs{{"perm_a", std::move(a)}, {"perm_b", std::move(b)}, {"perm_y", std::move(y)}};
  };
  const Shape as_is = {0, 1}, swapped = {1, 0};
  cases.push_back(with_epilogue("MatMul", {4, 3}, {3, 5}, {}, {5}));
  cases.push_back(with_epilogue("MatMul", {2, 4, 3}, {3, 5}, {}, {1, 5}));
  cases.push_back(with_epilogue("MatMul", {2, 1, 4, 3}, {2, 3, 3, 5}, {}, {5}));
  cases.push_back(with_epilogue("TransposedMatMul", {2, 4, 3}, {5, 3}, perms({0, 1, 2}, swapped, {0, 1, 2}), {5}));
  for (const char* sums : {"sums_of_a", "sums_of_b"}) {
    const auto add = [&](const char* op, const Shape& a, const Shape& b, const Attrs& attrs = {}) {
      cases.push_back(with_epilogue(op, a, b, attrs, {}, sums));
    };
    add("MatMul", {4, 3}, {3, 5});
    add("MatMul", {40, 300}, {300, 70});
    add("MatMul", {4, 1}, {1, 5});
    add("MatMul", {1, 3}, {3, 1});
    add("Gemm", {4, 3}, {3, 5});
    add("Gemm", {300, 40}, {300, 70}, {{"transA", 1}});
    add("Gemm", {4, 3}, {5, 3}, {{"transB", 1}});
    add("Gemm", {3, 4}, {5, 3}, {{"transA", 1}, {"transB", 1}});
    add("TransposedMatMul", {3, 4}, {3, 5}, perms(swapped, as_is, as_is));
    add("TransposedMatMul", {3, 4}, {3, 5}, perms(swapped, as_is, swapped));
    add("TransposedMatMul", {4, 3}, {5, 3}, perms(as_is, swapped, swapped));
    // Batches
    const Shape in_order = {0, 1, 2}, each_swapped = {0, 2, 1};
    add("MatMul", {3, 4, 7}, {3, 7, 5});
    add("MatMul", {2, 3, 4, 7}, {2, 3, 7, 5});
    add("MatMul", {1, 4, 7}, {1, 7, 5});
    add("MatMul", {4, 7}, {3, 7, 5});
    add("TransposedMatMul", {3, 70, 4}, {3, 70, 5}, perms(each_swapped, in_order, in_order));
    add("TransposedMatMul", {3, 4, 7}, {3, 5, 7}, perms(in_order, each_swapped, each_swapped));
    add("TransposedMatMul", {4, 3, 7}, {3, 7, 5}, perms({1, 0, 2}, in_order, in_order));
  }
}

OpCase einsum(const char* equation, std::vector<Shape> shapes,
              std::function<Tensor(const std::vector<Tensor>&)> expected = nullptr) {
  OpCase row{.op = "Einsum", .inputs = {}, .attrs = {{"equation", equation}}, .expected = std::move(expected)};
  for (Shape& shape : shapes) row.inputs.push_back({.shape = std::move(shape)});
  return row;
}

}  // namespace

std::vector<OpCase> product_cases() {
  const Attrs both = {{"transA", 1}, {"transB", 1}};
  std::vector<OpCase> cases = {
      {.op = "MatMul", .inputs = {{{2, 3}}, {{3, 2}}}, .expected = two_by_two_product},
      {.op = "MatMul", .inputs = {{{1, 1}}, {{1, 1}}}},
      {.op = "MatMul", .inputs = {{{64, 48}}, {{48, 80}}}},
      {.op = "MatMul", .inputs = {{{5}}, {{5}}}, .dynamic = false},
      {.op = "MatMul", .inputs = {{{5}}, {{5, 3}}}, .dynamic = false},
      {.op = "MatMul", .inputs = {{{4, 5}}, {{5}}}},
      {.op = "MatMul", .inputs = {{{5}}, {{2, 5, 3}}}, .dynamic = false},
      {.op = "MatMul", .inputs = {{{2, 4, 5}}, {{5}}}},
      {.op = "MatMul", .inputs = {{{2, 4, 5}}, {{5, 3}}}},  // the weight of a linear layer
      {.op = "MatMul", .inputs = {{{2, 3, 4, 5}}, {{5, 3}}}},
      {.op = "MatMul", .inputs = {{{2, 3, 4, 5}}, {{2, 3, 5, 6}}}},  // attention
      {.op = "MatMul", .inputs = {{{2, 3, 4, 5}}, {{3, 5, 6}}}},
      {.op = "MatMul", .inputs = {{{2, 1, 4, 5}}, {{1, 3, 5, 6}}}},
      {.op = "MatMul", .inputs = {{{4, 5}}, {{2, 5, 6}}}, .dynamic = false},
      {.op = "MatMul", .inputs = {{{2, 4, 5}}, {{1, 5, 6}}}},
      {.op = "MatMul", .inputs = {{{0, 5}}, {{5, 3}}}},
      {.op = "MatMul", .inputs = {{{4, 0}}, {{0, 3}}}},
      {.op = "MatMul", .inputs = {{{2, 4, 5}}, {{5, 0}}}},
      {.op = "MatMul", .inputs = {integers({2, 4, 5}), integers({5, 3})}, .gradient = false},
      {.op = "MatMul", .inputs = {integers({2, 4, 5}), integers({2, 5, 1})}, .gradient = false},

      transposed_matmul({2, 4, 3, 5}, {2, 6, 3, 5}, {0, 2, 1, 3}, {0, 2, 3, 1}, {0, 2, 1, 3}),  // heads
      transposed_matmul({2, 5, 4}, {2, 5, 6}, {0, 2, 1}, {0, 1, 2}, {0, 1, 2}),
      transposed_matmul({2, 5, 4}, {6, 5}, {0, 2, 1}, {1, 0}, {1, 0, 2}),
      transposed_matmul({3, 2, 4, 5}, {5, 6}, {1, 0, 2, 3}, {0, 1}, {0, 1, 2, 3}),
      transposed_matmul({1, 1, 3, 5}, {2, 1, 5, 1}, {0, 2, 1, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}),
      transposed_matmul({2, 0, 3, 5}, {2, 6, 3, 5}, {0, 2, 1, 3}, {0, 2, 3, 1}, {0, 2, 1, 3}),

      {.op = "Gemm", .inputs = {{{2, 3}}, {{3, 2}}}, .expected = two_by_two_product},
      {.op = "Gemm", .inputs = {{{4, 3}}, {{5, 3}}, {{5}}}, .attrs = {{"transB", 1}}},  // a linear layer
      {.op = "Gemm", .inputs = {{{3, 4}}, {{3, 5}}, {{1, 5}}}, .attrs = {{"transA", 1}}, .dynamic = false},
      {.op = "Gemm", .inputs = {{{3, 4}}, {{5, 3}}, {{4, 1}}}, .attrs = both, .dynamic = false},
      {.op = "Gemm", .inputs = {{{4, 3}}, {{3, 5}}, {{}}}},
      {.op = "Gemm", .inputs = {{{4, 3}}, {{3, 5}}, {{1}}}},
      {.op = "Gemm", .inputs = {{{4, 3}}, {{3, 1}}, {{}}}},
      {.op = "Gemm", .inputs = {{{4, 3}}, {{3, 4}}, {{4, 4}}}, .attrs = {{"alpha", 0.5f}}, .dynamic = false},
      {.op = "Gemm", .inputs = {{{4, 3}}, {{3, 5}}, {{5}}}, .attrs = {{"alpha", 0.5f}, {"beta", 2.0f}}},
      {.op = "Gemm",
       .inputs = {{{3, 4}}, {{5, 3}}},
       .attrs = {{"transA", 1}, {"transB", 1}, {"alpha", 1.5f}},
       .dynamic = false},
      {.op = "Gemm", .inputs = {{{4, 3}}, {{3, 5}}, {{5}}}, .attrs = {{"beta", 0.0f}}},
      {.op = "Gemm", .inputs = {{{0, 3}}, {{3, 5}}, {{5}}}},
      {.op = "Gemm", .inputs = {{{4, 0}}, {{0, 5}}, {{5}}}},
      {.op = "Gemm", .inputs = {integers({4, 3}), integers({3, 5}), integers({5})}, .gradient = false},

      einsum("ij,jk->ik", {{2, 3}, {3, 2}}, two_by_two_product),
      einsum("ij,jk", {{2, 3}, {3, 2}}, two_by_two_product),
      einsum("bhqd,bhkd->bhqk", {{2, 3, 4, 5}, {2, 3, 6, 5}}),  // attention
      einsum("bqk,bkhd->bqhd", {{2, 3, 4}, {2, 4, 2, 5}}),
      einsum("bij,j->bi", {{2, 3, 4}, {4}}),
      einsum("i,j->ji", {{3}, {4}}),
      einsum("ij->ji", {{3, 4}}),
      einsum("ij->", {{3, 4}}),
      einsum("ijk->j", {{3, 4, 2}}),
      einsum("ij,kl->k", {{3, 4}, {2, 5}}),  // indices that only one input has
      einsum("ij,ij->", {{3, 4}, {3, 4}}),
      einsum("ij,jk,kl->il", {{2, 3}, {3, 4}, {4, 5}}),
      einsum("ba,ca,da->bcd", {{2, 5}, {3, 5}, {4, 5}}),
      einsum("...ij,...jk->...ik", {{2, 3, 4}, {2, 4, 5}}),
      einsum("...ij,jk->...ik", {{2, 3, 4}, {4, 5}}),
      einsum("...ij,...jk", {{2, 3, 4}, {1, 4, 5}}),
      einsum("ij,ij->ij", {{3, 4}, {1, 4}}),
      einsum("ij,ij->i", {{3, 1}, {3, 4}}),
      einsum("ij,jk->ik", {{2, 0}, {0, 3}}),
      {.op = "Einsum", .inputs = {{{3, 3}}}, .attrs = {{"equation", "ii->i"}}, .dynamic = false},
      {.op = "Einsum", .inputs = {{{4, 3, 4}}}, .attrs = {{"equation", "iji->j"}}, .dynamic = false},
      {.op = "Einsum", .inputs = {{{2, 3, 3}}}, .attrs = {{"equation", "...ii->...i"}}},
      {.op = "Einsum", .inputs = {{{3, 3, 3}}, {{3, 2}}}, .attrs = {{"equation", "iii,ij->j"}}, .dynamic = false},
  };
  for (const Shape& x : {Shape{3, 3}, Shape{2, 4, 4}, Shape{2, 2, 1, 1}, Shape{2, 2}, Shape{0, 3, 3}, Shape{6, 6}}) {
    cases.push_back({.op = "Det", .inputs = {{x}}});
  }
  // Of rank 2, 0, and 2 with zeros.
  for (const std::vector<float>& x :
       {std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9}, std::vector<float>(9, 0), {0, 1, 0, 0, 0, 1, 0, 0, 0}}) {
    cases.push_back({.op = "Det", .inputs = {{.value = Tensor::of<float>({3, 3}, x)}}, .tolerance = 1e-3});
  }
  cases.push_back(
      {.op = "DetGrad", .inputs = {{{2}}, {{2, 4, 4}}}, .domain = "onnx_train", .gradient = false, .dynamic = false});
  const Tensor turned = Tensor::of<float>({3, 3}, {0, 2, 0, 0, 0, -1, 0.5f, 0, 1});  // needs another pivot
  const Tensor large = Tensor::of<float>({2, 2, 2}, {4, 1, 2, 3, -1, 2, 1, 1});
  for (const OpInput& x : {OpInput{.value = turned}, OpInput{.value = large}, OpInput{.shape = {0, 3, 3}},
                           OpInput{.shape = {2, 3, 1, 1}, .low = 0.5, .high = 2}})
    cases.push_back({.op = "Inverse", .inputs = {x}, .domain = "onnx_train"});
  add_epilogues(cases);
  return cases;
}

}  // namespace onnx_train
