// MatMul, Gemm and TransposedMatMul, also with bfloat16 operands (kernels/functions/products.cc). float32 and bfloat16
// operands go to float_products.cc; float64 uses BLAS, integers use plain loops.
#include "kernels/cpu/products/products.h"

#include <cblas.h>

#include <algorithm>
#include <climits>
#include <numeric>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// ---- float64 and integers

void multiply(const Product& p, const double* a, const double* b, double* y) {
  const auto size = [](int64_t n) { return static_cast<blasint>(n); };
  const auto order = [](const Matrices& x) { return x.column_stride == 1 ? CblasNoTrans : CblasTrans; };
  const auto leading = [&](const Matrices& x, int64_t rows, int64_t columns) {
    return size(x.column_stride == 1 ? std::max(x.row_stride, columns) : std::max(x.column_stride, rows));
  };
  cblas_dgemm(CblasRowMajor, order(p.a), order(p.b), size(p.m), size(p.n), size(p.k), p.alpha, a,
              leading(p.a, p.m, p.k), b, leading(p.b, p.k, p.n), p.accumulate ? 1 : 0, y, leading(p.y, p.m, p.n));
}

template <typename T>
void multiply(const Product& p, const T* a, const T* b, T* y) {
  const int64_t work = std::max<int64_t>(1, p.n * p.k);
  parallel_for(p.m, std::max<int64_t>(1, kElementGrain / work), [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        T sum = 0;
        for (int64_t l = 0; l < p.k; ++l) {
          sum = static_cast<T>(sum + a[i * p.a.row_stride + l * p.a.column_stride] *
                                         b[l * p.b.row_stride + j * p.b.column_stride]);
        }
        if (p.alpha != 1) sum = static_cast<T>(p.alpha * static_cast<double>(sum));
        T& to = y[i * p.y.row_stride + j * p.y.column_stride];
        to = static_cast<T>(p.accumulate ? to + sum : sum);
      }
    }
  });
}

// Offsets of the matrices of each product of the batch.
std::vector<int64_t> starts(const Shape& batch, const Matrices& matrices) {
  std::vector<int64_t> offsets(static_cast<size_t>(num_elements(batch)), 0);
  for (size_t i = 0; i < offsets.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i);
    for (size_t axis = batch.size(); axis-- > 0;) {
      if (matrices.batch[axis] != 1) offsets[i] += rest % batch[axis] * matrices.batch_strides[axis];
      rest /= batch[axis];
    }
  }
  return offsets;
}

template <typename T>
Prepared prepare_reference(const NodeSpec& spec, const Product& p) {
  if (std::max({p.m, p.n, p.k}) > INT_MAX) fail(spec.node().label(), ": a dimension is larger than BLAS can count");
  return {
      [p, a = starts(p.y.batch, p.a), b = starts(p.y.batch, p.b), y = starts(p.y.batch, p.y)](const Launch& launch) {
        for (size_t i = 0; i < y.size(); ++i) {
          multiply(p, launch.in<T>(0) + a[i], launch.in<T>(1) + b[i], launch.out<T>() + y[i]);
        }
      },
      0,
      {}};
}

Prepared prepare_zeros(size_t bytes) {
  return {[=](const Launch& launch) { std::fill_n(launch.out<char>(), bytes, char{0}); }, 0, {}};
}

// ---- Batches

void remove_batch_axis(Product& p, size_t axis) {
  const auto at = static_cast<std::ptrdiff_t>(axis);
  for (Matrices* matrices : {&p.a, &p.b, &p.y}) {
    matrices->batch.erase(matrices->batch.begin() + at);
    matrices->batch_strides.erase(matrices->batch_strides.begin() + at);
  }
}

// Whether axes `axis` and `axis + 1` can be merged into one: they are contiguous, or both repeat.
bool is_one_axis(const Matrices& m, size_t axis) {
  const bool repeated = m.batch[axis] == 1 && m.batch[axis + 1] == 1;
  return repeated || (m.batch[axis + 1] != 1 && m.batch[axis] != 1 &&
                      m.batch_strides[axis] == m.batch_strides[axis + 1] * m.batch[axis + 1]);
}

