#include "tests/cuda_on_host/runtime.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/cuda_on_host/gpu_on_host.h"
#include "tests/cuda_on_host/memory.h"

// Does what a stream does next, or a part of it, and returns whether that was all.
using Work = std::function<bool()>;

// A node of a captured graph, which runs in the order of its lane. Lane 0 is the stream that is captured and launched
// on; the others are streams that have waited for an event of it.
struct Node {
  size_t lane;
  Work work = {};  // of kernels, copies and exchanges
  bool exchanges = false;
  int64_t records = -1;  // the event that it records, by its number in the graph
  int64_t waits = -1;    // the event that it waits for
  size_t of_lane = 0;    // which records that one
};
struct CUgraph_st {
  std::vector<Node> nodes = {};
  int64_t events = 0;
  std::vector<CUstream_st*> lanes = {};
  std::vector<bool> is_joined = {};                     // by lane: whether lane 0 has waited for all of its work
  std::thread::id thread = std::this_thread::get_id();  // capturing thread
};
// A record of an event is done once its stream has run all earlier work.
struct CUevent_st {
  const int device;
  std::shared_ptr<bool> done = std::make_shared<bool>(true);
  CUstream_st* stream = nullptr;
  const bool is_timed;
  std::chrono::steady_clock::time_point time = {};  // for timed events
  std::weak_ptr<CUgraph_st> graph = {};             // whose capture has recorded it last,
  int64_t number = -1;                              // under this number,
  size_t lane = 0;                                  // in this lane
};
struct CUstream_st {
  int device = 0;
  struct Queued {
    Work work;
    bool exchanges;  // with other ranks
  };
  std::deque<Queued> work = {};
  bool is_destroyed = false;  // its work still runs, late
  int64_t exchanges = 0;      // of these
  bool runs = false;          // some of its work
  std::shared_ptr<CUgraph_st> capture = {};
  size_t lane = 0;  // of the capture
};
struct CUgraphExec_st {
  std::vector<Node> nodes;
  int64_t events;
  std::vector<std::unique_ptr<CUstream_st>> lanes;  // from lane 1 on
};

namespace {

using gpu_host::DeviceMemory, gpu_host::MappedMemory;

// What the device says of itself: compute capability, multiprocessors, and the most shared memory of a block.
constexpr struct { int major = 9, processors = 4, shared_bytes = 227 << 10; } kDevice;
constexpr int kMostThreadsOfProcessor = 2048, kMostBlocksOfProcessor = 32;
// Limits of a launch, of docs.nvidia.com/cuda/cuda-c-programming-guide (Technical Specifications per Compute
// Capability).
constexpr size_t kMostThreads = 1024, kMostThreadsInZ = 64, kMostBlocks = 0x7fffffff, kMostBlocksInYZ = 65535;
constexpr size_t kDefaultSharedBytes = 48 << 10;  // of dynamic shared memory
constexpr int kReservedSharedBytes = 1 << 10;     // of each block, beside its own

// The host's times say nothing about a device; tests of choices turn them on.
const int kChoicesByRule = setenv("ONNX_TRAIN_TIMED_CHOICES", "off", 0);

// What a block may ask for: an H200's, or $GPU_HOST_SHARED_BYTES.
int shared_bytes() {
  const char* value = std::getenv("GPU_HOST_SHARED_BYTES");
  return value ? std::atoi(value) : kDevice.shared_bytes;
}

// $GPU_HOST_DEVICES, or two.
int devices() {
  static const int count = [] {
    const char* const value = std::getenv("GPU_HOST_DEVICES");
    return value ? std::atoi(value) : 2;
  }();
  return count;
}
thread_local int current = 0;  // device

// $GPU_HOST_PROCESSORS, or four. With a real device's number, plans are those for that device.
int processors() {
  const char* const value = std::getenv("GPU_HOST_PROCESSORS");
  return value ? std::atoi(value) : kDevice.processors;
}

// How many blocks a multiprocessor holds, by threads and shared memory; registers are not counted.
int resident_blocks(int threads, size_t shared) {
  const auto by_shared =
      static_cast<int>((kDevice.shared_bytes + kReservedSharedBytes) / (shared + kReservedSharedBytes));
  return std::min({kMostThreadsOfProcessor / ((threads + 31) / 32 * 32), by_shared, kMostBlocksOfProcessor});
}

struct Runtime {
  std::recursive_mutex mutex;
  DeviceMemory memory;
  std::map<void*, size_t> pinned;                         // with their bytes
  std::map<void*, std::unique_ptr<MappedMemory>> mapped;  // by the host's address
  bool shows_mapped = true;
  size_t mapped_limit = SIZE_MAX;
  std::vector<CUstream_st> default_streams;
  std::set<CUstream_st*> streams;  // destroyed ones, too, while they have work
  std::set<CUevent_st*> events;
  std::set<CUgraph_st*> graphs;
  std::set<CUgraphExec_st*> executables;
  std::map<const void*, size_t> allowed_shared;  // bytes that a kernel's blocks may have beyond the default
  int64_t calls = 0, failing = -1;
  cudaError_t last = cudaSuccess;
  std::map<const void*, gpu_host::Launches> launches;

