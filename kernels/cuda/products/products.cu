// MatMul, Gemm and TransposedMatMul: floats by cuBLASLt (cublas.h), integers by a kernel of ours.
#include <algorithm>
#include <memory>

#include "kernels/cuda/choices/fastest.h"
#include "kernels/cuda/products/algorithms.h"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/reduction/reductions.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train::cuda {
namespace {

// ---- Integers: one output per thread.

struct IntegerProduct {
  int64_t k;
  int64_t a_row, a_column, b_row, b_column, y_row, y_column;
  double alpha;
  bool accumulate;
};

template <typename T>
__global__ void multiply_integers(int64_t outputs, IntegerProduct p, Divider columns, Divider rows, Indexing<3> batch,
                                  const T* a, const T* b, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= outputs) return;
  const int64_t at_row = columns.quotient(i), matrix = rows.quotient(at_row);
  const int64_t column = i - at_row * columns.divisor(), row = at_row - matrix * rows.divisor();
  int64_t offsets[3] = {};
  batch.add_offsets(matrix, offsets);
  a += offsets[0] + row * p.a_row;
  b += offsets[1] + column * p.b_column;
  T sum = 0;
  for (int64_t l = 0; l < p.k; ++l) sum = static_cast<T>(sum + a[l * p.a_column] * b[l * p.b_row]);
  if (p.alpha != 1) sum = static_cast<T>(p.alpha * static_cast<double>(sum));
  T& to = y[offsets[2] + row * p.y_row + column * p.y_column];
  to = static_cast<T>(p.accumulate ? to + sum : sum);
}

template <typename T>
Prepared prepare_integers(const Product& p) {
  std::vector<IndexedAxis<3>> axes;
  for (size_t axis = 0; axis < p.y.batch.size(); ++axis) {
    const auto step = [&](const Matrices& m) { return m.batch[axis] == 1 ? 0 : m.batch_strides[axis]; };
    axes.push_back({p.y.batch[axis], {step(p.a), step(p.b), step(p.y)}});
  }
  const int64_t outputs = num_elements(p.y.batch) * p.m * p.n;
  const IntegerProduct product{
      p.k,     p.a.row_stride, p.a.column_stride, p.b.row_stride, p.b.column_stride, p.y.row_stride, p.y.column_stride,
      p.alpha, p.accumulate};
  return {[=, columns = Divider(p.n), rows = Divider(p.m), batch = Indexing<3>(axes)](const Launch& launch) {
    enqueue_each(launch, "multiply_integers", multiply_integers<T>, outputs, product, columns, rows, batch,
                 launch.in<T>(0), launch.in<T>(1), launch.out<T>());
  }};
}

// ---- Floats

constexpr int64_t kFewMatrices = 8;  // of a batch, each of which may fill the device by itself

// Returns the fastest of the forms; throws Error if there is none.
Prepared fastest_product(const NodeSpec& spec, const std::vector<Form>& forms) {
  if (forms.empty()) fail_as(ErrorCode::kDevice, spec.node().label(), ": cuBLASLt has no algorithm for this product");
  return fastest(spec, LibraryProduct::version(), forms);
}

Prepared prepare_library_product(const NodeSpec& spec, const LibraryProduct& product, ProductVector vector) {
  const int bias = bias_of(spec), sums = output_at(spec.node(), "sums");
  return {[=](const Launch& launch) {
            const void* const at = vector == ProductVector::kNone   ? nullptr
                                   : vector == ProductVector::kBias ? launch.inputs[bias]
                                                                    : launch.outputs[sums];
            product.run(launch, launch.inputs[0], launch.inputs[1], launch.outputs[0], at, launch.workspace);
          },
          product.workspace()};
}