// ---- MatMul

Shape identity(size_t rank) {
  Shape permutation(rank);
  std::iota(permutation.begin(), permutation.end(), 0);
  return permutation;
}

// The axes of a tensor in another order.
struct View {
  Shape sizes, strides;
};

void expect_permutation(const NodeSpec& spec, Shape permutation, size_t rank) {
  std::sort(permutation.begin(), permutation.end());
  if (permutation != identity(rank)) fail(spec.node().label(), ": its permutations do not fit its operands");
}

View permuted(const NodeSpec& spec, const Shape& memory, const Shape& permutation) {
  expect_permutation(spec, permutation, memory.size());
  Shape strides(memory.size(), 1);
  for (size_t i = memory.size(); i-- > 1;) strides[i - 1] = strides[i] * memory[i];
  View view;
  for (int64_t axis : permutation) {
    view.sizes.push_back(memory[static_cast<size_t>(axis)]);
    view.strides.push_back(strides[static_cast<size_t>(axis)]);
  }
  return view;
}

// The matrices of a view with at least two axes; missing batch axes are added until there are `rank`.
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
Prepared prepare_views(const NodeSpec& spec, const View& a, const View& b, const View& y) {
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
  return prepare_product(spec, p);
}

// A vector counts as a matrix of one row (left operand) or one column (right operand).
Prepared prepare_matmul(const NodeSpec& spec) {
  Shape a = spec.in_shape(0), b = spec.in_shape(1), y = spec.out_shape();
  if (b.size() == 1) b.push_back(1), y.push_back(1);
  if (a.size() == 1) a.insert(a.begin(), 1), y.insert(y.end() - 1, 1);
  const auto view = [&](const Shape& shape) { return permuted(spec, shape, identity(shape.size())); };
  return prepare_views(spec, view(a), view(b), view(y));
}

// y is stored with its axes in the order perm_y: axis i in memory is axis perm_y[i] of the product.
Prepared prepare_transposed_matmul(const NodeSpec& spec) {
  const Node& node = spec.node();
  const auto permutation = [&](const char* name) { return node.attr(name, Shape{}); };
  const Shape to_memory = permutation("perm_y");
  expect_permutation(spec, to_memory, spec.out_shape().size());
  Shape to_product(to_memory.size());
  for (size_t i = 0; i < to_memory.size(); ++i) to_product[static_cast<size_t>(to_memory[i])] = static_cast<int64_t>(i);
  return prepare_views(spec, permuted(spec, spec.in_shape(0), permutation("perm_a")),
                       permuted(spec, spec.in_shape(1), permutation("perm_b")),
                       permuted(spec, spec.out_shape(), to_product));
}

// ---- Gemm

// Writes beta C, the starting value of y.
template <typename T>
std::function<void(const Launch&)> fill_with_c(const Shape& c, int64_t m, int64_t n, double beta) {
  const int64_t columns = c.empty() ? 1 : c.back(), rows = c.size() < 2 ? 1 : c[c.size() - 2];
  const int64_t row_step = rows == 1 ? 0 : columns, column_step = columns == 1 ? 0 : 1;
  return [=](const Launch& launch) {
    const T* from = launch.in<T>(2);
    T* to = launch.out<T>();
    parallel_for(m, std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, n)), [=](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const T value = from[i * row_step + j * column_step];
          to[i * n + j] = beta == 1 ? value : static_cast<T>(beta * static_cast<double>(value));
        }
      }
    });
  };
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

// Whether C is a plain bias, one row of n numbers, which the product itself can add.
bool adds_bias(const NodeSpec& spec) {
  const Node& node = spec.node();
  const int64_t columns = spec.out_shape().back();
  return node.attr("alpha", 1.0f) == 1 && node.attr("beta", 1.0f) == 1 && spec.in_type(2) == DType::kFloat &&
         spec.in_size(2) == columns && !spec.in_shape(2).empty() && spec.in_shape(2).back() == columns;
}