  Runtime() : default_streams(static_cast<size_t>(devices())) {
    for (int device = 0; device < devices(); ++device) {
      default_streams[static_cast<size_t>(device)].device = device;
      streams.insert(&default_streams[static_cast<size_t>(device)]);
    }
  }
};

// Never destroyed: devices live as long as the program.
Runtime& runtime() {
  static auto* the = new Runtime;
  return *the;
}

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) runtime().last = error;
  return error;
}

// A call of the runtime. At its end, the host can access mapped memory unless work is enqueued.
class Call {
 public:
  ~Call() {
    Runtime& r = runtime();
    if (r.mapped.empty()) return;
    const auto is_idle = [](const CUstream_st* stream) { return stream->work.empty(); };
    const bool shows = std::all_of(r.streams.begin(), r.streams.end(), is_idle);
    if (shows == std::exchange(r.shows_mapped, shows)) return;
    for (const auto& [host, memory] : r.mapped) memory->show(shows);
  }

 private:
  const std::lock_guard<std::recursive_mutex> lock_{runtime().mutex};
};

// Runs `f` as one call of the runtime, which is counted and may be made to fail.
template <typename F>
cudaError_t call(F&& f) {
  const Call now;
  if (runtime().calls++ == runtime().failing) return result(cudaErrorUnknown);
  return result(f());
}

// Objects that are used after they were destroyed end the program: CUDA leaves undefined what that does.
template <typename T>
T& live(T* object, const std::set<T*>& all, const char* kind) {
  if (!all.contains(object)) {
    std::fprintf(stderr, "cuda_on_host: %s that has been destroyed, or was never made, is used\n", kind);
    std::abort();
  }
  return *object;
}
CUstream_st& at(cudaStream_t stream) {
  if (!stream) return runtime().default_streams[static_cast<size_t>(current)];
  return live(runtime().streams.contains(stream) && stream->is_destroyed ? nullptr : stream, runtime().streams,
              "a stream");
}
CUevent_st& at(cudaEvent_t event) { return live(event, runtime().events, "an event"); }
CUgraph_st& at(cudaGraph_t graph) { return live(graph, runtime().graphs, "a graph"); }
CUgraphExec_st& at(cudaGraphExec_t executable) { return live(executable, runtime().executables, "a graph"); }

// Runs the next work of a stream, unless it waits. Returns whether the stream has got on.
bool run_one(CUstream_st& stream) {
  if (stream.runs || stream.work.empty()) return false;
  CUstream_st::Queued next = std::move(stream.work.front());
  stream.work.pop_front();
  stream.runs = true;
  const bool is_done = next.work();
  stream.runs = false;
  if (is_done) {
    stream.exchanges -= next.exchanges;
  } else {
    stream.work.push_front(std::move(next));
  }
  return is_done;
}

