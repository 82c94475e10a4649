#include "runtime/distribution/peers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <random>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/store.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What a rank says first on each connection.
struct Hello {
  uint32_t magic;
  int32_t rank, size, port;
  uint64_t token;  // that rank 0 has drawn; 0 to rank 0
};
constexpr uint32_t kHello = 0x0a110b01;

// Where a rank listens.
struct Address {
  std::array<char, 64> host;
  int32_t port;
};

class Connecting {
 public:
  Connecting(const RankPlace& place, Deadline deadline, std::function<void(const std::string&)> on_wait)
      : place_(place),
        deadline_(deadline),
        on_wait_(std::move(on_wait)),
        notice_(std::min(deadline, Clock::now() + kNotice)),
        peers_(static_cast<size_t>(place.size)) {}

  std::vector<Socket> run() {
    place_.rank == 0 ? lead() : follow();
    return std::move(peers_);
  }

 private:
  static constexpr std::chrono::seconds kNotice{5};

  // Says once what is waited for.
  void say(const std::string& text) {
    if (on_wait_) on_wait_(text);
    notice_ = deadline_;
  }

  std::string key() const { return concat("onnx_train/", place_.run, "/rank0"); }

  void lead() {
    const Socket listener = Socket::listen(place_.has_store ? 0 : place_.port);
    if (place_.has_store) {
      StoreClient store(place_.address, place_.port, deadline_);
      store.set(key(), std::to_string(listener.port()));
    }
    token_ = std::random_device()();
    token_ = token_ << 32 | std::random_device()() | 1;
    std::vector<Address> addresses(peers_.size());
    accept(listener, 0, 1, [&](const Hello& hello, const Socket& peer) {
      Address& address = addresses[static_cast<size_t>(hello.rank)];
      address.port = hello.port;
      peer.peer().copy(address.host.data(), address.host.size() - 1);
    });
    for (size_t r = 1; r < peers_.size(); ++r) {
      peers_[r].send(&token_, sizeof(token_), deadline_);
      peers_[r].send(addresses.data(), addresses.size() * sizeof(Address), deadline_);
    }
  }

  void follow() {
    int port = place_.port;
    if (place_.has_store) {
      StoreClient store(place_.address, place_.port, deadline_);
      port = std::atoi(store.get(key()).c_str());
    }
    const Socket listener = Socket::listen(0);
    peers_[0] = greet(place_.address, port, 0, listener.port());
    std::vector<Address> addresses(peers_.size());
    peers_[0].receive(&token_, sizeof(token_), deadline_);
    peers_[0].receive(addresses.data(), addresses.size() * sizeof(Address), deadline_);
    const auto own = static_cast<size_t>(place_.rank);
    for (size_t r = 1; r < own; ++r) {
      addresses[r].host.back() = '\0';
      // Of the machine of rank 0, the others see its own address.
      const std::string host = addresses[r].host.data();
      const bool is_local = host == "127.0.0.1" || host == "::1";
      peers_[r] = greet(is_local ? place_.address : host, addresses[r].port, token_, 0);
    }
    accept(listener, token_, own + 1, [](const Hello&, const Socket&) {});
  }

  Socket connect(const std::string& host, int port) {
    if (notice_ < deadline_) {
      try {
        return Socket::connect(host, port, notice_);
      } catch (const Error& error) {
        say(concat("rank ", place_.rank, " still tries: ", error.what()));
      }
    }
    return Socket::connect(host, port, deadline_);
  }

  Socket greet(const std::string& host, int port, uint64_t token, int own_port) {
    Socket socket = connect(host, port);
    const Hello hello{kHello, place_.rank, place_.size, own_port, token};
    socket.send(&hello, sizeof(hello), deadline_);
    return socket;
  }

  // Accepts the ranks from `first` on. What does not speak as a rank of this training is left alone.
  template <typename F>
  void accept(const Socket& listener, uint64_t token, size_t first, const F& on_rank) {
    for (size_t missing = peers_.size() - first; missing > 0;) {
      Socket socket = listener.accept(notice_);
      if (!socket && notice_ < deadline_) {
        say(describe_missing(first, listener.port()));
        continue;
      }
      if (!socket) fail_as(ErrorCode::kRankMissing, describe_missing(first, listener.port()));
      Hello hello{};
      try {
        socket.receive(&hello, sizeof(hello), std::min(deadline_, Clock::now() + milliseconds(2000)));
      } catch (const Error&) {
        continue;
      }
      const bool speaks = hello.magic == kHello && hello.token == token;
      if (speaks && hello.size != place_.size)
        fail("rank ", hello.rank, " counts ", hello.size, " ranks, and rank ", place_.rank, " counts ", place_.size);
      const bool is_awaited = speaks && hello.rank >= static_cast<int>(first) && hello.rank < place_.size &&
                              !peers_[static_cast<size_t>(hello.rank)];
      if (!is_awaited) continue;
      on_rank(hello, socket);
      peers_[static_cast<size_t>(hello.rank)] = std::move(socket);
      --missing;
    }
  }

  std::string describe_missing(size_t first, int port) const {
    std::string missing;
    for (size_t r = first; r < peers_.size(); ++r) {
      if (!peers_[r]) missing += concat(missing.empty() ? "" : ", ", r);
    }
    return concat("rank ", place_.rank, " waits on port ", port, " for rank ", missing,
                  ", which does not connect: see whether it has been started, and can reach ", place_.address);
  }

  const RankPlace& place_;
  Deadline deadline_;
  std::function<void(const std::string&)> on_wait_;
  Deadline notice_;
  std::vector<Socket> peers_;
  uint64_t token_ = 0;
};

}  // namespace

std::vector<Socket> connect_peers(const RankPlace& place, Deadline deadline,
                                  std::function<void(const std::string&)> on_wait) {
  return Connecting(place, deadline, std::move(on_wait)).run();
}

}  // namespace onnx_train