// Sums input `operand` over k into the output `sums`, in a separate kernel.
Prepared prepare_operand_sums(const NodeSpec& spec, const Product& p, int operand) {
  Shape matrix = operand == 0 ? Shape{p.m, p.k} : Shape{p.k, p.n};
  size_t k = operand == 0 ? 1 : 0;
  if ((operand == 0 ? p.a : p.b).column_stride != 1) std::swap(matrix[0], matrix[1]), k = 1 - k;
  const Shape shape = {num_elements(p.y.batch), matrix[0], matrix[1]};
  std::vector<bool> is_reduced(3);
  is_reduced[1 + k] = true;
  return prepare_sum_of(spec.in_type(operand), shape, is_reduced, operand, output_at(spec.node(), "sums"));
}

// Returns the product with an innermost batch axis of one matrix: the library covers it in one call, and takes a call
// for each of p's matrices.
Product one_by_one(Product p) {
  for (Matrices* matrices : {&p.a, &p.b, &p.y}) {
    matrices->batch.push_back(1);
    matrices->batch_strides.push_back(0);
  }
  return p;
}

Prepared prepare_floats(const NodeSpec& spec, const Product& p, ProductVector vector) {
  std::vector<std::pair<std::string, Product>> ways = {{"", p}};
  const int64_t matrices = num_elements(p.y.batch);
  if (has_choices() && matrices > 1 && matrices <= kFewMatrices) ways.push_back({"one by one, ", one_by_one(p)});
  std::vector<Form> forms;
  for (const auto& [name, product] : ways) {
    add_algorithms(spec, product, vector, name, &forms,
                   [&](const LibraryProduct& library) { return prepare_library_product(spec, library, vector); });
  }
  const bool has_sums = vector == ProductVector::kSumsOfA || vector == ProductVector::kSumsOfB;
  if (has_sums && (forms.empty() || has_choices())) {
    // The library has no such epilogue for some layouts, and a slow one for others.
    const Prepared sums = prepare_operand_sums(spec, p, vector == ProductVector::kSumsOfA ? 0 : 1);
    const auto prepare = [=](const LibraryProduct& library) -> Prepared {
      const Prepared product = prepare_library_product(spec, library, ProductVector::kNone);
      return {[product = product.run, sums = sums.run](const Launch& launch) {
                product(launch);
                sums(launch);
              },
              std::max(product.workspace, sums.workspace)};
    };
    for (const auto& [name, product] : ways)
      add_algorithms(spec, product, ProductVector::kNone, "sums apart, " + name, &forms, prepare);
  }
  return fastest_product(spec, forms);
}

}  // namespace

Prepared prepare_product(const NodeSpec& spec, Product p, ProductVector vector) {
  const int64_t outputs = num_elements(p.y.batch) * p.m * p.n;
  if (outputs == 0 || p.k == 0) {
    const size_t bytes = p.accumulate ? 0 : static_cast<size_t>(outputs) * size_of(spec.out_type());
    return {[bytes](const Launch& launch) { set_bytes(launch, launch.outputs[0], 0, bytes); }};
  }
  merge_batches(p);
  if (is_float(spec.in_type())) return prepare_floats(spec, p, vector);
  switch (spec.in_type()) {
    case DType::kInt32: return prepare_integers<int32_t>(p);
    case DType::kInt64: return prepare_integers<int64_t>(p);
    case DType::kUint32: return prepare_integers<uint32_t>(p);
    case DType::kUint64: return prepare_integers<uint64_t>(p);
    default: fail(spec.node().label(), ": no product of ", name(spec.in_type()));
  }
}

namespace {

// ---- Gemm: beta C is written to y first, and the product adds to it.

template <typename T>
__global__ void fill_with_c(int64_t size, Divider columns, int64_t row_step, int64_t column_step, double beta,
                            const T* c, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= size) return;
  const int64_t row = columns.quotient(i);
  const T value = c[row * row_step + (i - row * columns.divisor()) * column_step];
  y[i] = beta == 1 ? value : static_cast<T>(beta * static_cast<double>(value));
}

