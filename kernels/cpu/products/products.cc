// MatMul, Gemm and TransposedMatMul, also with bfloat16 operands (kernels/functions/products.cc). float32 and bfloat16
// operands go to float_products.cc; float64, and float32 where there is no oneDNN, use BLAS; integers use plain loops.
#include "kernels/cpu/products/products.h"

#include <algorithm>

#include "kernels/cpu/products/blas.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// ---- float64 and integers

GemmShape shape_of(const Product& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .a_row = p.a.row_stride,
          .a_column = p.a.column_stride,
          .b_row = p.b.row_stride,
          .b_column = p.b.column_stride,
          .y_row = p.y.row_stride,
          .accumulate = p.accumulate};
}

void multiply(const Product& p, const double* a, const double* b, double* y) {
  multiply_by_blas(shape_of(p), p.alpha, a, b, y);
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
  if (std::max({p.m, p.n, p.k}) > kMostOfBlas) fail(spec.node().label(), ": a dimension is larger than BLAS can count");
  return {
      [p, a = starts(p.y.batch, p.a), b = starts(p.y.batch, p.b), y = starts(p.y.batch, p.y)](const Launch& launch) {
        for (size_t i = 0; i < y.size(); ++i) {
          multiply(p, launch.in<T>(0) + a[i], launch.in<T>(1) + b[i], launch.out<T>() + y[i]);
        }
      },
      0,
      {}};
}

// Writes the bias to each row of y.
void fill_with_bias(const Product& p, const float* bias, float* y) {
  parallel_for(p.m, std::max<int64_t>(1, kElementGrain / p.n), [&](int64_t i, int64_t end) {
    for (; i < end; ++i) std::copy(bias, bias + p.n, y + i * p.y.row_stride);
  });
}

Prepared prepare_zeros(size_t bytes) {
  return {[=](const Launch& launch) { std::fill_n(launch.out<char>(), bytes, char{0}); }, 0, {}};
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

bool has_bias(const NodeSpec& spec) { return vector_of(spec) == ProductVector::kBias; }

Prepared prepare_matmul(const NodeSpec& spec) { return prepare_product(spec, matmul_product(spec), has_bias(spec)); }
Prepared prepare_transposed_matmul(const NodeSpec& spec) {
  return prepare_product(spec, transposed_matmul_product(spec), has_bias(spec));
}

Prepared prepare_gemm(const NodeSpec& spec) {
  Product p = gemm_product(spec);
  const double beta = spec.node().attr("beta", 1.0f);
  const bool has_c = spec.has_input(2) && beta != 0;
  // Any other C is written to y first, and the product accumulates onto it.
  const bool bias = has_c && p.k > 0 && spec.in_type(2) == DType::kFloat && adds_bias(spec);
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

Prepared prepare_product(const NodeSpec& spec, Product p, bool bias) {
  const int64_t outputs = num_elements(p.y.batch) * p.m * p.n;
  if (outputs == 0 || p.k == 0) {
    return p.accumulate ? Prepared{[](const Launch&) {}, 0, {}}
                        : prepare_zeros(static_cast<size_t>(outputs) * size_of(spec.out_type()));
  }
  merge_batches(p);
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

Prepared prepare_blas_product(const NodeSpec& spec, Product p, bool bias) {
  if (std::max({p.m, p.n, p.k}) > kMostOfBlas) fail(spec.node().label(), ": a dimension is larger than BLAS can count");
  // Below so many operations a product is too small to be divided: the threads take products of the batch.
  constexpr int64_t kFewProducts = int64_t{1} << 21;
  const int64_t work = std::max<int64_t>(1, p.m * p.n * p.k), grain = std::max<int64_t>(1, kElementGrain / work);
  if (bias) p.accumulate = true;
  return {[p, bias, grain, divides = work >= kFewProducts, a_at = starts(p.y.batch, p.a), b_at = starts(p.y.batch, p.b),
           y_at = starts(p.y.batch, p.y)](const Launch& launch) {
            const auto *const a = launch.in<float>(0), *const b = launch.in<float>(1);
            float* const y = launch.out<float>();
            const auto multiply_some = [&](int64_t begin, int64_t end) {
              for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
                if (bias) fill_with_bias(p, launch.in<float>(2), y + y_at[i]);
                multiply_by_blas(shape_of(p), p.alpha, a + a_at[i], b + b_at[i], y + y_at[i]);
              }
            };
            const auto count = static_cast<int64_t>(y_at.size());
            divides ? multiply_some(0, count) : parallel_for(count, grain, multiply_some);
          },
          0,
          {}};
}

std::vector<Kernel> product_kernels() {
  const auto supports = [](const NodeSpec& spec) {
    return has_product(spec.in_type()) && spec.one_type(spec.num_inputs());
  };
  // Accumulating onto a bfloat16 y would round twice.
  const auto is_bfloat16_gemm = [](const NodeSpec& spec) {
    return is_bfloat16_product(spec) && (spec.out_type() == DType::kFloat || !spec.has_input(2) || adds_bias(spec));
  };
  const auto supports_bfloat16 = [](const NodeSpec& spec) {
    return is_bfloat16_product(spec) && (!has_bias(spec) || (spec.in_size(0) > 0 && spec.in_size(1) > 0));
  };
  const auto bfloat16_row = [&](const char* op, Prepared (*prepare)(const NodeSpec&)) {
    return Kernel{op, supports_bfloat16, prepare, kDomain}.with_epilogues({"", "bias"});
  };
  // The CPU gains nothing by epilogues in float32; they are for devices that do.
  return {
      {"MatMul", supports, prepare_matmul},
      {"Gemm", supports, prepare_gemm},
      {"Einsum", supports, prepare_einsum},
      {"TransposedMatMul", supports, prepare_transposed_matmul, kDomain},
      bfloat16_row("MatMul", prepare_matmul),
      {"Gemm", is_bfloat16_gemm, prepare_gemm, kDomain},
      bfloat16_row("TransposedMatMul", prepare_transposed_matmul),
  };
}

}  // namespace onnx_train::cpu
