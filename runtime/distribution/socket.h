// TCP connections that give up at a deadline. The caller owns a socket and uses it from one thread at a time. Functions
// throw Error that names the address.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

namespace onnx_train {

using Deadline = std::chrono::steady_clock::time_point;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  // Tries until the deadline: the other side may not listen yet.
  static Socket connect(const std::string& host, int port, Deadline deadline);
  // Listens on all addresses; port 0: any that is free.
  static Socket listen(int port);
  // The next connection; none at the deadline.
  Socket accept(Deadline deadline) const;

  // All bytes, or Error.
  void send(const void* data, size_t bytes, Deadline deadline) const;
  void receive(void* data, size_t bytes, Deadline deadline) const;

  int port() const;             // that it listens on
  std::string address() const;  // this side's of a connection, "10.0.0.1"
  std::string peer() const;     // the other side's

 private:
  int fd_ = -1;
};

}  // namespace onnx_train
