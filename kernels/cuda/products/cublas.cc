#include "kernels/cuda/products/cublas.h"

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <numeric>

#include "kernels/cuda/support/launch.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

constexpr size_t kMostWorkspace = size_t{32} << 20;  // bytes that NVIDIA recommends for Hopper

void check_library(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail_as(ErrorCode::kDevice, "cuBLASLt: ", call, ": ", cublasLtGetStatusName(status));
}

// Returns the library's handle for the current device. Any thread may use it; it lives as long as the program.
cublasLtHandle_t library() {
  static std::mutex mutex;
  static auto& handles = *new std::map<int, cublasLtHandle_t>;
  const int device = current_device();
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[device];
  if (!handle) check_library(cublasLtCreate(&handle), "cublasLtCreate");
  return handle;
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat: return CUDA_R_32F;
    case DType::kDouble: return CUDA_R_64F;
    case DType::kBFloat16: return CUDA_R_16BF;
    case DType::kFloat16: return CUDA_R_16F;
    case DType::kFloat8E4M3FN: return CUDA_R_8F_E4M3;
    case DType::kFloat8E5M2: return CUDA_R_8F_E5M2;
    default: fail("cuBLASLt has no products of ", name(dtype));
  }
}

Matrices transposed(Matrices m) {
  std::swap(m.row_stride, m.column_stride);
  return m;
}

// A matrix as the library sees it: with contiguous columns.
class Layout {
 public:
  Layout(const Matrices& matrices, int64_t rows, int64_t columns, DType dtype, int64_t batch, int64_t stride) {
    // If rows are contiguous, they are the columns of the transposed matrix.
    is_transposed_ = matrices.row_stride != 1 && rows > 1;
    if (is_transposed_) std::swap(rows, columns);
    const int64_t leading = std::max(is_transposed_ ? matrices.row_stride : matrices.column_stride, rows);
    check_library(cublasLtMatrixLayoutCreate(&layout_, type_of(dtype), static_cast<uint64_t>(rows),
                                             static_cast<uint64_t>(columns), leading),
                  "cublasLtMatrixLayoutCreate");
    const auto count = static_cast<int32_t>(batch);
    check_library(cublasLtMatrixLayoutSetAttribute(layout_, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
                  "batch");
    check_library(
        cublasLtMatrixLayoutSetAttribute(layout_, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        "batch");
    leading_ = leading;
    stride_ = stride;
    alignment_ = std::gcd(std::gcd(leading, stride) * static_cast<int64_t>(size_of(dtype)), kVectorBytes);
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;

  cublasLtMatrixLayout_t get() const { return layout_; }
  bool is_transposed() const { return is_transposed_; }
  int64_t alignment() const { return alignment_; }
  int64_t leading() const { return leading_; }
  int64_t stride() const { return stride_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
  bool is_transposed_ = false;
  int64_t alignment_ = 1, leading_ = 0, stride_ = 0;
};

bool has_operand(LibraryActivation activation) {
  return activation == LibraryActivation::kGeluTanhWithOperand || activation == LibraryActivation::kGeluTanhGrad;
}

cublasLtEpilogue_t epilogue_with(LibraryActivation activation, bool has_bias) {
  switch (activation) {
    case LibraryActivation::kNone: return has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case LibraryActivation::kRelu: return has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case LibraryActivation::kGeluTanh: return has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case LibraryActivation::kGeluTanhWithOperand:
      return has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case LibraryActivation::kGeluTanhGrad: return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// Offsets of the first matrices of each call, in bytes.
struct Start {
  int64_t a = 0, b = 0, y = 0;
};

}  // namespace

// The library's result has contiguous columns, which are our rows: its first operand is our b, its second our a.
struct LibraryProduct::State {
  Product product;
  cublasLtMatmulDesc_t description = nullptr;
  std::unique_ptr<Layout> a, b, y;
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms;  // by the library's estimate of their time
  std::vector<Start> starts = {{}};
  bool is_double = false, has_scales = false;
  ProductVector epilogue = ProductVector::kNone;  // in terms of the library's operands
  bool is_swapped = false;                        // a is the caller's b

  State(const Product& product, ProductTypes types, ProductVector epilogue, int64_t alignment, int most);
  State(const State&) = delete;
  ~State() { cublasLtMatmulDescDestroy(description); }

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check_library(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value),
                  "cublasLtMatmulDescSetAttribute");
  }
  void describe(ProductTypes types);
  bool has_layout_of_epilogue() const;
  void find_algorithms(ProductTypes types, int64_t addresses, int most);
};

namespace {

// Returns the offsets along all batch axes but the last, which one call covers.
std::vector<Start> starts_of(const Product& p, ProductTypes types) {
  std::vector<Start> starts = {{}};
  const auto a_bytes = static_cast<int64_t>(size_of(types.in)), b_bytes = static_cast<int64_t>(size_of(types.in_b)),
             out_bytes = static_cast<int64_t>(size_of(types.out));
  for (size_t axis = 0; axis + 1 < p.y.batch.size(); ++axis) {
    const auto step = [&](const Matrices& m, int64_t bytes) {
      return m.batch[axis] == 1 ? 0 : m.batch_strides[axis] * bytes;
    };
    std::vector<Start> more;
    for (const Start& start : starts) {
      for (int64_t i = 0; i < p.y.batch[axis]; ++i) {
        more.push_back(
            {start.a + i * step(p.a, a_bytes), start.b + i * step(p.b, b_bytes), start.y + i * step(p.y, out_bytes)});
      }
    }
    starts = std::move(more);
  }
  return starts;
}

}  // namespace

void LibraryProduct::State::describe(ProductTypes types) {
  const Product& p = product;
  const auto compute = is_double                                 ? CUBLAS_COMPUTE_64F
                       : types.tf32 && types.in == DType::kFloat ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                 : CUBLAS_COMPUTE_32F;
  check_library(cublasLtMatmulDescCreate(&description, compute, is_double ? CUDA_R_64F : CUDA_R_32F),
                "cublasLtMatmulDescCreate");
  const int64_t batch = p.y.batch.empty() ? 1 : p.y.batch.back();
  const auto stride = [&](const Matrices& m) { return batch == 1 || m.batch.back() == 1 ? 0 : m.batch_strides.back(); };
  a = std::make_unique<Layout>(transposed(p.a), p.k, p.m, types.in, batch, stride(p.a));
  b = std::make_unique<Layout>(transposed(p.b), p.n, p.k, types.in_b, batch, stride(p.b));
  y = std::make_unique<Layout>(transposed(p.y), p.n, p.m, types.out, batch, stride(p.y));
  const int32_t of_b = b->is_transposed() ? CUBLAS_OP_T : CUBLAS_OP_N,
                of_a = a->is_transposed() ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(CUBLASLT_MATMUL_DESC_TRANSA, of_b);
  set(CUBLASLT_MATMUL_DESC_TRANSB, of_a);
  const auto name = [&] {
    switch (epilogue) {
      case ProductVector::kSumsOfA: return CUBLASLT_EPILOGUE_BGRADB;
      case ProductVector::kSumsOfB: return CUBLASLT_EPILOGUE_BGRADA;
      default: return epilogue_with(p.activation, epilogue == ProductVector::kBias);
    }
  };
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<int32_t>(name()));
  if (epilogue != ProductVector::kNone) {
    const DType bias = has_scales ? DType::kBFloat16 : types.out;
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(bias)));
    // The library chooses an algorithm by the alignment of the vector's address, which run() sets later.
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<void*>(kVectorBytes));
  }
  if (has_operand(p.activation)) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, static_cast<int32_t>(type_of(types.out)));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, y->leading());
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, y->stride());
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, reinterpret_cast<void*>(kVectorBytes));
  }
  if (has_scales) {
    // As for the vector: run() sets the addresses.
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, reinterpret_cast<void*>(kVectorBytes));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, reinterpret_cast<void*>(kVectorBytes));
  }
  // All matrices share one bias.
  if (epilogue == ProductVector::kSumsOfA) set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, p.m);
  if (epilogue == ProductVector::kSumsOfB) set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, p.n);
}

