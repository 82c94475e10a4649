#include "runtime/distribution/gloo/gloo_mesh.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Our store as Gloo wants it.
class MeshStore : public gloo::rendezvous::Store {
 public:
  MeshStore(StoreClient* store, std::string prefix, Deadline deadline)
      : store_(*store), prefix_(std::move(prefix)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(prefix_ + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    wait({key});
    const std::string value = store_.get(prefix_ + key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    std::vector<std::string> wanted;
    for (const std::string& key : keys) wanted.push_back(prefix_ + key);
    while (!store_.has(wanted)) {
      if (Clock::now() >= deadline_) fail("another rank has come, and has gone again");
      std::this_thread::sleep_for(milliseconds(5));
    }
  }

 private:
  StoreClient& store_;
  std::string prefix_;
  Deadline deadline_;
};

std::set<int> open_descriptors() {
  std::set<int> descriptors;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error))
    descriptors.insert(std::atoi(entry.path().filename().c_str()));
  return descriptors;
}

// A machine that is gone without a word is noticed after ten seconds. Gloo tells nobody which descriptors its
// connections have: they are those that were not there before.
void keep_alive(const std::set<int>& before) {
  const int on = 1, idle = 5, interval = 1, count = 4;
  for (const int fd : open_descriptors()) {
    if (before.contains(fd)) continue;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
  }
}

}  // namespace

std::shared_ptr<gloo::Context> connect_mesh(const RankPlace& place, const FoundRanks& met, Deadline deadline) {
  const std::set<int> before = open_descriptors();
  const WithoutPipeSignal without;  // for Gloo's thread, which starts here
  try {
    gloo::transport::tcp::attr address(met.hosts[static_cast<size_t>(place.rank)].c_str());
    if (const char* const interface = std::getenv("GLOO_SOCKET_IFNAME")) address.iface = interface;
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(address);
    auto mesh = std::make_shared<gloo::rendezvous::Context>(place.rank, place.size);
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    mesh->setTimeout(std::max(left / 5, milliseconds(1000)));  // Gloo waits five times as long for a connection
    MeshStore store(met.store.get(), met.prefix + "gloo/", deadline);
    mesh->connectFullMesh(store, device);
    keep_alive(before);
    return mesh;
  } catch (const std::exception& error) {
    fail_as(ErrorCode::kRankMissing, "rank ", place.rank, " (", met.hosts[static_cast<size_t>(place.rank)],
            ") cannot be connected to the other ranks: ", error.what(),
            "; GLOO_SOCKET_IFNAME names the network interface that reaches them");
  }
}

WithoutPipeSignal::WithoutPipeSignal() {
  sigset_t pipe, blocked, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &blocked);
  was_blocked_ = sigismember(&blocked, SIGPIPE) == 1;
  was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

WithoutPipeSignal::~WithoutPipeSignal() {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec now{};
  if (!was_pending_) sigtimedwait(&pipe, nullptr, &now);
  if (!was_blocked_) pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
}

}  // namespace onnx_train