template <typename T>
std::function<void(const Launch&)> fill(const Shape& c, const Product& p, double beta) {
  const int64_t columns = c.empty() ? 1 : c.back(), rows = c.size() < 2 ? 1 : c[c.size() - 2];
  const int64_t row_step = rows == 1 ? 0 : columns, column_step = columns == 1 ? 0 : 1, size = p.m * p.n;
  if (size == 0) return [](const Launch&) {};
  return [=, divider = Divider(p.n)](const Launch& launch) {
    enqueue_each(launch, "fill_with_c", fill_with_c<T>, size, divider, row_step, column_step, beta, launch.in<T>(2),
                 launch.out<T>());
  };
}

// Whether the library can add C: it has the type of y and is a bias or has the shape of y.
bool library_adds_c(const NodeSpec& spec) {
  return is_float(spec.out_type()) && spec.in_type(2) == spec.out_type() && spec.in_size(0) > 0 &&
         spec.in_size(1) > 0 && (adds_bias(spec) || adds_matrix(spec));
}

// Adds input `matrix`, which y may overwrite; before it perhaps a bias.
Prepared prepare_sum_with_matrix(const NodeSpec& spec, Product p, int matrix, int bias) {
  merge_batches(p);
  p.accumulate = true;
  std::vector<Form> forms;
  add_algorithms(spec, p, bias < 0 ? ProductVector::kNone : ProductVector::kBias, "", &forms,
                 [=](const LibraryProduct& product) -> Prepared {
                   return {[=](const Launch& launch) {
                             product.run(launch, launch.inputs[0], launch.inputs[1], launch.outputs[0],
                                         bias < 0 ? nullptr : launch.inputs[bias], launch.workspace,
                                         launch.inputs[matrix]);
                           },
                           product.workspace(),
                           {{0, matrix}}};
                 });
  return fastest_product(spec, forms);
}

// A product with an epilogue.
Prepared prepare_variant(const NodeSpec& spec, Product p) {
  const int bias = bias_of(spec), residual = input_at(spec.node(), "residual");
  if (residual >= 0) return prepare_sum_with_matrix(spec, p, residual, bias);
  if (has_step(spec.node(), EpilogueStep::kRelu)) p.activation = LibraryActivation::kRelu;
  return prepare_product(spec, p, bias < 0 ? vector_of(spec) : ProductVector::kBias);
}

Prepared prepare_gemm(const NodeSpec& spec) {
  Product p = gemm_product(spec);
  if (!epilogue_of(spec.node()).empty()) return prepare_variant(spec, p);
  const double beta = spec.node().attr("beta", 1.0f);
  const bool has_c = spec.has_input(2) && beta != 0;
  if (!has_c) return prepare_product(spec, p);
  if (library_adds_c(spec)) {
    return adds_bias(spec) ? prepare_product(spec, p, ProductVector::kBias) : prepare_sum_with_matrix(spec, p, 2, -1);
  }
  p.accumulate = true;
  const Prepared product = prepare_product(spec, p);
  const auto first =
      dispatch_numeric(spec.out_type(), [&]<typename T>(T) { return fill<T>(spec.in_shape(2), p, beta); });
  return {[first, run = product.run](const Launch& launch) {
            first(launch);
            run(launch);
          },
          product.workspace};
}

bool supports(const NodeSpec& spec) { return has_product(spec.in_type()) && spec.one_type(spec.num_inputs()); }

// ---- What the kernels of our domain take

enum class Types {
  kOne,           // one type, of which there are products
  kLibrary,       // operands and a result of the library's; C, a bias and a residual have the result's type
  kFloat32Result  // likewise, and the result is float32
};
enum class GemmC {
  kNone,
  kBias,          // none or a plain bias, which the library adds
  kBiasOrMatrix,  // a plain bias or a matrix like y, which the library adds
  kAny,           // written to y first
};
enum class Batches {
  kAny,
  kFilled,   // operands are not empty
  kAligned,  // nor does one of them broadcast; nothing scales the product
};

struct ProductVariant {
  std::vector<const char*> epilogues;
  Types types;
  GemmC c;
  Batches batches;
};

