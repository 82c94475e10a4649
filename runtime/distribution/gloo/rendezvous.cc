#include "runtime/distribution/gloo/rendezvous.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kNotice{5};
constexpr std::chrono::milliseconds kBetweenQuestions{20};

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

// This machine's address on the way to another one; "" where there is none. Connecting UDP sends nothing.
std::string address_towards(const std::string& host) {
  sockaddr_storage to{};
  auto* const four = reinterpret_cast<sockaddr_in*>(&to);
  auto* const six = reinterpret_cast<sockaddr_in6*>(&to);
  socklen_t size = 0;
  if (inet_pton(AF_INET, host.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(9);
    size = sizeof(*four);
  } else if (inet_pton(AF_INET6, host.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(9);
    size = sizeof(*six);
  }
  const Socket socket(::socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (size == 0 || connect(socket.fd(), reinterpret_cast<const sockaddr*>(&to), size) != 0) return "";
  return socket.address();
}

class Meeting {
 public:
  Meeting(const RankPlace& place, Deadline deadline, const std::function<void(const std::string&)>& on_wait)
      : place_(place), deadline_(deadline), on_wait_(on_wait), notice_(std::min(deadline, Clock::now() + kNotice)) {
    // A launcher's store may outlive the processes that it starts again.
    met_.prefix = concat("onnx_train/", place.has_store ? place.run + "/" : "");
  }

  FoundRanks run() {
    if (!place_.has_store && place_.rank == 0) met_.server = std::make_unique<StoreServer>(place_.port);
    connect();
    // A process that is left over from another run, say, takes no rank's place.
    if (met_.store->add(met_.prefix + concat("count/", place_.rank), 1) != 1)
      fail("another process is rank ", place_.rank, " of this run, too: see whether one is left over");
    met_.store->set(key(place_.rank), concat(place_.size, " ", met_.store->own_address()));
    wait_for_all();
    for (int r = 0; r < place_.size; ++r) met_.hosts.push_back(host_of(r));
    leave_loopback();
    return std::move(met_);
  }

 private:
  std::string key(int rank) const { return met_.prefix + concat("rank/", rank); }

  // Says once what is waited for.
  void say(const std::string& text) {
    if (on_wait_) on_wait_(text);
    notice_ = deadline_;
  }

  // Rank 0 may not have begun.
  void connect() {
    if (notice_ < deadline_) {
      try {
        const Socket tried = Socket::connect(place_.address, place_.port, notice_);
      } catch (const Error& error) {
        say(concat("rank ", place_.rank, " still tries: ", error.what()));
      }
    }
    met_.store = std::make_unique<StoreClient>(place_.address, place_.port, deadline_);
  }

  void wait_for_all() {
    std::vector<std::string> keys;
    for (int r = 0; r < place_.size; ++r) keys.push_back(key(r));
    while (!met_.store->has(keys)) {
      if (Clock::now() >= deadline_) fail_as(ErrorCode::kRankMissing, describe_missing());
      if (Clock::now() >= notice_) say(describe_missing());
      std::this_thread::sleep_for(kBetweenQuestions);
    }
  }

  std::string describe_missing() {
    std::string missing;
    for (int r = 0; r < place_.size; ++r) {
      if (!met_.store->has({key(r)})) missing += concat(missing.empty() ? "" : ", ", r);
    }
    return concat("rank ", place_.rank, " waits for rank ", missing,
                  ", which does not connect: see whether it has been started, and can reach ", place_.address,
                  ", port ", place_.port);
  }

  std::string host_of(int rank) {
    const std::string value = met_.store->get(key(rank));
    const std::string size = value.substr(0, value.find(' '));
    if (size != std::to_string(place_.size))
      fail("rank ", rank, " counts ", size, " ranks, and rank ", place_.rank, " counts ", place_.size);
    return value.substr(size.size() + 1);
  }

  // Whoever shares the store's machine has reached it by an address that other machines cannot reach.
  void leave_loopback() {
    std::string& own = met_.hosts[static_cast<size_t>(place_.rank)];
    const auto other = std::ranges::find_if_not(met_.hosts, is_loopback);
    if (!is_loopback(own) || other == met_.hosts.end()) return;
    if (const std::string address = address_towards(*other); !address.empty()) own = address;
  }

  const RankPlace& place_;
  Deadline deadline_;
  const std::function<void(const std::string&)>& on_wait_;
  Deadline notice_;
  FoundRanks met_;
};

}  // namespace

FoundRanks find_ranks(const RankPlace& place, Deadline deadline,
                      const std::function<void(const std::string&)>& on_wait) {
  return Meeting(place, deadline, on_wait).run();
}

}  // namespace onnx_train
