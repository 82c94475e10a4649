// The functions of cuBLASLt that need a device, on the host. The descriptors are those of the real library, which
// stores and checks their attributes without a device. This file reads the attributes back, so that a wrong leading
// dimension or order of operands gives a wrong result.
#include <cblas.h>
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/cuda_on_host/gpu_on_host.h"
#include "tests/cuda_on_host/runtime.h"

namespace {

size_t bytes_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2: return 1;
    case CUDA_R_32F: return 4;
    case CUDA_R_64F: return 8;
    default: return 2;
  }
}

// From the first element of `batch` matrices, `stride` elements apart, to the end of the last one.
size_t extent_bytes(cudaDataType_t type, int64_t rows, int64_t columns, int64_t leading, int64_t batch,
                    int64_t stride) {
  return bytes_of(type) * static_cast<size_t>((batch - 1) * stride + (columns - 1) * leading + rows);
}

struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  int64_t rows = 0, columns = 0, leading = 0, stride = 0;
  int batch = 1;

  explicit Layout(cublasLtMatrixLayout_t from) {
    uint32_t code = 0;
    uint64_t size[2] = {};
    get(from, CUBLASLT_MATRIX_LAYOUT_TYPE, &code);
    get(from, CUBLASLT_MATRIX_LAYOUT_ROWS, &size[0]);
    get(from, CUBLASLT_MATRIX_LAYOUT_COLS, &size[1]);
    get(from, CUBLASLT_MATRIX_LAYOUT_LD, &leading);
    get(from, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride);
    get(from, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch);
    type = static_cast<cudaDataType_t>(code);
    rows = static_cast<int64_t>(size[0]);
    columns = static_cast<int64_t>(size[1]);
  }
  bool operator==(const Layout&) const = default;
  // From the first element to the end of the last one.
  size_t bytes() const { return extent_bytes(type, rows, columns, leading, batch, stride); }
  // The library does not compare the leading dimension with the number of rows.
  bool is_valid() const { return leading >= rows && rows > 0 && columns > 0; }

 private:
  template <typename T>
  static void get(cublasLtMatrixLayout_t from, cublasLtMatrixLayoutAttribute_t attribute, T* value) {
    size_t written = 0;
    cublasLtMatrixLayoutGetAttribute(from, attribute, value, sizeof(T), &written);
  }
};

template <typename T>
T attribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t name) {
  T value{};
  size_t written = 0;
  cublasLtMatmulDescGetAttribute(description, name, &value, sizeof value, &written);
  return value;
}

double load(const void* data, cudaDataType_t type, int64_t i) {
  const auto of_8_bits = [&](__nv_fp8_interpretation_t format) {
    const __half_raw number = __nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(data)[i], format);
    return static_cast<double>(__half2float(__half(number)));
  };
  switch (type) {
    case CUDA_R_8F_E4M3: return of_8_bits(__NV_E4M3);
    case CUDA_R_8F_E5M2: return of_8_bits(__NV_E5M2);
    case CUDA_R_32F: return static_cast<const float*>(data)[i];
    case CUDA_R_64F: return static_cast<const double*>(data)[i];
    case CUDA_R_16BF: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    default: return __half2float(static_cast<const __half*>(data)[i]);
  }
}

void store(void* data, cudaDataType_t type, int64_t i, double value) {
  switch (type) {
    case CUDA_R_32F: static_cast<float*>(data)[i] = static_cast<float>(value); break;
    case CUDA_R_64F: static_cast<double*>(data)[i] = value; break;
    case CUDA_R_16BF: static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(static_cast<float>(value)); break;
    default: static_cast<__half*>(data)[i] = __float2half(static_cast<float>(value));
  }
}

// The bits of which the library's epilogues consist.
constexpr int kRelu = CUBLASLT_EPILOGUE_RELU, kBias = CUBLASLT_EPILOGUE_BIAS, kGelu = CUBLASLT_EPILOGUE_GELU,
              kOperand = CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU,
              kGeluGradient = CUBLASLT_EPILOGUE_DGELU & ~kOperand;

// GELU with tanh, and its slope.
double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double u = std::sqrt(2 / M_PI), t = std::tanh(u * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t + x * (1 - t * t) * u * (1 + 3 * 0.044715 * x * x));
}

