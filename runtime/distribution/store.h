// A client of the key-value store through which ranks find each other: that of torchrun's agent, or rank 0's
// (store_server.h). The protocol is that of PyTorch's TCPStore (torch/csrc/distributed/c10d/TCPStoreBackend.hpp).
// Blocks until the deadline, and ten seconds more for an answer; one thread. Throws Error that names the address.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/distribution/socket.h"

namespace onnx_train {

// One byte for the query; numbers and lengths as the machine has them, in 8 bytes.
struct StoreProtocol {
  enum Query : uint8_t { kValidate = 0, kSet = 1, kGet = 3, kAdd = 4, kCheck = 5 };
  static constexpr uint32_t kMagic = 0x3C85F7CE;       // follows kValidate
  static constexpr uint8_t kReady = 0, kNotReady = 1;  // what kCheck is answered
  static constexpr uint64_t kLongest = 1 << 20;        // of a key or a value, in bytes
};

class StoreClient {
 public:
  StoreClient(const std::string& host, int port, Deadline deadline);
  void set(const std::string& key, const std::string& value);
  // Of a key that has been set.
  std::string get(const std::string& key);
  // Adds to the number of a key, at first 0, and returns the sum.
  int64_t add(const std::string& key, int64_t number);
  // Whether all of them have been set.
  bool has(const std::vector<std::string>& keys);
  // This machine's address, as the store's machine sees it.
  std::string own_address() const { return socket_.address(); }

 private:
  template <typename T>
  T receive();

  Socket socket_;
  Deadline deadline_;
};

}  // namespace onnx_train
