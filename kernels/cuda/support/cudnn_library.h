// cuDNN 9, which is optional: it is loaded when a plan first asks for it. cudnn_library.cc defines the functions of the
// library that cudnn-frontend calls, so that nothing is linked with it. There is one object per CUDA device, which
// lives as long as the program. Any thread may call.
#pragma once

#include <cudnn.h>

#include <mutex>
#include <string>
#include <vector>

namespace onnx_train::cuda {

class CudnnLibrary;

// A handle that only its owner uses; the destructor returns it to the library. One thread at a time.
class CudnnHandle {
 public:
  explicit CudnnHandle(CudnnLibrary& library);  // throws Error if the library cannot make another one
  ~CudnnHandle();
  CudnnHandle(const CudnnHandle&) = delete;

  cudnnHandle_t get() const { return handle_; }

 private:
  CudnnLibrary& library_;
  cudnnHandle_t handle_;
};

class CudnnLibrary {
 public:
  CudnnLibrary();
  CudnnLibrary(const CudnnLibrary&) = delete;

  bool is_loaded() const { return is_loaded_; }
  const std::string& description() const { return description_; }  // for users: its version, or why it is absent

 private:
  friend class CudnnHandle;

  bool is_loaded_ = false;
  std::string description_;
  std::mutex mutex_;
  std::vector<cudnnHandle_t> idle_;  // creating a handle is slow
};

// Returns the library on the current device. With ONNX_TRAIN_CUDNN=off it is not loaded.
CudnnLibrary& cudnn_library();

// Returns the address of a function of the library, or null if it is absent.
void* cudnn_function(const char* name);

}  // namespace onnx_train::cuda