// The library sums its first operand if it is not transposed, and its second if it is. A call has one vector of sums
// per matrix. The operand of GELU has steps of whole vectors.
bool LibraryProduct::State::has_layout_of_epilogue() const {
  constexpr int64_t kStep = 8;  // in the documentation of CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD
  if (has_operand(product.activation) && (y->leading() % kStep != 0 || y->stride() % kStep != 0)) return false;
  switch (epilogue) {
    case ProductVector::kSumsOfA: return starts.size() == 1 && a->is_transposed();
    case ProductVector::kSumsOfB: return starts.size() == 1 && !b->is_transposed();
    default: return true;
  }
}

void LibraryProduct::State::find_algorithms(ProductTypes types, int64_t addresses, int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  check_library(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_library(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
                  "cublasLtMatmulPreferenceSetAttribute");
  };
  const auto alignment = [&](const Layout& layout, DType dtype, int64_t Start::*offset) {
    int64_t bytes = std::gcd(std::max(layout.alignment(), static_cast<int64_t>(size_of(dtype))), addresses);
    for (const Start& start : starts) bytes = std::gcd(bytes, start.*offset);
    return static_cast<uint32_t>(bytes);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
  // Partial sums go through the workspace in a fixed order, so that results do not change between runs, and in the type
  // of the sums, so that a 16-bit result is rounded once.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(*b, types.in_b, &Start::b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(*a, types.in, &Start::a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(*y, types.out, &Start::y));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(*y, types.out, &Start::y));
  algorithms.resize(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library(), description, b->get(), a->get(), y->get(),
                                                               y->get(), preference, most, algorithms.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_library(status, "cublasLtMatmulAlgoGetHeuristic");
  algorithms.resize(static_cast<size_t>(count));
  std::erase_if(algorithms, [](const auto& algorithm) { return algorithm.state != CUBLAS_STATUS_SUCCESS; });
}

bool has_library_product(DType in, DType out) {
  const bool is_narrow = in == DType::kBFloat16 || in == DType::kFloat16;
  return (in == out && (is_narrow || in == DType::kFloat || in == DType::kDouble)) ||
         (is_narrow && out == DType::kFloat);
}

bool has_8_bit_product(DType a, DType b, DType out) {
  return is_8_bit_float(a) && is_8_bit_float(b) && (a == DType::kFloat8E4M3FN || b == DType::kFloat8E4M3FN) &&
         (out == DType::kBFloat16 || out == DType::kFloat);
}

namespace {

ProductVector with_swapped_operands(ProductVector epilogue) {
  switch (epilogue) {
    case ProductVector::kSumsOfA: return ProductVector::kSumsOfB;
    case ProductVector::kSumsOfB: return ProductVector::kSumsOfA;
    default: return epilogue;  // a bias belongs to y's contiguous axis in both cases
  }
}

}  // namespace

LibraryProduct::State::State(const Product& p, ProductTypes types, ProductVector e, int64_t alignment, int most)
    : product(p), is_double(types.in == DType::kDouble), has_scales(is_8_bit_float(types.in)), epilogue(e) {
  if (p.y.column_stride != 1 && p.n > 1) {
    // yᵀ = bᵀ aᵀ
    product.a = transposed(p.b);
    product.b = transposed(p.a);
    product.y = transposed(p.y);
    std::swap(product.m, product.n);
    std::swap(types.in, types.in_b);
    is_swapped = true;
    epilogue = with_swapped_operands(e);
  }
  starts = starts_of(product, types);
  describe(types);
  if (has_layout_of_epilogue()) find_algorithms(types, alignment, most);
}

LibraryProduct::LibraryProduct(std::shared_ptr<State> state, size_t rank) : state_(std::move(state)), rank_(rank) {}

LibraryProduct::LibraryProduct(const Product& product, ProductTypes types, ProductVector epilogue, int64_t alignment)
    : LibraryProduct(std::make_shared<State>(product, types, epilogue, alignment, 1), 0) {
  if (state_->algorithms.empty()) fail_as(ErrorCode::kDevice, "cuBLASLt has no algorithm for this product");
}

std::vector<LibraryProduct> LibraryProduct::find(const Product& product, ProductTypes types, ProductVector epilogue,
                                                 int most) {
  const auto state = std::make_shared<State>(product, types, epilogue, kVectorBytes, most);
  std::vector<LibraryProduct> found;
  for (size_t rank = 0; rank < state->algorithms.size(); ++rank) found.push_back(LibraryProduct(state, rank));
  return found;
}

std::string LibraryProduct::version() { return concat("cuBLASLt ", cublasLtGetVersion()); }

size_t LibraryProduct::workspace() const { return state_->algorithms[rank_].workspaceSize; }

void LibraryProduct::run(const Launch& launch, const void* a, const void* b, void* y, const void* vector,
                         void* workspace, const void* c, const void* x, OperandScales scales) const {
  State& s = *state_;
  if (s.epilogue != ProductVector::kNone) s.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
  const double alpha = s.product.alpha, beta = s.product.accumulate ? 1 : 0;
  const auto narrow_alpha = static_cast<float>(alpha), narrow_beta = static_cast<float>(beta);
  const void* const alpha_at = s.is_double ? static_cast<const void*>(&alpha) : &narrow_alpha;
  const void* const beta_at = s.is_double ? static_cast<const void*>(&beta) : &narrow_beta;
  const cublasLtMatmulHeuristicResult_t& algorithm = s.algorithms[rank_];
  if (s.is_swapped) std::swap(a, b), std::swap(scales.a, scales.b);
  if (s.has_scales) {
    s.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.b);
    s.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.a);
  }
  for (const Start& start : s.starts) {
    char* const to = static_cast<char*>(y) + start.y;
    const void* const from = c ? static_cast<const char*>(c) + start.y : to;
    if (x) s.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<const char*>(x) + start.y);
    check_library(cublasLtMatmul(library(), s.description, alpha_at, static_cast<const char*>(b) + start.b, s.b->get(),
                                 static_cast<const char*>(a) + start.a, s.a->get(), beta_at, from, s.y->get(), to,
                                 s.y->get(), &algorithm.algo, workspace, algorithm.workspaceSize, stream_of(launch)),
                  "cublasLtMatmul");
  }
}

}  // namespace onnx_train::cuda
