#include "kernels/cuda/support/cudnn_library.h"

#include <cstdlib>
#include <map>
#include <string_view>

#include "kernels/cuda/support/runtime.h"
#include "onnx_passes/ir/error.h"

// Calls the library's function of this name.
#define FORWARD(function, ...)                                                                                    \
  static const auto address = reinterpret_cast<decltype(&function)>(onnx_train::cuda::cudnn_function(#function)); \
  return address(__VA_ARGS__)

// Hidden symbols, so that another copy of the library in this process does not find these functions.
#define LOCAL [[gnu::visibility("hidden")]]

extern "C" {

LOCAL cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { FORWARD(cudnnCreate, handle); }
LOCAL cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  FORWARD(cudnnSetStream, handle, stream);
}
LOCAL cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  FORWARD(cudnnGetStream, handle, stream);
}
LOCAL size_t cudnnGetVersion() { FORWARD(cudnnGetVersion); }
LOCAL const char* cudnnGetErrorString(cudnnStatus_t status) { FORWARD(cudnnGetErrorString, status); }
LOCAL void cudnnGetLastErrorString(char* message, size_t bytes) { FORWARD(cudnnGetLastErrorString, message, bytes); }
LOCAL cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                 cudnnBackendDescriptor_t* descriptor) {
  FORWARD(cudnnBackendCreateDescriptor, type, descriptor);
}
LOCAL cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  FORWARD(cudnnBackendDestroyDescriptor, descriptor);
}
LOCAL cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  FORWARD(cudnnBackendFinalize, descriptor);
}
LOCAL cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                             cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  FORWARD(cudnnBackendSetAttribute, descriptor, name, type, count, values);
}
LOCAL cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                             cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                             int64_t requested, int64_t* count, void* values) {
  FORWARD(cudnnBackendGetAttribute, descriptor, name, type, requested, count, values);
}
LOCAL cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                        cudnnBackendDescriptor_t variant_pack) {
  FORWARD(cudnnBackendExecute, handle, plan, variant_pack);
}

// Unused functions of cudnn-frontend call these; unoptimized builds keep such functions.
LOCAL cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) {
  FORWARD(cudnnCreateFilterDescriptor, filter);
}
LOCAL cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
  FORWARD(cudnnDestroyFilterDescriptor, filter);
}
LOCAL cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                               cudnnTensorFormat_t format, int rank, const int sizes[]) {
  FORWARD(cudnnSetFilterNdDescriptor, filter, type, format, rank, sizes);
}
LOCAL cudnnStatus_t cudnnReorderFilterAndBias(cudnnHandle_t handle, const cudnnFilterDescriptor_t filter,
                                              cudnnReorderType_t type, const void* from, void* to, int has_bias,
                                              const void* bias_from, void* bias_to) {
  FORWARD(cudnnReorderFilterAndBias, handle, filter, type, from, to, has_bias, bias_from, bias_to);
}

}  // extern "C"

namespace onnx_train::cuda {

CudnnLibrary::CudnnLibrary() {
  const char* const value = std::getenv("ONNX_TRAIN_CUDNN");
  cudnnHandle_t first = nullptr;
  if (value && std::string_view(value) == "off") {
    description_ = "no cuDNN: ONNX_TRAIN_CUDNN is off";
  } else if (!cudnn_function("cudnnCreate")) {
    description_ = "no cuDNN: libcudnn.so.9 cannot be loaded";
  } else if (const cudnnStatus_t status = cudnnCreate(&first); status != CUDNN_STATUS_SUCCESS) {
    description_ = concat("no cuDNN: cudnnCreate: ", cudnnGetErrorString(status));
  } else {
    const size_t version = cudnnGetVersion();
    description_ = concat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
    is_loaded_ = true;
    idle_.push_back(first);
  }
}

CudnnHandle::CudnnHandle(CudnnLibrary& library) : library_(library) {
  const std::lock_guard lock(library_.mutex_);
  if (!library_.idle_.empty()) {
    handle_ = library_.idle_.back();
    library_.idle_.pop_back();
  } else if (const cudnnStatus_t status = cudnnCreate(&handle_); status != CUDNN_STATUS_SUCCESS) {
    fail_as(ErrorCode::kDevice, "cuDNN: cudnnCreate: ", cudnnGetErrorString(status),
            "; ONNX_TRAIN_CUDNN=off runs without the library");
  }
}

CudnnHandle::~CudnnHandle() {
  cudnnSetStream(handle_, nullptr);  // the stream may be about to end
  const std::lock_guard lock(library_.mutex_);
  library_.idle_.push_back(handle_);
}

CudnnLibrary& cudnn_library() {
  static std::mutex mutex;
  static auto& libraries = *new std::map<int, CudnnLibrary>;
  const int device = current_device();
  const std::lock_guard lock(mutex);
  return libraries[device];
}

}  // namespace onnx_train::cuda
