// A stream of a CUDA device. Copies from and to the host go through a ring of pinned memory, so that they do not wait
// for earlier work; a copy larger than half of the ring is made in pieces. An address of the device may be one of the
// host's memory (Device::allocate_host), so the direction of a copy is left to CUDA, which knows both
// (cudaMemcpyDefault).
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "kernels/cuda/support/runtime.h"
#include "kernels/device.h"

namespace onnx_train::cuda {

class CudnnHandle;

class CudaStream : public Stream {
 public:
  explicit CudaStream(int device);  // number of the device
  ~CudaStream() override;

  cudaStream_t handle() const { return handle_; }
  // cuDNN's handle for this stream; null until the first cuDNN work makes it (choices/cudnn_graph.h).
  std::shared_ptr<CudnnHandle>& cudnn_handle() { return cudnn_handle_; }

  void* native_handle() const override { return handle_; }
  void copy_from_host(void* to, const void* from, size_t bytes) override;
  void copy_to_host(void* to, const void* from, size_t bytes) override;
  void copy(const Transfer& transfer) override;
  void commit(const std::vector<Transfer>& transfers, const Fault* fault) override;
  void synchronize() override { wait(mark()); }
  int64_t mark() override;
  void wait(int64_t mark) override;
  bool has_reached(int64_t mark) override;
  std::unique_ptr<Recording> record(const std::function<void()>& enqueue) override;
  // Measures with events of one graph, because launches by the host take longer than many kernels.
  std::vector<double> time(size_t count, const std::function<void(size_t)>& enqueue) override;

 private:
  // A point in the stream's work. Its part of the ring is free once the point is reached and a download is delivered.
  struct Point {
    int64_t number;
    Event event;
    size_t end = 0;  // end of its part of the ring; 0 if it has none
    void* to = nullptr;
    const char* staged = nullptr;
    size_t bytes = 0;
  };

  // Every function makes the stream's device the current one and restores the previous one.
  const int device_;
  std::shared_ptr<CudnnHandle> cudnn_handle_;

  char* reserve(size_t bytes);
  Point& add_point();
  void retire_front();

  cudaStream_t handle_ = nullptr;
  std::optional<PinnedMemory> ring_;  // allocated by the first copy
  size_t head_ = 0, tail_ = 0;        // [tail_, head_) is in use; it wraps around if head_ < tail_
  std::deque<Point> points_;
  std::vector<Event> idle_events_;
  int64_t last_ = 0;
};

}  // namespace onnx_train::cuda
