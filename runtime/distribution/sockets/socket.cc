#include "runtime/distribution/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_to(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

// Whether the socket is ready before the deadline.
bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, milliseconds_to(deadline));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) fail("poll: ", std::strerror(errno));
  }
}

// What a connection of ranks is: small messages go at once, and a machine that is gone is noticed.
void configure(int fd) {
  const int on = 1, idle = 5, interval = 1, count = 4;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

std::string text_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, text, sizeof(text));
    inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text));
  } else {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
  }
  return text;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Socket Socket::connect(const std::string& host, int port, Deadline deadline) {
  // This name is the machine's own (RFC 6761): a system without /etc/hosts would ask a name server and wait for it.
  const char* const node = host == "localhost" ? nullptr : host.c_str();
  std::string reason;
  do {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int error = getaddrinfo(node, std::to_string(port).c_str(), &hints, &found);
    if (error != 0) reason = gai_strerror(error);
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, [](addrinfo* a) {
      if (a) freeaddrinfo(a);
    });
    for (const addrinfo* a = list.get(); a; a = a->ai_next) {
      Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
      if (!socket) continue;
      if (::connect(socket.fd(), a->ai_addr, a->ai_addrlen) == 0) {
        configure(socket.fd());
        return socket;
      }
      reason = std::strerror(errno);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (Clock::now() < deadline);
  fail_as(ErrorCode::kRankMissing, "cannot connect to ", host, ":", port, ": ", reason);
}

Socket Socket::listen(int port) {
  Socket socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1, off = 0;
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<uint16_t>(port));
  bool listens = false;
  if (socket) {
    setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    listens = bind(socket.fd(), reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0;
  } else {  // a machine without IPv6
    socket = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<uint16_t>(port));
    setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    listens = bind(socket.fd(), reinterpret_cast<sockaddr*>(&four), sizeof(four)) == 0;
  }
  if (!listens || ::listen(socket.fd(), 1024) != 0)
    fail("cannot listen on port ", port, ": ", std::strerror(errno), "; choose another MASTER_PORT");
  return socket;
}

Socket Socket::accept(Deadline deadline) const {
  for (;;) {
    if (!wait_for(fd_, POLLIN, deadline)) return {};
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) {
      configure(fd);
      return Socket(fd);
    }
    const bool passes = errno == EINTR || errno == ECONNABORTED || errno == EAGAIN;
    if (!passes) fail("cannot accept a connection: ", std::strerror(errno));
  }
}

void Socket::send(const void* data, size_t bytes, Deadline deadline) const {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    if (!wait_for(fd_, POLLOUT, deadline)) fail(peer(), " takes no data");
    const ssize_t sent = ::send(fd_, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EINTR && errno != EAGAIN) fail("cannot send to ", peer(), ": ", std::strerror(errno));
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<size_t>(sent);
    }
  }
}

void Socket::receive(void* data, size_t bytes, Deadline deadline) const {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    if (!wait_for(fd_, POLLIN, deadline)) fail("nothing comes from ", peer());
    const ssize_t got = recv(fd_, at, bytes, MSG_DONTWAIT);
    if (got == 0) fail(peer(), " has closed the connection");
    if (got < 0 && errno != EINTR && errno != EAGAIN) fail("cannot read from ", peer(), ": ", std::strerror(errno));
    if (got > 0) {
      at += got;
      bytes -= static_cast<size_t>(got);
    }
  }
}

int Socket::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::string Socket::address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "an unknown address";
  return text_of(address);
}

std::string Socket::peer() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "a process that is gone";
  return text_of(address);
}

}  // namespace onnx_train
