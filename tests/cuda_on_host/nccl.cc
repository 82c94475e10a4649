// NCCL on the host, against its header: ranks are processes of this machine, whose data go through rank 0 over a
// socket. What is enqueued exchanges when the stream runs it, and the stream waits until the other ranks have done
// their part; so does all else that the communicator does. A send reads its memory when the receiver is there, and a
// receive writes to it at the end. A rank whose peer is gone goes on with what it has and says so in
// ncclCommGetAsyncError. $GPU_HOST_NCCL_FAILS=RANK:N lets call N of this rank fail, from 0 on, but for calls that ask.
// $GPU_HOST_NCCL_TRACE=FILE takes a line for each exchange that is enqueued: the rank, the number of the communicator
// in this process and that of its ranks, and the call.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/collective/nccl.h"
#include "onnx_passes/ir/half.h"
#include "tests/cuda_on_host/gpu_on_host.h"

namespace {

// What a communicator connects. Work that is enqueued keeps it.
struct World {
  World(int own, int count) : rank(own), size(count) {}

  const int rank, size;
  const int number = made()++;  // of this process
  std::vector<int> sockets;     // of rank 0: by rank; of the others: that to rank 0
  std::atomic<bool> is_lost = false;
  bool is_busy = false;  // the device's work alone knows it

  ~World() {
    for (const int fd : sockets) {
      if (fd >= 0) close(fd);
    }
  }
  void send(int to, const void* data, size_t bytes) {
    const auto* at = static_cast<const char*>(data);
    while (bytes > 0 && !is_lost) {
      const ssize_t sent = ::send(socket_to(to), at, bytes, MSG_NOSIGNAL);
      if (sent <= 0)
        is_lost = true;
      else
        at += sent, bytes -= static_cast<size_t>(sent);
    }
  }
  // Of a misuse that would let ranks wait for ever, or read something else.
  void lose() {
    is_lost = true;
    for (const int fd : sockets) shutdown(fd, SHUT_RDWR);
  }
  void receive(int from, void* data, size_t bytes) {
    auto* at = static_cast<char*>(data);
    while (bytes > 0 && !is_lost) {
      const ssize_t got = recv(socket_to(from), at, bytes, 0);
      if (got <= 0)
        is_lost = true;
      else
        at += got, bytes -= static_cast<size_t>(got);
    }
  }

 private:
  static std::atomic<int>& made() {
    static std::atomic<int> count = 0;
    return count;
  }
  int socket_to(int other) const { return sockets[rank == 0 ? static_cast<size_t>(other) : 0]; }
};

}  // namespace

struct ncclComm {
  std::shared_ptr<World> world;
};

namespace {

std::atomic<int64_t> calls = 0;

std::string own_rank() {
  const char* const rank = std::getenv("RANK");
  return rank ? rank : "0";
}

bool fails() {
  static const int64_t failing = [] {
    const char* const value = std::getenv("GPU_HOST_NCCL_FAILS");
    const std::string own = own_rank() + ":";
    return value && std::string(value).starts_with(own) ? std::atoll(value + own.size()) : -1;
  }();
  return calls++ == failing;
}

// A name that no file has.
sockaddr_un address_of(const ncclUniqueId& id) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, id.internal, sizeof(address.sun_path) - 1);
  return address;
}

struct Listeners {
  std::mutex mutex;
  std::map<std::string, int> sockets;  // by name
};
Listeners& listeners() {
  static auto& all = *new Listeners;
  return all;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  if (fails()) return ncclSystemError;
  *id = {};
  const std::lock_guard lock(listeners().mutex);
  auto& sockets = listeners().sockets;
  const std::string name = "onnx-train-nccl-" + std::to_string(getpid()) + "-" + std::to_string(sockets.size());
  name.copy(id->internal, sizeof(id->internal) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = address_of(*id);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 || listen(fd, 64) != 0) {
    close(fd);
    return ncclSystemError;
  }
  sockets[name] = fd;
  return ncclSuccess;
}

