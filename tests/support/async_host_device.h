// A device that tests make of the host: its memory is at addresses that no thread but its stream's can read or write,
// its work is done by that thread, later, with random delays, and may be recorded and replayed. The kernels are the
// CPU's. What a runtime does wrong with an accelerator (a forgotten wait, a pointer of the host, an address that
// changes, memory freed too early) ends here in a wrong number, an Error or a crash.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/device.h"

namespace onnx_train {

class AsyncHostDevice : public Device {
 public:
  struct Options {
    int most_microseconds = 20;  // of the delay before some pieces of work; 0: none
    bool records = true;
  };
  explicit AsyncHostDevice(const Options& options);
  AsyncHostDevice() : AsyncHostDevice(Options()) {}
  ~AsyncHostDevice() override;

  std::string name() const override { return "async_host"; }
  std::string description() const override { return "a thread of the host, as tests use it"; }
  size_t alignment() const override { return 256; }
  void* allocate(size_t bytes) override;
  void free(void* data) override;
  std::unique_ptr<Stream> make_stream() override;
  size_t available_bytes() const override { return Device::cpu().available_bytes(); }
  const KernelTable& kernels() const override { return *kernels_; }
  const LoweringTraits& lowering() const override { return Device::cpu().lowering(); }

  size_t held() const;                      // blocks that are not freed
  int64_t replays() const;                  // of recordings, so far
  void* reachable(const void* data) const;  // where the stream's thread finds what is at an address of the device

 private:
  friend class AsyncHostStream;
  Options options_;
  int file_ = -1;
  char *shown_ = nullptr, *real_ = nullptr;
  mutable std::mutex mutex_;
  std::map<size_t, size_t> blocks_;  // offset -> bytes
  size_t end_ = 0;                   // offsets are never used again
  std::atomic<int64_t> replays_{0};
  std::unique_ptr<KernelTable> kernels_;
};

}  // namespace onnx_train