const std::vector<ProductVariant>& product_variants() {
  static const std::vector<ProductVariant> all = {
      {{""}, Types::kOne, GemmC::kNone, Batches::kAny},
      {{""}, Types::kLibrary, GemmC::kNone, Batches::kAny},
      {{""}, Types::kLibrary, GemmC::kBiasOrMatrix, Batches::kFilled},
      {{""}, Types::kFloat32Result, GemmC::kAny, Batches::kAny},
      {{"bias", "relu", "bias, relu", "residual", "bias, residual"}, Types::kLibrary, GemmC::kBias, Batches::kFilled},
      {{"sums_of_a", "sums_of_b"}, Types::kFloat32Result, GemmC::kNone, Batches::kAligned},
  };
  return all;
}

// Whether both operands are batches of equally many matrices, stored contiguously.
bool has_one_batch(const NodeSpec& spec) {
  const Shape &a = spec.in_shape(0), &b = spec.in_shape(1);
  if (a.size() < 2 || a.size() != b.size() || !std::equal(a.begin(), a.end() - 2, b.begin())) return false;
  const auto leads = [&](const char* name) {
    const Shape permutation = spec.node().attr(name, Shape{});
    for (size_t i = 0; i + 2 < permutation.size(); ++i) {
      if (permutation[i] != static_cast<int64_t>(i)) return false;
    }
    return true;
  };
  return leads("perm_a") && leads("perm_b");
}

bool has_types(const NodeSpec& spec, Types types) {
  if (types == Types::kOne) return supports(spec);
  for (int i = 2; i < spec.num_inputs(); ++i) {
    if (spec.has_input(i) && spec.in_type(i) != spec.out_type()) return false;
  }
  return spec.in_type(1) == spec.in_type(0) && has_library_product(spec.in_type(), spec.out_type()) &&
         (types == Types::kLibrary || spec.out_type() == DType::kFloat);
}

bool has_c(const NodeSpec& spec, GemmC c) {
  if (input_at(spec.node(), "c") < 0) return c == GemmC::kNone || c == GemmC::kBias;
  switch (c) {
    case GemmC::kNone: return false;
    case GemmC::kBias: return adds_bias(spec);
    case GemmC::kBiasOrMatrix: return adds_bias(spec) || adds_matrix(spec);
    case GemmC::kAny: return true;
  }
  return false;
}

bool has_batches(const NodeSpec& spec, Batches batches) {
  if (batches == Batches::kAny) return true;
  if (spec.in_size(0) == 0 || spec.in_size(1) == 0) return false;
  return batches == Batches::kFilled || (has_one_batch(spec) && spec.node().attr("alpha", 1.0f) == 1);
}

// A row of our domain, which `of` prepares.
Kernel variant_row(const char* op, const ProductVariant& variant, Prepared (*of)(const NodeSpec&)) {
  const auto takes = [&variant](const NodeSpec& spec) {
    const int bias = input_at(spec.node(), "bias"), residual = input_at(spec.node(), "residual");
    return has_types(spec, variant.types) && has_c(spec, variant.c) && has_batches(spec, variant.batches) &&
           (bias < 0 || is_row_of_result(spec, bias)) && (residual < 0 || spec.in_shape(residual) == spec.out_shape());
  };
  return Kernel{op, takes, of, kDomain}.with_epilogues(epilogues_of(op, variant.epilogues));
}

Prepared prepare_matmul(const NodeSpec& spec) { return prepare_variant(spec, matmul_product(spec)); }
Prepared prepare_transposed_matmul(const NodeSpec& spec) {
  return prepare_variant(spec, transposed_matmul_product(spec));
}

}  // namespace

std::vector<Kernel> product_kernels() {
  std::vector<Kernel> rows = {
      {"MatMul", supports, prepare_matmul},
      {"Gemm", supports, prepare_gemm},
      {"Einsum", supports, prepare_einsum},
  };
  for (const ProductVariant& variant : product_variants()) {
    rows.push_back(variant_row("MatMul", variant, prepare_matmul));
    rows.push_back(variant_row("Gemm", variant, prepare_gemm));
    rows.push_back(variant_row("TransposedMatMul", variant, prepare_transposed_matmul));
  }
  return rows;
}

}  // namespace onnx_train::cuda
