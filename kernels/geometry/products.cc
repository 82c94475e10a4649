#include "kernels/geometry/products.h"

#include <algorithm>
#include <numeric>

#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/strides.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

void remove_batch_axis(Product& p, size_t axis) {
  const auto at = static_cast<std::ptrdiff_t>(axis);
  for (Matrices* matrices : {&p.a, &p.b, &p.y}) {
    matrices->batch.erase(matrices->batch.begin() + at);
    matrices->batch_strides.erase(matrices->batch_strides.begin() + at);
  }
}

// Whether axes `axis` and `axis + 1` can be merged: they are contiguous, or both repeat.
bool is_one_axis(const Matrices& m, size_t axis) {
  const bool repeated = m.batch[axis] == 1 && m.batch[axis + 1] == 1;
  return repeated || (m.batch[axis + 1] != 1 && m.batch[axis] != 1 &&
                      m.batch_strides[axis] == m.batch_strides[axis + 1] * m.batch[axis + 1]);
}

Shape identity(size_t rank) {
  Shape permutation(rank);
  std::iota(permutation.begin(), permutation.end(), 0);
  return permutation;
}

// A tensor with permuted axes.
struct View {
  Shape sizes, strides;
};

void expect_permutation(const NodeSpec& spec, Shape permutation, size_t rank) {
  std::sort(permutation.begin(), permutation.end());
  if (permutation != identity(rank)) fail(spec.node().label(), ": its permutations do not fit its operands");
}

View permuted(const NodeSpec& spec, const Shape& memory, const Shape& permutation) {
  expect_permutation(spec, permutation, memory.size());
  const Shape strides = row_major_strides(memory);
  View view;
  for (int64_t axis : permutation) {
    view.sizes.push_back(memory[static_cast<size_t>(axis)]);
    view.strides.push_back(strides[static_cast<size_t>(axis)]);
  }
  return view;
}

// Returns the matrices of a view with at least two axes, with leading batch axes added up to `rank`.
Matrices matrices_of(View view, size_t rank) {
  Matrices matrices;
  matrices.row_stride = view.strides[view.strides.size() - 2];
  matrices.column_stride = view.strides.back();
  matrices.batch.assign(view.sizes.begin(), view.sizes.end() - 2);
  matrices.batch_strides.assign(view.strides.begin(), view.strides.end() - 2);
  const size_t missing = rank - matrices.batch.size();
  matrices.batch.insert(matrices.batch.begin(), missing, 1);
  matrices.batch_strides.insert(matrices.batch_strides.begin(), missing, 0);
  return matrices;
}

// y = a b for views with at least two axes.
Product product_of_views(const NodeSpec& spec, const View& a, const View& b, const View& y) {
  if (std::min({a.sizes.size(), b.sizes.size()}) < 2 || y.sizes.size() != std::max(a.sizes.size(), b.sizes.size()))
    fail(spec.node().label(), ": its operands and its output must be matrices or batches of them");
  const size_t rank = y.sizes.size() - 2;
  Product p{matrices_of(a, rank), matrices_of(b, rank), matrices_of(y, rank)};
  p.m = a.sizes[a.sizes.size() - 2];
  p.k = a.sizes.back();
  p.n = b.sizes.back();
  const bool fits = b.sizes[b.sizes.size() - 2] == p.k && y.sizes[rank] == p.m && y.sizes.back() == p.n &&
                    broadcast(p.a.batch, p.b.batch) == p.y.batch;
  if (!fits) {
    fail(spec.node().label(), ": ", to_string(a.sizes), " times ", to_string(b.sizes), " does not make ",
         to_string(y.sizes));
  }
  return p;
}

}  // namespace

Matrices row_major_matrices(const Shape& batch, int64_t rows, int64_t columns, bool transposed) {
  Matrices matrices{batch, Shape(batch.size()), transposed ? 1 : columns, transposed ? rows : 1};
  int64_t stride = rows * columns;
  for (size_t axis = batch.size(); axis-- > 0;) {
    matrices.batch_strides[axis] = stride;
    stride *= batch[axis];
  }
  return matrices;
}

void merge_batches(Product& p) {
  for (size_t axis = p.y.batch.size(); axis-- > 0;) {
    if (p.y.batch[axis] == 1) remove_batch_axis(p, axis);
  }
  while (!p.y.batch.empty() && p.b.batch.back() == 1 && p.a.batch.back() != 1 &&
         p.a.batch_strides.back() == p.m * p.a.row_stride && p.y.batch_strides.back() == p.m * p.y.row_stride) {
    p.m *= p.y.batch.back();
    remove_batch_axis(p, p.y.batch.size() - 1);
  }
  for (size_t axis = p.y.batch.size(); axis-- > 1;) {
    if (!is_one_axis(p.a, axis - 1) || !is_one_axis(p.b, axis - 1) || !is_one_axis(p.y, axis - 1)) continue;
    for (Matrices* matrices : {&p.a, &p.b, &p.y}) matrices->batch[axis] *= matrices->batch[axis - 1];
    remove_batch_axis(p, axis - 1);
  }
}

