#include "kernels/cuda/support/stream.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/support/commit.h"

namespace onnx_train::cuda {
namespace {

constexpr size_t kRingBytes = 32 << 20;
constexpr size_t kLargestPiece = kRingBytes / 2;

class Graph : public Recording {
 public:
  Graph(cudaGraphExec_t executable, cudaStream_t stream, int device)
      : executable_(executable), stream_(stream), device_(device) {}
  ~Graph() override { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  void replay() override {
    const CurrentDevice here(device_);
    check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t executable_;
  cudaStream_t stream_;
  int device_;
};

}  // namespace

CudaStream::CudaStream(int device) : device_(device) {
  const CurrentDevice here(device_);
  check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreate");
}

CudaStream::~CudaStream() {
  int before = device_;
  if (cudaGetDevice(&before) == cudaSuccess && before != device_) cudaSetDevice(device_);
  cudaStreamSynchronize(handle_);  // enqueued copies still use the ring
  cudnn_handle_.reset();
  cudaStreamDestroy(handle_);
  restore_device(before);
}

// Returns a part of the ring, which the next point will free. Waits until there is room.
char* CudaStream::reserve(size_t bytes) {
  if (!ring_) ring_.emplace(kRingBytes);
  const auto fits = [&] {
    if (points_.empty()) head_ = tail_ = 0;
    if (head_ >= tail_) {
      if (head_ + bytes <= kRingBytes) return true;
      if (bytes >= tail_) return false;
      head_ = 0;  // the rest of the ring is free again when the tail has passed it
    }
    return head_ + bytes < tail_;
  };
  while (!fits()) retire_front();
  char* const part = ring_->data() + head_;
  head_ += bytes;
  return part;
}

CudaStream::Point& CudaStream::add_point() {
  if (idle_events_.empty()) idle_events_.emplace_back();
  Event event = std::move(idle_events_.back());
  idle_events_.pop_back();
  check(cudaEventRecord(event.get(), handle_), "cudaEventRecord");
  points_.push_back({++last_, std::move(event)});
  return points_.back();
}

void CudaStream::retire_front() {
  Point point = std::move(points_.front());
  points_.pop_front();  // before anything can fail: the next call must not wait for the same point
  if (point.end > 0) tail_ = point.end;
  check(cudaEventSynchronize(point.event.get()), "waiting for the device");
  if (point.to) std::memcpy(point.to, point.staged, point.bytes);
  idle_events_.push_back(std::move(point.event));
}

void CudaStream::copy_from_host(void* to, const void* from, size_t bytes) {
  const CurrentDevice here(device_);
  for (size_t at = 0; at < bytes; at += kLargestPiece) {
    const size_t piece = std::min(bytes - at, kLargestPiece);
    char* const staged = reserve(piece);
    std::memcpy(staged, static_cast<const char*>(from) + at, piece);
    check(cudaMemcpyAsync(static_cast<char*>(to) + at, staged, piece, cudaMemcpyDefault, handle_),
          "cudaMemcpyAsync to the device");
    add_point().end = head_;
  }
}

void CudaStream::copy_to_host(void* to, const void* from, size_t bytes) {
  const CurrentDevice here(device_);
  for (size_t at = 0; at < bytes; at += kLargestPiece) {
    const size_t piece = std::min(bytes - at, kLargestPiece);
    char* const staged = reserve(piece);
    check(cudaMemcpyAsync(staged, static_cast<const char*>(from) + at, piece, cudaMemcpyDefault, handle_),
          "cudaMemcpyAsync to the host");
    Point& point = add_point();
    point.end = head_;
    point.to = static_cast<char*>(to) + at;
    point.staged = staged;
    point.bytes = piece;
  }
}

void CudaStream::copy(const Transfer& transfer) {
  if (transfer.bytes == 0) return;
  const CurrentDevice here(device_);
  check(cudaMemcpyAsync(transfer.to, transfer.from, transfer.bytes, cudaMemcpyDefault, handle_), "cudaMemcpyAsync");
}

void CudaStream::commit(const std::vector<Transfer>& transfers, const Fault* fault) {
  const CurrentDevice here(device_);
  enqueue_commit(transfers, fault, handle_);
}

int64_t CudaStream::mark() {
  const CurrentDevice here(device_);
  return add_point().number;
}

void CudaStream::wait(int64_t mark) {
  const CurrentDevice here(device_);
  while (!points_.empty() && points_.front().number <= mark) retire_front();
}

bool CudaStream::has_reached(int64_t mark) {
  const CurrentDevice here(device_);
  const auto after = std::find_if(points_.begin(), points_.end(), [&](const Point& p) { return p.number > mark; });
  if (after == points_.begin()) return true;
  const cudaError_t status = cudaEventQuery(std::prev(after)->event.get());
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventQuery");
  return true;
}

std::unique_ptr<Recording> CudaStream::record(const std::function<void()>& enqueue) {
  const CurrentDevice here(device_);
  synchronize();
  check(cudaStreamBeginCapture(handle_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    if (cudaStreamEndCapture(handle_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(handle_, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  auto recording = std::make_unique<Graph>(executable, handle_, device_);
  check(cudaGraphUpload(executable, handle_), "cudaGraphUpload");
  return recording;
}

std::vector<double> CudaStream::time(size_t count, const std::function<void(size_t)>& enqueue) {
  const CurrentDevice here(device_);
  std::vector<Event> events;
  for (size_t i = 0; i <= count; ++i) events.emplace_back(cudaEventDefault);
  const auto mark_in_graph = [&](size_t i) {
    check(cudaEventRecordWithFlags(events[i].get(), handle_, cudaEventRecordExternal), "cudaEventRecordWithFlags");
  };
  const std::unique_ptr<Recording> recording = record([&] {
    mark_in_graph(0);
    for (size_t i = 0; i < count; ++i) {
      enqueue(i);
      mark_in_graph(i + 1);
    }
  });
  recording->replay();
  synchronize();
  std::vector<double> ends;
  for (size_t i = 1; i <= count; ++i) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events[0].get(), events[i].get()), "cudaEventElapsedTime");
    ends.push_back(milliseconds);
  }
  return ends;
}

}  // namespace onnx_train::cuda
