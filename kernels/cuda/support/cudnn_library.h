// cuDNN 9, which is optional: it is loaded when a plan first asks for it. cudnn_library.cc defines the functions of the
// library that cudnn-frontend calls, so that nothing is linked with it. There is one object, which lives as long as the
// program. Any thread may call; the handle is used by one at a time, with `mutex` held.
#pragma once

#include <cudnn.h>

#include <mutex>
#include <string>

namespace onnx_train::cuda {

struct CudnnLibrary {
  cudnnHandle_t handle = nullptr;  // null without the library
  std::string description;         // for users: its version, or why there is none
  std::mutex mutex;
};

// ONNX_TRAIN_CUDNN=off leaves the library out.
CudnnLibrary& cudnn_library();

// The address of a function of the library; null where there is none.
void* cudnn_function(const char* name);

}  // namespace onnx_train::cuda