// A vector counts as a matrix of one row (left operand) or one column (right operand).
Product matmul_product(const NodeSpec& spec) {
  Shape a = spec.in_shape(0), b = spec.in_shape(1), y = spec.out_shape();
  if (b.size() == 1) b.push_back(1), y.push_back(1);
  if (a.size() == 1) a.insert(a.begin(), 1), y.insert(y.end() - 1, 1);
  const auto view = [&](const Shape& shape) { return permuted(spec, shape, identity(shape.size())); };
  return product_of_views(spec, view(a), view(b), view(y));
}

// y is stored with its axes in the order perm_y: axis i in memory is axis perm_y[i] of the product.
Product transposed_matmul_product(const NodeSpec& spec) {
  const Node& node = spec.node();
  const auto permutation = [&](const char* name) { return node.attr(name, Shape{}); };
  const Shape to_memory = permutation("perm_y");
  expect_permutation(spec, to_memory, spec.out_shape().size());
  Shape to_product(to_memory.size());
  for (size_t i = 0; i < to_memory.size(); ++i) to_product[static_cast<size_t>(to_memory[i])] = static_cast<int64_t>(i);
  return product_of_views(spec, permuted(spec, spec.in_shape(0), permutation("perm_a")),
                          permuted(spec, spec.in_shape(1), permutation("perm_b")),
                          permuted(spec, spec.out_shape(), to_product));
}

Product gemm_product(const NodeSpec& spec) {
  const Node& node = spec.node();
  const bool trans_a = node.attr("transA", 0) != 0, trans_b = node.attr("transB", 0) != 0;
  Shape a = spec.in_shape(0), b = spec.in_shape(1);
  if (a.size() != 2 || b.size() != 2) fail(node.label(), ": its operands must be matrices");
  if (trans_a) std::swap(a[0], a[1]);
  if (trans_b) std::swap(b[0], b[1]);
  Product p;
  p.m = a[0];
  p.k = a[1];
  p.n = b[1];
  p.alpha = node.attr("alpha", 1.0f);
  p.a = row_major_matrices({}, p.m, p.k, trans_a);
  p.b = row_major_matrices({}, p.k, p.n, trans_b);
  p.y = row_major_matrices({}, p.m, p.n);
  const Shape y = {p.m, p.n};
  const bool fits = b[0] == p.k && spec.out_shape() == y;
  if (!fits || (spec.has_input(2) && broadcast(spec.in_shape(2), y) != y)) {
    fail(node.label(), ": ", to_string(a), " times ", to_string(b),
         " (after its transposes) does not fit its C or its output");
  }
  return p;
}

ProductVector vector_of(const NodeSpec& spec) {
  const Epilogue epilogue = epilogue_of(spec.node());
  if (has_step(epilogue, EpilogueStep::kBias)) return ProductVector::kBias;
  if (has_step(epilogue, EpilogueStep::kSumsOfA)) return ProductVector::kSumsOfA;
  return has_step(epilogue, EpilogueStep::kSumsOfB) ? ProductVector::kSumsOfB : ProductVector::kNone;
}

std::vector<const char*> epilogues_of(const char* op, const std::vector<const char*>& all) {
  const Epilogue& possible = find_operator(kDomain, op)->steps;
  std::vector<const char*> found;
  for (const char* text : all) {
    const Epilogue steps = epilogue_of(Attrs{{kEpilogue, text}});
    if (std::all_of(steps.begin(), steps.end(), [&](EpilogueStep step) { return has_step(possible, step); }))
      found.push_back(text);
  }
  return found;
}

int bias_of(const NodeSpec& spec) {
  const bool is_gemm = spec.node().op() == "Gemm";
  return is_gemm ? (adds_bias(spec) ? 2 : -1) : input_at(spec.node(), "bias");
}

namespace {

// Whether Gemm adds an unscaled C to the unscaled product.
bool adds_c(const NodeSpec& spec) {
  const Node& node = spec.node();
  return spec.has_input(2) && node.attr("alpha", 1.0f) == 1 && node.attr("beta", 1.0f) == 1;
}

}  // namespace

bool is_row_of_result(const NodeSpec& spec, int i) {
  const int64_t columns = spec.out_shape().back();
  return spec.in_size(i) == columns && !spec.in_shape(i).empty() && spec.in_shape(i).back() == columns;
}

bool adds_bias(const NodeSpec& spec) { return adds_c(spec) && is_row_of_result(spec, 2); }

bool adds_matrix(const NodeSpec& spec) { return adds_c(spec) && spec.in_shape(2) == spec.out_shape(); }

bool has_product(DType dtype) {
  return is_float_or_double(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64 || dtype == DType::kUint32 ||
         dtype == DType::kUint64;
}

}  // namespace onnx_train
