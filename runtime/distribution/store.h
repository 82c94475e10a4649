// A client of the key-value store that torchrun's agent keeps for its workers (c10d's TCPStore: SET, GET, WAIT over one
// connection). Blocks; one thread. Throws Error that names the address.
#pragma once

#include <chrono>
#include <string>

#include "runtime/distribution/socket.h"

namespace onnx_train {

class StoreClient {
 public:
  StoreClient(const std::string& host, int port, Deadline deadline);
  void set(const std::string& key, const std::string& value);
  // Waits until the key has been set.
  std::string get(const std::string& key);

 private:
  Socket socket_;
  Deadline deadline_;
};

}  // namespace onnx_train