// Rounds to 10 bits after the point, as tensor cores round float32; ties round away from zero.
double rounded_to_tf32(double value) {
  constexpr uint32_t kDropped = 13;
  auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  bits += 1u << (kDropped - 1);
  return std::bit_cast<float>(bits >> kDropped << kDropped);
}

// The factors of operands of 8 bits, in device memory.
struct Scales {
  const float *a = nullptr, *b = nullptr;

  double product() const { return a ? static_cast<double>(*a) * static_cast<double>(*b) : 1; }
};

struct Call {
  Layout a, b, c, d;
  bool a_transposed, b_transposed, has_tf32;
  int epilogue;
  void* vector;  // vector of the epilogue
  cudaDataType_t vector_type;
  int64_t vector_stride;
  void* operand;  // of GELU
  int64_t operand_leading, operand_stride;
  double alpha, beta;
  const void *a_at, *b_at, *c_at;
  void* d_at;
  Scales scales;

  // Whether all operands and results are in device memory.
  bool is_on_device() const {
    const auto has = [](const void* at, size_t bytes) { return gpu_host::is_device_memory(at, bytes); };
    const bool sums_a = epilogue == CUBLASLT_EPILOGUE_BGRADA, sums_b = epilogue == CUBLASLT_EPILOGUE_BGRADB;
    const bool has_vector = epilogue & kBias || sums_a || sums_b;
    const bool has_operand = epilogue & kOperand || epilogue & kGeluGradient;
    const cudaDataType_t type = epilogue & kBias ? vector_type : d.type;
    return has(a_at, a.bytes()) && has(b_at, b.bytes()) && has(d_at, d.bytes()) &&
           (beta == 0 || has(c_at, c.bytes())) &&
           (!has_vector ||
            has(vector, extent_bytes(type, sums_b ? d.columns : d.rows, 1, 0, d.batch, vector_stride))) &&
           (!has_operand ||
            has(operand, extent_bytes(d.type, d.rows, d.columns, operand_leading, d.batch, operand_stride)));
  }

  void run() const {
    const double factor = alpha * scales.product();
    const int64_t m = d.rows, n = d.columns, k = a_transposed ? a.rows : a.columns;
    std::vector<double> left(static_cast<size_t>(m * k)), right(static_cast<size_t>(k * n)),
        sums(static_cast<size_t>(m * n));
    for (int64_t batch = 0; batch < d.batch; ++batch) {
      for (int64_t l = 0; l < k; ++l) {
        for (int64_t i = 0; i < m; ++i)
          left[static_cast<size_t>(l * m + i)] =
              load(a_at, a.type, batch * a.stride + (a_transposed ? i * a.leading + l : l * a.leading + i));
      }
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t l = 0; l < k; ++l)
          right[static_cast<size_t>(j * k + l)] =
              load(b_at, b.type, batch * b.stride + (b_transposed ? l * b.leading + j : j * b.leading + l));
      }
      if (has_tf32) {
        for (std::vector<double>* matrix : {&left, &right})
          std::transform(matrix->begin(), matrix->end(), matrix->begin(), rounded_to_tf32);
      }
      const auto size = [](int64_t x) { return static_cast<blasint>(x); };
      cblas_dgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, size(m), size(n), size(k), factor, left.data(), size(m),
                  right.data(), size(k), 0, sums.data(), size(m));
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) {
          double value = sums[static_cast<size_t>(j * m + i)];
          if (beta != 0) value += beta * load(c_at, c.type, batch * c.stride + j * c.leading + i);
          const int64_t at = batch * operand_stride + j * operand_leading + i;
          if (epilogue & kBias) value += load(vector, vector_type, batch * vector_stride + i);
          if (epilogue & kRelu) value = value < 0 ? 0 : value;
          if (epilogue & kGelu && epilogue & kOperand) store(operand, d.type, at, value);
          if (epilogue & kGelu) value = gelu(value);
          if (epilogue & kGeluGradient) value *= gelu_slope(load(operand, d.type, at));
          store(d_at, d.type, batch * d.stride + j * d.leading + i, value);
        }
      }
      if (epilogue == CUBLASLT_EPILOGUE_BGRADA) write_sums(left, m, k, 1, m, batch * vector_stride);
      if (epilogue == CUBLASLT_EPILOGUE_BGRADB) write_sums(right, n, k, k, 1, batch * vector_stride);
    }
  }

 private:
  void write_sums(const std::vector<double>& matrix, int64_t count, int64_t k, int64_t step, int64_t step_k,
                  int64_t at) const {
    for (int64_t i = 0; i < count; ++i) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += matrix[static_cast<size_t>(i * step + l * step_k)];
      store(vector, d.type, at + i, sum);
    }
  }
};