Prepared prepare_gemm(const NodeSpec& spec) {
  Product p = gemm_product(spec);
  const double beta = spec.node().attr("beta", 1.0f);
  const bool has_c = spec.has_input(2) && beta != 0;
  // Any other C is written to y first, and the product accumulates onto it.
  const bool bias = has_c && p.k > 0 && spec.out_type() != DType::kDouble && adds_bias(spec);
  if (!has_c || bias) return prepare_product(spec, p, bias);
  p.accumulate = true;
  Prepared product = prepare_product(spec, p);
  const auto fill = dispatch_numeric(
      spec.out_type(), [&](auto zero) { return fill_with_c<decltype(zero)>(spec.in_shape(2), p.m, p.n, beta); });
  return {[fill, run = product.run](const Launch& launch) {
            fill(launch);
            run(launch);
          },
          product.workspace,
          {}};
}

}  // namespace

bool is_bfloat16_product(const NodeSpec& spec) {
  for (int i = 0; i < spec.num_inputs(); ++i) {
    const DType wanted = i < 2 ? DType::kBFloat16 : DType::kFloat;
    if (spec.has_input(i) && is_float(spec.in_type(i)) && spec.in_type(i) != wanted) return false;
  }
  const bool float_operands = is_float(spec.in_type(0)) && is_float(spec.in_type(1));
  return isa() >= Isa::kAvx512Bf16 && float_operands && spec.has_output(0) &&
         (spec.out_type() == DType::kFloat || spec.out_type() == DType::kBFloat16);
}

bool has_product(DType dtype) {
  return is_float_or_double(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64 || dtype == DType::kUint32 ||
         dtype == DType::kUint64;
}

Matrices row_major_matrices(const Shape& batch, int64_t rows, int64_t columns, bool transposed) {
  Matrices matrices{batch, Shape(batch.size()), transposed ? 1 : columns, transposed ? rows : 1};
  int64_t stride = rows * columns;
  for (size_t axis = batch.size(); axis-- > 0;) {
    matrices.batch_strides[axis] = stride;
    stride *= batch[axis];
  }
  return matrices;
}

void simplify(Product& p) {
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

Prepared prepare_product(const NodeSpec& spec, Product p, bool bias) {
  const int64_t outputs = num_elements(p.y.batch) * p.m * p.n;
  if (outputs == 0 || p.k == 0) {
    return p.accumulate ? Prepared{[](const Launch&) {}, 0, {}}
                        : prepare_zeros(static_cast<size_t>(outputs) * size_of(spec.out_type()));
  }
  simplify(p);
  switch (spec.in_type()) {
    case DType::kFloat:
    case DType::kBFloat16: return prepare_float_product(spec, p, bias);
    case DType::kDouble: return prepare_reference<double>(spec, p);
    case DType::kInt32: return prepare_reference<int32_t>(spec, p);
    case DType::kInt64: return prepare_reference<int64_t>(spec, p);
    case DType::kUint32: return prepare_reference<uint32_t>(spec, p);
    case DType::kUint64: return prepare_reference<uint64_t>(spec, p);
    default: fail(spec.node().label(), ": no product of ", name(spec.in_type()));
  }
}

std::vector<Kernel> product_kernels() {
  const auto supports = [](const NodeSpec& spec) {
    return has_product(spec.in_type()) && spec.one_type(spec.num_inputs());
  };
  // Accumulating onto a bfloat16 y would round twice.
  const auto is_bfloat16_gemm = [](const NodeSpec& spec) {
    return is_bfloat16_product(spec) && (spec.out_type() == DType::kFloat || !spec.has_input(2) || adds_bias(spec));
  };
  return {
      {"MatMul", supports, prepare_matmul},
      {"Gemm", supports, prepare_gemm},
      {"Einsum", supports, prepare_einsum},
      {"TransposedMatMul", supports, prepare_transposed_matmul, kDomain},
      {"MatMul", is_bfloat16_product, prepare_matmul, kDomain},
      {"Gemm", is_bfloat16_gemm, prepare_gemm, kDomain},
      {"TransposedMatMul", is_bfloat16_product, prepare_transposed_matmul, kDomain},
  };
}

}  // namespace onnx_train::cpu