ncclResult_t init_rank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank) {
  if (fails()) return ncclSystemError;
  const auto made = std::make_shared<World>(rank, size);
  if (rank == 0) {
    const int listener = [&] {
      const std::lock_guard lock(listeners().mutex);
      return listeners().sockets.at(id.internal);
    }();
    made->sockets.assign(static_cast<size_t>(size), -1);
    for (int i = 1; i < size; ++i) {
      const int fd = accept(listener, nullptr, nullptr);
      int32_t other = -1;
      if (fd < 0 || recv(fd, &other, sizeof(other), MSG_WAITALL) != sizeof(other)) return ncclRemoteError;
      made->sockets[static_cast<size_t>(other)] = fd;
    }
    close(listener);
  } else {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    made->sockets = {fd};
    const sockaddr_un address = address_of(id);
    const int32_t own = rank;
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return ncclRemoteError;
    if (send(fd, &own, sizeof(own), MSG_NOSIGNAL) != sizeof(own)) return ncclRemoteError;
  }
  *communicator = new ncclComm{made};
  return ncclSuccess;
}

ncclResult_t destroy(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}

ncclResult_t abort(ncclComm_t communicator) {
  communicator->world->lose();
  return destroy(communicator);
}

ncclResult_t get_async_error(ncclComm_t communicator, ncclResult_t* status) {
  *status = communicator->world->is_lost ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

const char* get_error_string(ncclResult_t status) {
  return status == ncclRemoteError ? "remote process exited or there was a network error" : "unhandled system error";
}
const char* get_last_error(ncclComm_t) { return ""; }

ncclResult_t get_version(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }

// What a stream does in the order of these: first what reads and writes the device's memory, then, in a thread, what
// waits for other ranks.
struct Step {
  std::function<void()> on_device, between_ranks;
};

class Exchange {
 public:
  Exchange(std::shared_ptr<World> world, std::function<std::vector<Step>(World*)> make)
      : world_(std::move(world)), make_(std::move(make)) {}

  // Does what can be done, and returns whether that was all.
  bool operator()() {
    if (!now_) {
      if (world_->is_busy) return false;
      world_->is_busy = true;
      now_ = std::make_shared<Now>(Now{make_(world_.get())});
    }
    for (; now_->at < now_->steps.size(); ++now_->at) {
      const Step& step = now_->steps[now_->at];
      if (!now_->others.valid()) {
        if (step.on_device && !world_->is_lost) step.on_device();
        if (!step.between_ranks) continue;
        now_->others = std::async(std::launch::async, step.between_ranks);
      }
      if (now_->others.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
      now_->others.get();
    }
    now_.reset();
    world_->is_busy = false;
    return true;
  }

 private:
  struct Now {
    std::vector<Step> steps;
    size_t at = 0;
    std::future<void> others = {};
  };

  std::shared_ptr<World> world_;
  std::function<std::vector<Step>(World*)> make_;
  std::shared_ptr<Now> now_ = {};  // of this run; a graph has copies that have not begun
};

void write_trace(const World& world, const char* call) {
  const char* const path = std::getenv("GPU_HOST_NCCL_TRACE");
  FILE* const file = path ? std::fopen(path, "a") : nullptr;
  if (!file) return;
  std::fprintf(file, "%s %d %d %s\n", own_rank().c_str(), world.number, world.size, call);
  std::fclose(file);
}

ncclResult_t enqueue(ncclComm_t c, cudaStream_t stream, const char* call,
                     std::function<std::vector<Step>(World*)> make) {
  if (fails()) return ncclSystemError;
  write_trace(*c->world, call);
  const cudaError_t status = gpu_host::enqueue_exchange(stream, Exchange(c->world, std::move(make)));
  return status == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

using Bytes = std::vector<char>;

// Copies between the memory of the device and that of the host, which may be empty.
void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// The sum of two elements, rounded to their type.
template <typename T>
T sum_of(T a, T b) {
  if constexpr (sizeof(T) == 2)
    return T(static_cast<float>(a) + static_cast<float>(b));
  else
    return a + b;
}

// The sum of the ranks' elements, from left to right, in `sum` on rank 0.
template <typename T>
void add_up(World* c, const T* x, std::vector<T>* sum) {
  sum->assign(x, x + sum->size());
  if (c->rank > 0) return c->send(0, x, sum->size() * sizeof(T));
  std::vector<T> other(sum->size());
  for (int r = 1; r < c->size; ++r) {
    c->receive(r, other.data(), other.size() * sizeof(T));
    for (size_t i = 0; i < other.size(); ++i) (*sum)[i] = sum_of((*sum)[i], other[i]);
  }
}

// `data` of rank `from` to all, by way of rank 0.
void spread(World* c, int from, void* data, size_t bytes) {
  if (c->rank == from && from != 0) c->send(0, data, bytes);
  if (c->rank == 0 && from != 0) c->receive(from, data, bytes);
  if (c->rank > 0) return c->rank == from ? void() : c->receive(0, data, bytes);
  for (int r = 1; r < c->size; ++r) {
    if (r != from) c->send(r, data, bytes);
  }
}

// To the root, or to all where it is negative.
template <typename T>
std::vector<Step> reduce_to(World* c, const void* x, void* y, size_t count, int root) {
  const size_t bytes = count * sizeof(T);
  const auto own = std::make_shared<std::vector<T>>(count), sum = std::make_shared<std::vector<T>>(count);
  const auto add = [=] {
    add_up(c, own->data(), sum.get());
    if (root < 0) {
      spread(c, 0, sum->data(), bytes);
    } else if (root > 0 && c->rank == 0) {
      c->send(root, sum->data(), bytes);
    } else if (root > 0 && c->rank == root) {
      c->receive(0, sum->data(), bytes);
    }
  };
  const auto write = [=] {
    if (root < 0 || c->rank == root) copy(y, sum->data(), bytes);
  };
  return {{[=] { copy(own->data(), x, bytes); }, add}, {write, {}}};
}

ncclResult_t reduce_elements(const void* x, void* y, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                             ncclComm_t c, cudaStream_t stream) {
  const auto make = type == ncclFloat32    ? reduce_to<float>
                    : type == ncclFloat64  ? reduce_to<double>
                    : type == ncclBfloat16 ? reduce_to<onnx_train::BFloat16>
                    : type == ncclFloat16  ? reduce_to<onnx_train::Float16>
                                           : nullptr;
  if (op != ncclSum || !make) return ncclInvalidArgument;
  return enqueue(c, stream, root < 0 ? "ncclAllReduce" : "ncclReduce",
                 [=](World* world) { return make(world, x, y, count, root); });
}

ncclResult_t reduce(const void* x, void* y, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t c,
                    cudaStream_t stream) {
  return reduce_elements(x, y, count, type, op, root, c, stream);
}

ncclResult_t all_reduce(const void* x, void* y, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                        cudaStream_t stream) {
  return reduce_elements(x, y, count, type, op, -1, c, stream);
}

ncclResult_t broadcast(const void* x, void* y, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                       cudaStream_t stream) {
  if (type != ncclUint8) return ncclInvalidArgument;
  return enqueue(c, stream, "ncclBroadcast", [=](World* world) -> std::vector<Step> {
    const auto data = std::make_shared<Bytes>(count);
    const bool is_root = world->rank == root;
    return {{[=] { copy(data->data(), is_root ? x : y, count); }, [=] { spread(world, root, data->data(), count); }},
            {[=] { copy(y, data->data(), count); }, {}}};
  });
}

ncclResult_t all_gather(const void* x, void* y, size_t count, ncclDataType_t type, ncclComm_t c, cudaStream_t stream) {
  if (type != ncclUint8) return ncclInvalidArgument;
  return enqueue(c, stream, "ncclAllGather", [=](World* world) -> std::vector<Step> {
    const auto all = std::make_shared<Bytes>(count * static_cast<size_t>(world->size));
    const auto of_rank = [=](int r) { return all->data() + static_cast<size_t>(r) * count; };
    const auto gather = [=] {
      for (int r = 0; r < world->size; ++r) spread(world, r, of_rank(r), count);
    };
    return {{[=] { copy(of_rank(world->rank), x, count); }, gather}, {[=] { copy(y, all->data(), all->size()); }, {}}};
  });
}

// Whether the ranks can exchange: rank 0 and another one, as far as this substitute goes.
bool is_peer(const World& world, int peer) {
  return peer >= 0 && peer < world.size && (peer == 0) != (world.rank == 0);
}

// The receiver says that it is there, and for how much.
ncclResult_t send_to(const void* x, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
  if (type != ncclUint8 || !is_peer(*c->world, peer)) return ncclInvalidArgument;
  return enqueue(c, stream, "ncclSend", [=](World* world) -> std::vector<Step> {
    const auto data = std::make_shared<Bytes>(count);
    const auto wait = [=] {
      uint64_t wanted = 0;
      world->receive(peer, &wanted, sizeof(wanted));
      if (wanted != count) world->lose();
    };
    return {{{}, wait}, {[=] { copy(data->data(), x, count); }, [=] { world->send(peer, data->data(), count); }}};
  });
}

ncclResult_t receive_from(void* y, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
  if (type != ncclUint8 || !is_peer(*c->world, peer)) return ncclInvalidArgument;
  return enqueue(c, stream, "ncclRecv", [=](World* world) -> std::vector<Step> {
    const auto data = std::make_shared<Bytes>(count);
    const auto receive = [=] {
      const uint64_t wanted = count;
      world->send(peer, &wanted, sizeof(wanted));
      world->receive(peer, data->data(), count);
    };
    return {{{}, receive}, {[=] { copy(y, data->data(), count); }, {}}};
  });
}

}  // namespace

namespace onnx_train::cuda {

void* nccl_function(const char* name) {
  if (const char* value = std::getenv("GPU_HOST_NCCL"); value && std::string(value) == "off") return nullptr;
  static const auto& all = *new std::map<std::string, void*>{
      {"ncclGetUniqueId", reinterpret_cast<void*>(static_cast<decltype(&ncclGetUniqueId)>(get_unique_id))},
      {"ncclCommInitRank", reinterpret_cast<void*>(static_cast<decltype(&ncclCommInitRank)>(init_rank))},
      {"ncclCommDestroy", reinterpret_cast<void*>(static_cast<decltype(&ncclCommDestroy)>(destroy))},
      {"ncclCommAbort", reinterpret_cast<void*>(static_cast<decltype(&ncclCommAbort)>(abort))},
      {"ncclCommGetAsyncError",
       reinterpret_cast<void*>(static_cast<decltype(&ncclCommGetAsyncError)>(get_async_error))},
      {"ncclGetErrorString", reinterpret_cast<void*>(static_cast<decltype(&ncclGetErrorString)>(get_error_string))},
      {"ncclGetLastError", reinterpret_cast<void*>(static_cast<decltype(&ncclGetLastError)>(get_last_error))},
      {"ncclGetVersion", reinterpret_cast<void*>(static_cast<decltype(&ncclGetVersion)>(get_version))},
      {"ncclAllReduce", reinterpret_cast<void*>(static_cast<decltype(&ncclAllReduce)>(all_reduce))},
      {"ncclReduce", reinterpret_cast<void*>(static_cast<decltype(&ncclReduce)>(reduce))},
      {"ncclBroadcast", reinterpret_cast<void*>(static_cast<decltype(&ncclBroadcast)>(::broadcast))},
      {"ncclAllGather", reinterpret_cast<void*>(static_cast<decltype(&ncclAllGather)>(all_gather))},
      {"ncclSend", reinterpret_cast<void*>(static_cast<decltype(&ncclSend)>(send_to))},
      {"ncclRecv", reinterpret_cast<void*>(static_cast<decltype(&ncclRecv)>(receive_from))}};
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace onnx_train::cuda
