// A device: its memory, streams, kernels, and what its plans may be made of. There is one object per device,
// which lives as long as the program; `Device::cpu()` always exists, other devices come from modules. Any thread may
// use a device; one thread at a time may use a stream. Functions throw Error when memory or queued work fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/registry.h"

namespace onnx_train {

struct LoweringTraits;
class Collectives;

// A recorded sequence of work that can be repeated with the same addresses. It must not outlive its stream.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

// A copy within the memory of a device.
struct Transfer {
  void* to;
  const void* from;
  size_t bytes;
};

// A queue of work that runs in order. Work may run after it is enqueued; `synchronize` waits for it.
class Stream {
 public:
  virtual ~Stream() = default;
  // The caller may change `from` as soon as the call returns.
  virtual void copy_from_host(void* to, const void* from, size_t bytes) = 0;
  // `to` holds the bytes after the next `synchronize`.
  virtual void copy_to_host(void* to, const void* from, size_t bytes) = 0;
  virtual void copy(const Transfer& transfer) = 0;
  // Enqueues the copies in order; they do nothing if the fault is set when they run.
  virtual void commit(const std::vector<Transfer>& transfers, const Fault* fault) = 0;
  // Waits for all enqueued work. Throws Error when some of it failed.
  virtual void synchronize() = 0;
  // Returns a mark: the point after all work that has been enqueued so far.
  virtual int64_t mark() = 0;
  // Waits for the work before the mark. Throws Error when some of it failed, like `synchronize`.
  virtual void wait(int64_t mark) = 0;
  // Whether the work before the mark is done, as far as this can be known without waiting.
  virtual bool has_reached(int64_t /*mark*/) { return true; }
  // Records what `enqueue` enqueues to this stream instead of running it; null if the device cannot record. All work
  // enqueued before is complete on return.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& enqueue) = 0;
  // Enqueues the pieces of work enqueue(0), ..., enqueue(count - 1), waits for them, and returns when each of them
  // ended, in milliseconds from the start of the first. They have run before, so that a device may record them.
  virtual std::vector<double> time(size_t count, const std::function<void(size_t)>& enqueue);
  // What the device's own interface calls the stream (a cudaStream_t), so that work of other libraries can be ordered
  // before ours; null if it has none. Valid as long as the stream.
  virtual void* native_handle() const { return nullptr; }
};

// A device in the numbers of DLPack, by which libraries exchange tensors: a DLDeviceType, and the device's number among
// those of its type.
struct DlpackDevice {
  int32_t type, id;
};
inline constexpr int32_t kDlpackCpu = 1, kDlpackCuda = 2, kDlpackExtension = 12;

// After a kernel reports a fault, the remaining nodes of the run may still execute on any contents of their inputs, but
// none writes to a state: the CPU stops; on other devices, kernels that update a state in place check the fault first.
class Device {
 public:
  static Device& cpu();
  // The device of this name: "cpu", or NAME or NAME:N for device number N, 0 if not given, of the module
  // libonnx_train_NAME.so in the folder of this library, which is loaded on first use. Throws Error when there is no
  // such module, or when this machine has no such device.
  static Device& find(const std::string& name);
  // The names without numbers that `find` may accept: "cpu", and those of the modules in the folder of this library.
  // Loads no module.
  static std::vector<std::string> names();

  virtual ~Device() = default;
  virtual std::string name() const = 0;         // by which `find` finds it: "cpu", "cuda", "cuda:1"
  virtual std::string description() const = 0;  // one line for users: the hardware, its threads or cores, its memory
  // The alignment of allocations, and of values in them, in bytes: a power of two.
  virtual size_t alignment() const { return kAlignment; }
  // The alignment of a value that the plan places inside of another one (a part of a Split, an operand of a Concat), in
  // bytes: a power of two. All kernels' addresses have it.
  virtual size_t piece_alignment() const { return 1; }
  // True if kernels use host memory and are done when they return, so that no copies are needed.
  virtual bool uses_host_memory() const { return false; }
  // What multiplies bfloat16 in less time than float32: "amx"; "" for nothing.
  virtual std::string bfloat16_units() const { return ""; }
  virtual int count() const { return 1; }  // devices of this module on this machine, numbered from 0
  virtual DlpackDevice dlpack() const { return {uses_host_memory() ? kDlpackCpu : kDlpackExtension, 0}; }
  // Allocates zeroed device memory with the device's alignment. Throws Error when there is not enough.
  virtual void* allocate(size_t bytes) = 0;
  // All work that uses the memory must be done.
  virtual void free(void* data) = 0;
  // Allocates zeroed memory of the host in which the device's kernels read and write without a copy, at an address of
  // the device with its alignment: each access goes over the bus. Throws Error when there is not enough, and for a
  // device whose own memory is the host's.
  virtual void* allocate_host(size_t bytes);
  // All work that uses the memory, which is of allocate_host, must be done.
  virtual void free_host(void* /*data*/) {}
  // Bytes per second of a copy of host memory to the device, measured by each call in some milliseconds; 0 for a device
  // whose own memory is the host's. Throws Error where the copy fails.
  virtual double measure_host_bandwidth() { return 0; }
  virtual std::unique_ptr<Stream> make_stream() = 0;
  // Bytes that can still be allocated; the largest size_t if the system does not tell.
  virtual size_t available_bytes() const = 0;
  virtual const KernelTable& kernels() const = 0;
  // Connects what its kernels need to exchange with the devices of other ranks. All ranks call it at the same place.
  virtual void connect(Collectives& /*ranks*/) {}
  // The same for what rank `from` sends to rank `to`, which call it.
  virtual void connect(Collectives& /*ranks*/, int /*from*/, int /*to*/) {}
  // What the passes of a plan's graph ask of the device (kernels/lowering/pipeline.h).
  virtual const LoweringTraits& lowering() const = 0;

 private:
  friend class DeviceScope;
  // Makes this device the one to which calls of the hardware's library from this thread go (cudaSetDevice), and returns
  // the number of the one before.
  virtual int enter() const { return 0; }
  virtual void leave(int /*before*/) const noexcept {}
};

// While it lives, the calling thread may choose, prepare and run kernels of the device, whatever another library in the
// process has made its current device; that one is current again afterwards. Scopes may be nested.
class DeviceScope {
 public:
  explicit DeviceScope(const Device& device) : device_(device), before_(device.enter()) {}
  ~DeviceScope() { device_.leave(before_); }
  DeviceScope(const DeviceScope&) = delete;

 private:
  const Device& device_;
  const int before_;
};

// The function that a module exports under the name kMakeDevice: returns the module's device of this number, which
// lives as long as the program. Throws Error with the reason if this machine has no such device.
using MakeDevice = Device*(int number);
inline constexpr const char* kMakeDevice = "onnx_train_make_device";

// Throws Error unless `number` is below the count of devices of a module.
void check_device_number(const std::string& module, int number, int count);

// The device of sessions that name none: the CPU unless the program sets another before it creates sessions.
Device& default_device();
void set_default_device(Device& device);

}  // namespace onnx_train