// Runs the next work of a stream. While it waits for other ranks, streams that exchange with these get on.
void get_on(CUstream_st& stream) {
  if (run_one(stream)) return;
  bool any = false;
  for (CUstream_st* other : runtime().streams) any = (other->exchanges > 0 && run_one(*other)) || any;
  if (!any) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

void drain(CUstream_st& stream) {
  if (stream.work.empty()) return;
  const DeviceMemory::Access access(&runtime().memory);
  while (!stream.work.empty()) get_on(stream);
}
void drain_all() {
  std::set<CUstream_st*>& streams = runtime().streams;
  for (CUstream_st* stream : streams) drain(*stream);
  std::erase_if(streams, [](CUstream_st* stream) {
    const std::unique_ptr<CUstream_st> ended(stream->is_destroyed ? stream : nullptr);
    return ended != nullptr;
  });
}

// Only streams of the current device accept work. (CUDA allows copies on others, but our code never does that.)
cudaError_t enqueue(cudaStream_t stream, Work work, bool exchanges = false) {
  CUstream_st& to = at(stream);
  if (to.device != current) return cudaErrorInvalidResourceHandle;
  if (to.capture) {
    to.capture->is_joined[to.lane] = false;
    to.capture->nodes.push_back({.lane = to.lane, .work = std::move(work), .exchanges = exchanges});
  } else {
    to.work.push_back({std::move(work), exchanges});
    to.exchanges += exchanges;
  }
  return cudaSuccess;
}

// Work that runs the other stream until it has reached the event.
Work wait_for(std::shared_ptr<bool> done, CUstream_st* other) {
  return [done = std::move(done), other] {
    while (!*done && run_one(*other)) continue;
    return *done || (other->work.empty() && !other->runs);
  };
}

// Adds the nodes of a graph to the file $GPU_HOST_TRACE: the lane, and "work", or "records N" or "waits N" of an event.
void write_trace(const std::vector<Node>& nodes) {
  const char* const path = std::getenv("GPU_HOST_TRACE");
  FILE* const file = path ? std::fopen(path, "a") : nullptr;
  if (!file) return;
  std::fprintf(file, "graph\n");
  for (const Node& node : nodes) {
    const auto lane = static_cast<int>(node.lane);
    if (node.records >= 0) {
      std::fprintf(file, "%d records %d\n", lane, static_cast<int>(node.records));
    } else if (node.waits >= 0) {
      std::fprintf(file, "%d waits %d\n", lane, static_cast<int>(node.waits));
    } else {
      std::fprintf(file, "%d work\n", lane);
    }
  }
  std::fclose(file);
}

// Whether the calling thread captures a stream. During a capture, calls that the mode ThreadLocal forbids fail.
bool captures() {
  for (const CUstream_st* stream : runtime().streams) {
    if (stream->capture && stream->capture->thread == std::this_thread::get_id()) return true;
  }
  return false;
}

// Whether a copy may read or write the bytes, which are in device or host memory.
bool is_accessible(const void* data, size_t bytes, bool on_device, int device) {
  const DeviceMemory& memory = runtime().memory;
  return on_device ? memory.contains(data, bytes, device) : data && !memory.is_address(data);
}

// Whether a copy whose direction is not given may: they are where the runtime knows the address.
bool is_known(const void* data, size_t bytes, int device) {
  const Runtime& r = runtime();
  const auto holds = [&](const void* begin, size_t size) {
    const auto* const first = static_cast<const char*>(begin);
    const auto* const at = static_cast<const char*>(data);
    return std::less_equal<>()(first, at) && std::less_equal<>()(at + bytes, first + size);
  };
  return r.memory.contains(data, bytes, device, /*or_mapped=*/true) ||
         std::any_of(r.pinned.begin(), r.pinned.end(), [&](const auto& p) { return holds(p.first, p.second); }) ||
         std::any_of(r.mapped.begin(), r.mapped.end(),
                     [&](const auto& m) { return holds(m.first, m.second->bytes()); });
}

}  // namespace