// A handle belongs to the device that was current when it was made: it is the address of that device's element.
int devices[16];

bool is_on_its_device(cublasLtHandle_t handle) {
  int current = -1;
  return cudaGetDevice(&current) == cudaSuccess && reinterpret_cast<int*>(handle) == &devices[current];
}

bool sums_operands = true;
int algorithms = 1;  // of each product; each takes longer than the next

// ---- The library's demands on addresses

constexpr size_t kWorkspace = 1024;             // bytes that each algorithm on the host needs
constexpr uintptr_t kWorkspaceAlignment = 256;  // in the documentation of cublasLtMatmul

// The alignments, in bytes, for which the algorithm was chosen: from the preference and the epilogue's vector.
struct Promised {
  uint32_t a = 256, b = 256, c = 256, d = 256;  // defaults of the preference
  uint32_t vector = 256, operand = 256;
  uint32_t repetitions = 1;  // of the product, so that an algorithm takes long
};
static_assert(sizeof(Promised) <= sizeof(cublasLtMatmulAlgo_t));

Promised promised_by(cublasLtMatmulPreference_t preference, cublasLtMatmulDesc_t description) {
  Promised promised;
  const auto read = [&](cublasLtMatmulPreferenceAttributes_t attribute, uint32_t* value) {
    size_t written = 0;
    cublasLtMatmulPreferenceGetAttribute(preference, attribute, value, sizeof *value, &written);
  };
  read(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &promised.a);
  read(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &promised.b);
  read(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &promised.c);
  read(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &promised.d);
  const auto promise = [&](cublasLtMatmulDescAttributes_t pointer, uint32_t* bytes) {
    const auto address = reinterpret_cast<uintptr_t>(attribute<void*>(description, pointer));
    if (address != 0) *bytes = static_cast<uint32_t>(std::min<uintptr_t>(address & -address, *bytes));
  };
  promise(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &promised.vector);
  promise(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &promised.operand);
  return promised;
}

bool is_aligned(const void* address, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

bool is_8_bits(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

// Whether the library multiplies the operands: anything but 8 bits, or what its documentation demands of those
// ("FP8 kernels", for compute capability 9.0): the first transposed, the second not, sizes and steps that are multiples
// of 16, sums in float32, and types of its table. Fast accumulation would give other sums, and nobody asks for it.
bool has_types(cublasLtMatmulDesc_t description, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  if (!is_8_bits(a.type) && !is_8_bits(b.type)) return true;
  const auto is_multiple = [](int64_t size) { return size % 16 == 0; };
  const auto fits = [&](const Layout& layout) {
    return is_multiple(layout.rows) && is_multiple(layout.columns) && is_multiple(layout.leading) &&
           is_multiple(layout.stride);
  };
  const int epilogue = attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE);
  const bool has_bias = epilogue & kBias;
  const auto bias = static_cast<cudaDataType_t>(attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE));
  return is_8_bits(a.type) && is_8_bits(b.type) && (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3) &&
         attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T &&
         attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_N &&
         attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) == CUBLAS_COMPUTE_32F &&
         attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_SCALE_TYPE) == CUDA_R_32F &&
         attribute<int8_t>(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM) == 0 &&
         (epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS) &&
         (!has_bias || bias == CUDA_R_16BF) && (d.type == CUDA_R_16BF || d.type == CUDA_R_32F) && c.type == d.type &&
         fits(a) && fits(b) && fits(c) && fits(d);
}

// Restrictions from the library's documentation and from reports of its users.
bool has_epilogue(cublasLtMatmulDesc_t description) {
  const auto is_transposed = [&](cublasLtMatmulDescAttributes_t operand) {
    return attribute<int32_t>(description, operand) != CUBLAS_OP_N;
  };
  switch (attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE)) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS: return true;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
      return attribute<int64_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) > 0 &&
             attribute<int64_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) % 8 == 0 &&
             attribute<int64_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE) % 8 == 0;
    case CUBLASLT_EPILOGUE_BGRADA: return sums_operands && !is_transposed(CUBLASLT_MATMUL_DESC_TRANSA);
    case CUBLASLT_EPILOGUE_BGRADB: return sums_operands && is_transposed(CUBLASLT_MATMUL_DESC_TRANSB);
    default: return false;
  }
}

}  // namespace

