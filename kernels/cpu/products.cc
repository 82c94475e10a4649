// MatMul and Gemm: float32 by oneDNN, float64 by BLAS, integers by plain loops. Einsum is in einsum.cc.
#include <cblas.h>

#include <algorithm>
#include <climits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products.h"
#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

using Desc = dnnl::memory::desc;

// ---- Operands

// For each product of the batch, the number of the operand's matrix that it reads.
std::vector<int64_t> matrices_read(const Shape& batch, const Shape& operand_batch) {
  std::vector<int64_t> numbers(static_cast<size_t>(num_elements(batch)));
  for (size_t i = 0; i < numbers.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), number = 0, stride = 1;
    for (size_t axis = batch.size(); axis-- > 0;) {
      if (operand_batch[axis] != 1) number += rest % batch[axis] * stride;
      rest /= batch[axis];
      stride *= operand_batch[axis];
    }
    numbers[i] = number;
  }
  return numbers;
}

// ---- float32

// The layout of a batch of rows x columns matrices, which lie transposed in memory if `transposed`.
Desc matrix_layout(const Shape& batch, int64_t rows, int64_t columns, bool transposed) {
  Shape dims = batch, strides(batch.size());
  int64_t stride = rows * columns;
  for (size_t axis = batch.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= batch[axis];
  }
  dims.insert(dims.end(), {rows, columns});
  strides.push_back(transposed ? 1 : columns);
  strides.push_back(transposed ? rows : 1);
  return {dims, dnnl::memory::data_type::f32, strides};
}

Prepared prepare_float(const NodeSpec& spec, const Product& p, bool bias) {
  return prepare_chain(spec, [&](Chain& chain) {
    const Operand a = input(0, matrix_layout(p.batch_a, p.m, p.k, p.transpose_a));
    const Operand b = input(1, matrix_layout(p.batch_b, p.k, p.n, p.transpose_b));
    const Operand out = output(0, matrix_layout(p.batch, p.m, p.n, false));
    const Operand c = input(2, matrix_layout(Shape(p.batch.size(), 1), 1, p.n, false));
    auto attributes = Chain::attributes();
    dnnl::post_ops after;
    if (p.alpha != 1) after.append_eltwise(dnnl::algorithm::eltwise_linear, static_cast<float>(p.alpha), 0);
    if (p.accumulate) after.append_sum(1);
    attributes.set_post_ops(after);
    using Matmul = dnnl::matmul::primitive_desc;
    if (bias) {
      chain.add(Matmul(chain.engine(), a.layout, b.layout, c.layout, out.layout, attributes),
                {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_BIAS, c}, {DNNL_ARG_DST, out}});
    } else {
      chain.add(Matmul(chain.engine(), a.layout, b.layout, out.layout, attributes),
                {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, out}});
    }
  });
}

// ---- float64 and integers

void multiply(const Product& p, const double* a, const double* b, double* out) {
  const auto size = [](int64_t n) { return static_cast<blasint>(n); };
  cblas_dgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans,
              size(p.m), size(p.n), size(p.k), p.alpha, a, size(p.transpose_a ? p.m : p.k), b,
              size(p.transpose_b ? p.k : p.n), p.accumulate ? 1 : 0, out, size(p.n));
}

template <typename T>
void multiply(const Product& p, const T* a, const T* b, T* out) {
  const int64_t step_a = p.transpose_a ? p.m : 1, step_b = p.transpose_b ? 1 : p.n;
  parallel_for(p.m, std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, p.n * p.k)), [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const T* row = a + (p.transpose_a ? i : i * p.k);
      for (int64_t j = 0; j < p.n; ++j) {
        const T* column = b + (p.transpose_b ? j * p.k : j);
        T sum = 0;
        for (int64_t l = 0; l < p.k; ++l) sum = static_cast<T>(sum + row[l * step_a] * column[l * step_b]);
        if (p.alpha != 1) sum = static_cast<T>(p.alpha * static_cast<double>(sum));
        T& to = out[i * p.n + j];
        to = static_cast<T>(p.accumulate ? to + sum : sum);
      }
    }
  });
}

template <typename T>
Prepared prepare_plain(const NodeSpec& spec, const Product& p) {
  if (std::max({p.m, p.n, p.k}) > INT_MAX) fail(spec.node().label(), ": a dimension is larger than BLAS can count");
  const auto read_a = matrices_read(p.batch, p.batch_a), read_b = matrices_read(p.batch, p.batch_b);
  return {[=](const Args& args) {
            for (size_t i = 0; i < read_a.size(); ++i) {
              multiply(p, args.in<T>(0) + read_a[i] * p.m * p.k, args.in<T>(1) + read_b[i] * p.k * p.n,
                       args.out<T>() + static_cast<int64_t>(i) * p.m * p.n);
            }
          },
          0,
          {}};
}

// ---- The starting value beta C of a Gemm