namespace gpu_host {

void fail_call(int64_t n) {
  const std::lock_guard lock(runtime().mutex);
  runtime().failing = n < 0 ? -1 : runtime().calls + n;
}
int64_t calls() { return runtime().calls; }
size_t live_objects() {
  Runtime& r = runtime();
  const auto streams =
      std::count_if(r.streams.begin(), r.streams.end(), [](const CUstream_st* s) { return !s->is_destroyed; });
  return r.memory.blocks() + r.mapped.size() + r.pinned.size() + static_cast<size_t>(streams) -
         r.default_streams.size() + r.events.size() + r.graphs.size() + r.executables.size();
}
const std::map<const void*, Launches>& launches() { return runtime().launches; }
bool is_device_memory(const void* data, size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  return runtime().memory.contains(data, bytes, current, /*or_mapped=*/true);
}
void set_memory_bytes(size_t bytes) { runtime().memory.limit = bytes; }
void set_mapped_bytes(size_t bytes) { runtime().mapped_limit = bytes; }

cudaError_t allow_shared(const void* kernel, size_t bytes) {
  if (bytes <= kDefaultSharedBytes) return cudaSuccess;
  return call([&] {
    if (bytes > static_cast<size_t>(shared_bytes())) return cudaErrorInvalidValue;
    runtime().allowed_shared[kernel] = bytes;
    return cudaSuccess;
  });
}

bool is_device_address(const void* address) { return runtime().memory.is_address(address); }

cudaError_t enqueue_launch(cudaStream_t stream, const void* kernel, dim3 grid, dim3 block, size_t shared,
                           std::function<void()> work) {
  return call([&] {
    const size_t threads = size_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > kMostThreads || block.z > kMostThreadsInZ) return cudaErrorInvalidConfiguration;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMostBlocks || grid.y > kMostBlocksInYZ ||
        grid.z > kMostBlocksInYZ)
      return cudaErrorInvalidConfiguration;
    const auto allowed = runtime().allowed_shared.find(kernel);
    if (shared > (allowed == runtime().allowed_shared.end() ? kDefaultSharedBytes : allowed->second))
      return cudaErrorInvalidValue;
    return enqueue(stream, [kernel, threads, shared, work = std::move(work)] {
      Launches& launches = runtime().launches[kernel];
      ++launches.runs;
      launches.most_threads = std::max(launches.most_threads, threads);
      launches.most_shared = std::max(launches.most_shared, shared);
      work();
      return true;
    });
  });
}

cudaError_t enqueue_cooperative_launch(cudaStream_t stream, const void* kernel, dim3 grid, dim3 block, size_t shared,
                                       std::function<void()> work) {
  const size_t blocks = size_t{grid.x} * grid.y * grid.z, threads = size_t{block.x} * block.y * block.z;
  const int resident = resident_blocks(static_cast<int>(threads), shared);
  if (blocks > static_cast<size_t>(resident) * static_cast<size_t>(processors()))
    return call([] { return cudaErrorCooperativeLaunchTooLarge; });
  return enqueue_launch(stream, kernel, grid, block, shared, std::move(work));
}

cudaError_t enqueue_exchange(cudaStream_t stream, std::function<bool()> work) {
  return call([&] { return enqueue(stream, std::move(work), true); });
}

}  // namespace gpu_host

