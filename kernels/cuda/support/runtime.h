// The CUDA runtime with exceptions and owning objects. Any thread may call; one thread at a time uses an object.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace onnx_train::cuda {

// Throws Error if `status` is an error; the message names `call`, which returned it.
void check(cudaError_t status, const char* call);

// Makes device `number` the current one of this thread and returns the one before. Other libraries in the process set
// the thread's device, too.
int set_device(int number);
void restore_device(int before) noexcept;

// Makes device `number` the calling thread's current one while the object lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int number) : before_(set_device(number)) {}
  ~CurrentDevice() { restore_device(before_); }
  CurrentDevice(const CurrentDevice&) = delete;

 private:
  const int before_;
};

int current_device();
int device_attribute(cudaDeviceAttr attribute);  // of the current device
int num_multiprocessors();                       // of the current device

// Memory of the device, memory of the host (pinned), and an event; each object frees its own.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class PinnedMemory {
 public:
  explicit PinnedMemory(size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

class Event {
 public:
  // Without cudaEventDisableTiming the time between two events can be read.
  explicit Event(unsigned flags = cudaEventDisableTiming);
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace onnx_train::cuda
