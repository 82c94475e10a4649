// Where plans run: memory, streams of work, kernels, and the rewrites a device wants. One object per device, alive as
// long as the program; `Device::cpu()` is always there. Any thread may use a device; a stream belongs to one at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "onnx_passes/passes/pass.h"

namespace onnx_train {

struct LoweringOptions;

// A sequence of work that was recorded once, to be done again with the same addresses. Not longer-lived than its
// stream.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

// A copy inside the memory of a device.
struct Transfer {
  void* to;
  const void* from;
  size_t bytes;
};

// Work of a device, done in the order in which it is given. What is enqueued may be done later; `synchronize` waits.
class Stream {
 public:
  virtual ~Stream() = default;
  // `from` may be changed as soon as the call returns.
  virtual void copy_from_host(void* to, const void* from, size_t bytes) = 0;
  // `to` holds the bytes after `synchronize`.
  virtual void copy_to_host(void* to, const void* from, size_t bytes) = 0;
  virtual void copy(const Transfer& transfer) = 0;
  // The copies in order, or nothing when the fault is set by then.
  virtual void commit(const std::vector<Transfer>& transfers, const Fault* fault) = 0;
  // Waits for all work. Throws Error when some of it failed.
  virtual void synchronize() = 0;
  // What `enqueue` gives to this stream, recorded instead of done; null when the device does not record. All work that
  // was enqueued before is done when it returns.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& enqueue) = 0;
};

// After a kernel has reported a fault, nodes of the same run still may be executed, on whatever their inputs hold, but
// none writes to a state: the CPU stops; other devices' kernels that update a state in place look at the fault first.
class Device {
 public:
  static Device& cpu();

  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cpu"
  // True where kernels read and write the host's memory and are done when they return: nothing needs a copy.
  virtual bool uses_host_memory() const { return false; }
  // Memory of the device, aligned to 64 bytes, zeros. Throws Error when there is not enough.
  virtual void* allocate(size_t bytes) = 0;
  // Work that uses the memory must be done.
  virtual void free(void* data) = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  // Bytes that can still be allocated before the system runs out of them; the largest size_t where nothing tells.
  virtual size_t available_bytes() const = 0;
  virtual const KernelTable& kernels() const = 0;
  // What a plan's graph goes through once its inputs have shapes; required_lowering and what makes it faster.
  virtual std::vector<Pass> lowering(const LoweringOptions& options) const = 0;
};

// The device of sessions that name none: the CPU, unless the program chooses another before it makes sessions.
Device& default_device();
void set_default_device(Device& device);

// Number of threads of the one pool (OpenMP's) that all CPU kernels share: 1 or more; the default is the number of
// cores this process may use.
void set_num_threads(int threads);
int num_threads();

}  // namespace onnx_train
