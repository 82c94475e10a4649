#include "runtime/distribution/store_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <string>
#include <vector>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/store.h"
#include "runtime/distribution/store_values.h"

namespace onnx_train {
namespace {

struct Client {
  Socket socket;
  std::string in, out;

  // Whether it goes on.
  bool serve(StoreValues* values, short events) {
    if (events & (POLLIN | POLLHUP | POLLERR)) {
      std::array<char, 1 << 14> piece;
      const ssize_t got = recv(socket.fd(), piece.data(), piece.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
      if (got <= 0) return false;
      in.append(piece.data(), static_cast<size_t>(got));
      try {
        size_t taken = 0;
        while (const auto answer = values->answer(in, &taken)) {
          out += *answer;
          in.erase(0, taken);
        }
      } catch (const Error&) {
        return false;  // no rank
      }
      if (in.size() > 2 * StoreProtocol::kLongest) return false;
    }
    if (out.empty()) return true;
    const ssize_t sent = send(socket.fd(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    out.erase(0, static_cast<size_t>(sent));
    return true;
  }
};

}  // namespace

StoreServer::StoreServer(int port) : listener_(Socket::listen(port)) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail("cannot make a pair of sockets: ", std::strerror(errno));
  wakes_ = Socket(ends[0]);
  woken_ = Socket(ends[1]);
  thread_ = std::thread([this] { run(); });
}

StoreServer::~StoreServer() {
  shutdown(wakes_.fd(), SHUT_RDWR);
  thread_.join();
}

void StoreServer::run() {
  StoreValues values;
  std::list<Client> clients;
  for (std::vector<pollfd> entries;; entries.clear()) {
    entries.push_back({woken_.fd(), POLLIN, 0});
    entries.push_back({listener_.fd(), POLLIN, 0});
    for (const Client& client : clients)
      entries.push_back({client.socket.fd(), static_cast<short>(client.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (entries[0].revents != 0) return;
    auto entry = entries.begin() + 2;
    for (auto client = clients.begin(); client != clients.end(); ++entry) {
      const bool goes_on = entry->revents == 0 || client->serve(&values, entry->revents);
      client = goes_on ? std::next(client) : clients.erase(client);
    }
    if (entries[1].revents == 0) continue;
    try {
      if (Socket socket = listener_.accept(std::chrono::steady_clock::now()))
        clients.push_back({std::move(socket), "", ""});
    } catch (const Error&) {
      // There is no descriptor for it: those that are connected go on.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
}

}  // namespace onnx_train