namespace {

// The most threads of a block that fit whatever registers NVRTC gives a kernel: 65,536 of a block, 255 of a thread,
// which a warp gets in units of 256; so no launch of one can fail for its registers, which the host does not know.
// Static shared memory fits, too: it has 48 KiB at most.
constexpr size_t kMostGeneratedThreads = 65536 / 256;

// The library of a generated kernel (generated.cc).
struct GeneratedKernel {
  void* library;
  void (*run)(dim3 grid, dim3 block, void* const* arguments);
  int parameters;
  const bool* is_address;                                  // by parameter
  std::shared_ptr<int> holders = std::make_shared<int>();  // one more for each launch in a stream or a graph
};

GeneratedKernel* at(cudaLibrary_t library) { return reinterpret_cast<GeneratedKernel*>(library); }

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return call([&] { return *count = devices(), cudaSuccess; });
}
// Reads a variable of the thread and cannot fail.
cudaError_t cudaGetDevice(int* device) { return *device = current, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  return call([&] {
    if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
    current = device;
    return cudaSuccess;
  });
}
cudaError_t cudaDriverGetVersion(int* version) {
  return call([&] { return *version = CUDART_VERSION, cudaSuccess; });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call([&] {
    if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "CUDA on the host");
    properties->major = kDevice.major;
    properties->multiProcessorCount = processors();
    properties->totalGlobalMem = runtime().memory.limit;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = static_cast<size_t>(shared_bytes());
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    return cudaSuccess;
  });
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call([&] {
    *total = runtime().memory.limit;
    *free = *total - runtime().memory.used();
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return call([&] {
    if (captures()) return cudaErrorStreamCaptureUnsupported;
    *data = nullptr;
    if (bytes == 0) return cudaSuccess;
    *data = runtime().memory.allocate(bytes, current);
    return *data ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}
cudaError_t cudaFree(void* data) {
  const Call now;
  if (captures()) return result(cudaErrorStreamCaptureUnsupported);
  drain_all();
  return result(!data || runtime().memory.free(data) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
  return call([&] {
    if (captures()) return cudaErrorStreamCaptureUnsupported;
    *data = std::malloc(bytes);
    runtime().pinned[*data] = bytes;
    return cudaSuccess;
  });
}
// Only mapped memory. Fresh memory has arbitrary contents.
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned flags) {
  return call([&] {
    Runtime& r = runtime();
    if (captures()) return cudaErrorStreamCaptureUnsupported;
    if (flags != cudaHostAllocMapped || bytes == 0) return cudaErrorInvalidValue;
    size_t used = 0;
    for (const auto& [host, memory] : r.mapped) used += memory->bytes();
    if (used > r.mapped_limit || bytes > r.mapped_limit - used) return cudaErrorMemoryAllocation;
    auto memory = std::make_unique<MappedMemory>(bytes);
    memory->device = r.memory.allocate(bytes, current, memory->file());
    if (!memory->device) return cudaErrorMemoryAllocation;
    memory->show(r.shows_mapped);
    *data = memory->host();
    r.mapped[*data] = std::move(memory);
    return cudaSuccess;
  });
}
cudaError_t cudaHostGetDevicePointer(void** data, void* host, unsigned flags) {
  return call([&] {
    const auto found = runtime().mapped.find(host);
    if (flags != 0 || found == runtime().mapped.end()) return cudaErrorInvalidValue;
    *data = found->second->device;
    return cudaSuccess;
  });
}
// The documentation does not say that it waits for work that uses the memory, so it does not.
cudaError_t cudaFreeHost(void* data) {
  const Call now;
  if (captures()) return result(cudaErrorStreamCaptureUnsupported);
  if (const auto found = runtime().mapped.find(data); found != runtime().mapped.end()) {
    runtime().memory.free(found->second->device, /*is_mapped=*/true);
    runtime().mapped.erase(found);
    return cudaSuccess;
  }
  if (data && runtime().pinned.erase(data) == 0) return result(cudaErrorInvalidValue);
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call([&] {
    const bool to_host = kind == cudaMemcpyDeviceToHost, from_host = kind == cudaMemcpyHostToDevice;
    if (!to_host && !from_host && kind != cudaMemcpyDeviceToDevice && kind != cudaMemcpyDefault)
      return cudaErrorInvalidMemcpyDirection;
    const auto allows = [kind, bytes, device = current](const void* data, bool on_device) {
      if (bytes == 0) return true;
      return kind == cudaMemcpyDefault ? is_known(data, bytes, device) : is_accessible(data, bytes, on_device, device);
    };
    const auto is_allowed = [=] { return allows(to, !to_host) && allows(from, !from_host); };
    if (!is_allowed()) return cudaErrorInvalidValue;
    // The documentation leaves overlapping copies undefined.
    const auto *const a = static_cast<const char*>(to), *const b = static_cast<const char*>(from);
    if (bytes > 0 && std::less<>()(a, b + bytes) && std::less<>()(b, a + bytes)) return cudaErrorInvalidValue;
    return enqueue(stream, [=] {
      if (!is_allowed()) gpu_host::refuse("a copy runs after its memory has been freed");
      return std::memcpy(to, from, bytes), true;
    });
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return call([&] {
    if (bytes > 0 && !runtime().memory.contains(to, bytes, current, /*or_mapped=*/true)) return cudaErrorInvalidValue;
    return enqueue(stream, [=] { return std::memset(to, value, bytes), true; });
  });
}

// Other streams wait for the default stream, and it for them.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call([&] {
    if (flags != cudaStreamNonBlocking) return cudaErrorNotSupported;
    *stream = new CUstream_st{.device = current};
    runtime().streams.insert(*stream);
    return cudaSuccess;
  });
}
// Does not wait for the stream's work.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Call now;
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  if (at(stream).capture) return result(cudaErrorStreamCaptureUnsupported);
  stream->is_destroyed = true;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call([&] {
    if (at(stream).capture || captures()) return cudaErrorStreamCaptureUnsupported;
    drain(at(stream));
    return cudaSuccess;
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call([&] {
    CUstream_st& to = at(stream);
    const std::shared_ptr<CUgraph_st> graph = at(event).graph.lock();
    if (!graph) {
      if (to.capture) return cudaErrorStreamCaptureIsolation;
      return enqueue(stream, wait_for(event->done, event->stream));
    }
    if (to.capture && to.capture != graph) return cudaErrorStreamCaptureMerge;
    if (!to.capture) {  // it joins the capture
      to.capture = graph;
      to.lane = graph->lanes.size();
      graph->lanes.push_back(&to);
      graph->is_joined.push_back(false);
    }
    const auto is_last = [&](const Node& node) { return node.lane == event->lane; };
    const auto last = std::find_if(graph->nodes.rbegin(), graph->nodes.rend(), is_last);
    if (to.lane == 0 && last != graph->nodes.rend() && last->records == event->number)
      graph->is_joined[event->lane] = true;
    graph->is_joined[to.lane] = to.lane == 0;
    graph->nodes.push_back({.lane = to.lane, .waits = event->number, .of_lane = event->lane});
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call([&] {
    *event = new CUevent_st{.device = current, .is_timed = !(flags & cudaEventDisableTiming)};
    runtime().events.insert(*event);
    return cudaSuccess;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(runtime().mutex);
  at(event);
  runtime().events.erase(event);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call([&] {
    if (at(event).device != at(stream).device) return cudaErrorInvalidResourceHandle;
    event->done = std::make_shared<bool>(false);
    event->stream = &at(stream);
    event->graph.reset();
    if (CUstream_st& to = at(stream); to.capture) {
      event->graph = to.capture;
      event->number = to.capture->events++;
      event->lane = to.lane;
      to.capture->nodes.push_back({.lane = to.lane, .records = event->number});
      return cudaSuccess;
    }
    return enqueue(stream, [done = event->done] { return *done = true; });
  });
}
// Supported only as a node of a graph, which records the event at each launch.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return call([&] {
    if (!at(stream).capture || flags != cudaEventRecordExternal) return cudaErrorNotSupported;
    if (at(event).device != at(stream).device) return cudaErrorInvalidResourceHandle;
    return enqueue(stream, [event] { return at(event).time = std::chrono::steady_clock::now(), true; });
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call([&] {
    if (!at(start).is_timed || !at(end).is_timed || !start->time.time_since_epoch().count())
      return cudaErrorInvalidValue;
    if (!*start->done || !*end->done || end->time < start->time) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
    return cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  // cudaErrorNotReady is no error that cudaGetLastError reports.
  const Call now;
  if (at(event).graph.lock()) return result(cudaErrorCapturedEvent);
  if (captures()) return result(cudaErrorStreamCaptureUnsupported);
  if (*event->done) return cudaSuccess;
  // The device goes on while the host asks.
  const DeviceMemory::Access access(&runtime().memory);
  if (!event->stream->work.empty()) get_on(*event->stream);
  return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&] {
    if (captures()) return cudaErrorStreamCaptureUnsupported;
    if (at(event).graph.lock()) return cudaErrorCapturedEvent;
    const DeviceMemory::Access access(&runtime().memory);
    while (!*event->done && !event->stream->work.empty()) get_on(*event->stream);
    return cudaSuccess;
  });
}

// In the mode Global other threads, too, must not allocate.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&] {
    if (mode != cudaStreamCaptureModeThreadLocal) return cudaErrorNotSupported;
    if (at(stream).device != current) return cudaErrorInvalidResourceHandle;
    if (!stream || stream->capture) return cudaErrorStreamCaptureUnsupported;
    stream->capture = std::make_shared<CUgraph_st>(CUgraph_st{.lanes = {stream}, .is_joined = {true}});
    stream->lane = 0;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  // A failing call ends the capture, too.
  const std::lock_guard lock(runtime().mutex);
  const std::shared_ptr<CUgraph_st> captured = stream ? stream->capture : nullptr;
  for (CUstream_st* lane : captured ? captured->lanes : std::vector<CUstream_st*>()) lane->capture.reset();
  return call([&] {
    if (!captured) return cudaErrorIllegalState;
    for (size_t lane = 1; lane < captured->lanes.size(); ++lane) {
      if (!captured->is_joined[lane]) return cudaErrorStreamCaptureUnjoined;
    }
    *graph = new CUgraph_st(*captured);
    runtime().graphs.insert(*graph);
    return cudaSuccess;
  });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return call([&] {
    *executable = new CUgraphExec_st{at(graph).nodes, graph->events, {}};
    write_trace(graph->nodes);
    for (size_t lane = 1; lane < graph->lanes.size(); ++lane) {
      auto& stream = (*executable)->lanes.emplace_back(new CUstream_st{.device = graph->lanes[lane]->device});
      runtime().streams.insert(stream.get());
    }
    runtime().executables.insert(*executable);
    return cudaSuccess;
  });
}
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  return call([&] { return at(executable), at(stream), cudaSuccess; });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call([&] {
    std::vector<std::shared_ptr<bool>> done;
    for (int64_t i = 0; i < at(executable).events; ++i) done.push_back(std::make_shared<bool>(false));
    const auto stream_of = [&](size_t lane) { return lane == 0 ? stream : executable->lanes[lane - 1].get(); };
    for (const Node& node : executable->nodes) {
      Work work = node.work;
      if (node.records >= 0) work = [flag = done[static_cast<size_t>(node.records)]] { return *flag = true; };
      if (node.waits >= 0) work = wait_for(done[static_cast<size_t>(node.waits)], &at(stream_of(node.of_lane)));
      if (const cudaError_t status = enqueue(stream_of(node.lane), std::move(work), node.exchanges);
          status != cudaSuccess)
        return status;
    }
    return cudaSuccess;
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::lock_guard lock(runtime().mutex);
  at(graph);
  runtime().graphs.erase(graph);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Call now;
  for (const auto& lane : at(executable).lanes) {
    drain(*lane);
    runtime().streams.erase(lane.get());
  }
  runtime().executables.erase(executable);
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const std::lock_guard lock(runtime().mutex);
  return std::exchange(runtime().last, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorUnknown: return "unknown error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMisalignedAddress: return "misaligned address";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    default: return "an error of the runtime on the host";
  }
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  return call([&] {
    switch (attribute) {
      case cudaDevAttrComputeCapabilityMajor: *value = kDevice.major; break;
      case cudaDevAttrMultiProcessorCount: *value = processors(); break;
      case cudaDevAttrCooperativeLaunch: *value = 1; break;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = shared_bytes(); break;
      default: *value = 0;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t shared) {
  return call([&] { return *blocks = resident_blocks(threads, shared), cudaSuccess; });
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  return call([&] {
    void* const handle = dlopen(static_cast<const char*>(code), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return cudaErrorInvalidKernelImage;
    auto* const kernel = new GeneratedKernel{handle, nullptr, 0, nullptr};
    kernel->run = reinterpret_cast<decltype(kernel->run)>(dlsym(handle, "run_fused"));
    kernel->parameters = *static_cast<const int*>(dlsym(handle, "fused_parameters"));
    kernel->is_address = static_cast<const bool*>(dlsym(handle, "fused_addresses"));
    *library = reinterpret_cast<cudaLibrary_t>(kernel);
    return cudaSuccess;
  });
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char*) {
  return call([&] { return *kernel = reinterpret_cast<cudaKernel_t>(library), cudaSuccess; });
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  const std::lock_guard lock(runtime().mutex);
  if (at(library)->holders.use_count() > 1) gpu_host::refuse("a kernel is unloaded that a stream or a graph still has");
  dlclose(at(library)->library);
  delete at(library);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  const GeneratedKernel& generated = *static_cast<const GeneratedKernel*>(kernel);
  const auto& [grid, block, shared, stream, attributes, count] = *config;
  if (size_t{block.x} * block.y * block.z > kMostGeneratedThreads || shared > 0 || count > 0)
    return call([] { return cudaErrorLaunchOutOfResources; });
  std::vector<void*> values;
  for (int i = 0; i < generated.parameters; ++i) {
    values.push_back(*static_cast<void**>(arguments[i]));
    if (generated.is_address[i] && values.back() && !gpu_host::is_device_address(values.back()))
      return call([] { return cudaErrorIllegalAddress; });
  }
  return gpu_host::enqueue_launch(stream, nullptr, grid, block, shared,
                                  [run = generated.run, holder = generated.holders, values, blocks = grid,
                                   threads = block] { run(blocks, threads, values.data()); });
}

}  // extern "C"