void gpu_host::let_products_sum_operands(bool yes) { sums_operands = yes; }
void gpu_host::let_products_have_algorithms(int count) { algorithms = count; }

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(&devices[current]);
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasLtGetStatusName(cublasStatus_t) { return "an error of the library on the host"; }

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  *count = 0;
  if (!is_on_its_device(handle)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!has_epilogue(description) || !has_types(description, Layout(a), Layout(b), Layout(c), Layout(d)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *count = std::min(requested, algorithms);
  Promised promised = promised_by(preference, description);
  for (int i = 0; i < *count; ++i) {
    results[i] = {};
    results[i].workspaceSize = kWorkspace;
    promised.repetitions = static_cast<uint32_t>(1 + 8 * (algorithms - 1 - i));
    std::memcpy(&results[i].algo, &promised, sizeof promised);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  const bool is_double = attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_SCALE_TYPE) == CUDA_R_64F;
  const auto scale = [&](const void* at) {
    return is_double ? *static_cast<const double*>(at) : *static_cast<const float*>(at);
  };
  const int epilogue = attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE);
  Call call{Layout(a_layout),
            Layout(b_layout),
            Layout(c_layout),
            Layout(d_layout),
            attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_TRANSA) != CUBLAS_OP_N,
            attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_TRANSB) != CUBLAS_OP_N,
            attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) == CUBLAS_COMPUTE_32F_FAST_TF32,
            epilogue,
            attribute<void*>(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER),
            static_cast<cudaDataType_t>(attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)),
            attribute<int64_t>(description, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE),
            attribute<void*>(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER),
            attribute<int64_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD),
            attribute<int64_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE),
            scale(alpha),
            scale(beta),
            a,
            b,
            c,
            d,
            {attribute<const float*>(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER),
             attribute<const float*>(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER)}};
  const int64_t k = call.a_transposed ? call.a.rows : call.a.columns;
  const bool fits = (call.a_transposed ? call.a.columns : call.a.rows) == call.d.rows &&
                    (call.b_transposed ? call.b.rows : call.b.columns) == call.d.columns &&
                    (call.b_transposed ? call.b.columns : call.b.rows) == k && call.a.is_valid() && call.b.is_valid() &&
                    call.c.is_valid() && call.d.is_valid();
  uint32_t promises[sizeof(Promised) / sizeof(uint32_t)];
  std::memcpy(promises, algorithm, sizeof promises);
  const auto promised = std::bit_cast<Promised>(promises);
  const bool is_kept = is_aligned(a, promised.a) && is_aligned(b, promised.b) && is_aligned(c, promised.c) &&
                       is_aligned(d, promised.d) && is_aligned(call.vector, promised.vector) &&
                       is_aligned(call.operand, promised.operand);
  const auto is_scale = [](const float* at) {
    return is_aligned(at, sizeof(float)) && gpu_host::is_device_memory(at, sizeof(float));
  };
  const bool has_scales = is_8_bits(call.a.type)
                              ? is_scale(call.scales.a) && is_scale(call.scales.b) && is_aligned(a, 16) &&
                                    is_aligned(b, 16) && is_aligned(c, 16) && is_aligned(d, 16)
                              : !call.scales.a && !call.scales.b;
  const bool in_place_as_it_is = c != d || call.c == call.d;
  if (!fits || !is_kept || !in_place_as_it_is || !has_scales || !is_on_its_device(handle) || !call.is_on_device() ||
      workspace_bytes < kWorkspace || !is_aligned(workspace, kWorkspaceAlignment) ||
      !gpu_host::is_device_memory(workspace, workspace_bytes))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!has_epilogue(description) || !has_types(description, call.a, call.b, call.c, call.d))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const cudaError_t status = gpu_host::enqueue_launch(stream, nullptr, {}, {}, 0, [call, times = promised.repetitions] {
    for (uint32_t i = 0; i < times; ++i) call.run();
  });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