template <typename T>
std::function<void(const Args&)> fill_with_c(const Shape& c, int64_t m, int64_t n, double beta) {
  const int64_t columns = c.empty() ? 1 : c.back(), rows = c.size() < 2 ? 1 : c[c.size() - 2];
  const int64_t row_step = rows == 1 ? 0 : columns, column_step = columns == 1 ? 0 : 1;
  return [=](const Args& args) {
    const T* from = args.in<T>(2);
    T* to = args.out<T>();
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

Prepared prepare_zeros(size_t bytes) {
  return {[=](const Args& args) { std::fill_n(args.out<char>(), bytes, char{0}); }, 0, {}};
}

Product gemm_product(const NodeSpec& spec) {
  const Node& node = spec.node();
  Product p;
  p.transpose_a = node.attr("transA", 0) != 0;
  p.transpose_b = node.attr("transB", 0) != 0;
  p.alpha = node.attr("alpha", 1.0f);
  Shape a = spec.in_shape(0), b = spec.in_shape(1);
  if (a.size() != 2 || b.size() != 2) fail(node.label(), ": its operands must be matrices");
  if (p.transpose_a) std::swap(a[0], a[1]);
  if (p.transpose_b) std::swap(b[0], b[1]);
  p.m = a[0];
  p.k = a[1];
  p.n = b[1];
  const Shape y = {p.m, p.n};
  const bool fits = b[0] == p.k && spec.out_shape() == y;
  if (!fits || (spec.has_input(2) && broadcast(spec.in_shape(2), y) != y)) {
    fail(node.label(), ": ", to_string(a), " times ", to_string(b),
         " (after its transposes) does not fit its C or its output");
  }
  return p;
}

Prepared prepare_gemm(const NodeSpec& spec) {
  const Node& node = spec.node();
  Product p = gemm_product(spec);
  const double beta = node.attr("beta", 1.0f);
  const bool has_c = spec.has_input(2) && beta != 0;
  // One row, as biases are, is added by the product itself; anything else is written first and added to.
  const bool bias = has_c && beta == 1 && p.alpha == 1 && spec.in_type() == DType::kFloat && p.k > 0 &&
                    spec.in_size(2) == p.n && spec.in_shape(2).back() == p.n;
  if (!has_c || bias) return prepare_product(spec, p, bias);
  p.accumulate = true;
  Prepared product = prepare_product(spec, p);
  const auto fill = dispatch_numeric(
      spec.in_type(), [&](auto zero) { return fill_with_c<decltype(zero)>(spec.in_shape(2), p.m, p.n, beta); });
  return {[fill, run = product.run](const Args& args) {
            fill(args);
            run(args);
          },
          product.workspace,
          {}};
}

}  // namespace

bool has_product(DType dtype) {
  return is_float_or_double(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64 || dtype == DType::kUint32 ||
         dtype == DType::kUint64;
}

Product matmul_product(Shape a, Shape b) {
  if (a.size() == 1) a.insert(a.begin(), 1);
  if (b.size() == 1) b.push_back(1);
  Product p;
  p.m = a[a.size() - 2];
  p.k = a[a.size() - 1];
  p.n = b[b.size() - 1];
  p.batch_a.assign(a.begin(), a.end() - 2);
  p.batch_b.assign(b.begin(), b.end() - 2);
  const size_t rank = std::max(p.batch_a.size(), p.batch_b.size());
  p.batch_a.insert(p.batch_a.begin(), rank - p.batch_a.size(), 1);
  p.batch_b.insert(p.batch_b.begin(), rank - p.batch_b.size(), 1);
  p.batch = broadcast(p.batch_a, p.batch_b);
  if (num_elements(p.batch_b) == 1 && p.batch == p.batch_a) {  // every row of a meets the same b
    p.m *= num_elements(p.batch);
    p.batch = p.batch_a = p.batch_b = {};
  } else if (p.batch_a == p.batch_b) {
    p.batch = p.batch_a = p.batch_b = {num_elements(p.batch)};
  }
  return p;
}

Prepared prepare_product(const NodeSpec& spec, const Product& p, bool bias) {
  if (num_elements(p.batch) * p.m * p.n * p.k == 0) {
    const size_t bytes = static_cast<size_t>(num_elements(p.batch) * p.m * p.n) * size_of(spec.in_type());
    return p.accumulate ? Prepared{[](const Args&) {}, 0, {}} : prepare_zeros(bytes);
  }
  switch (spec.in_type()) {
    case DType::kFloat: return prepare_float(spec, p, bias);
    case DType::kDouble: return prepare_plain<double>(spec, p);
    case DType::kInt32: return prepare_plain<int32_t>(spec, p);
    case DType::kInt64: return prepare_plain<int64_t>(spec, p);
    case DType::kUint32: return prepare_plain<uint32_t>(spec, p);
    case DType::kUint64: return prepare_plain<uint64_t>(spec, p);
    default: fail(spec.node().label(), ": no product of ", name(spec.in_type()));
  }
}

std::vector<Kernel> product_kernels() {
  const auto supports = [](const NodeSpec& spec) { return has_product(spec.in_type()); };
  return {
      {"MatMul", supports,
       [](const NodeSpec& spec) { return prepare_product(spec, matmul_product(spec.in_shape(0), spec.in_shape(1))); }},
      {"Gemm", supports, prepare_gemm},
      {"Einsum", supports, prepare_einsum},
  };
}

}  // namespace onnx_train::cpu
