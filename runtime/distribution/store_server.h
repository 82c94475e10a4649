// The key-value store of rank 0, where no launcher keeps one: a thread that answers the other ranks' StoreClient. What
// connects and speaks another protocol is sent away, and what says nothing is left alone. The caller owns the object;
// any thread.
#pragma once

#include <thread>

#include "runtime/distribution/socket.h"

namespace onnx_train {

class StoreServer {
 public:
  // Port 0: any that is free. Throws Error where it cannot listen.
  explicit StoreServer(int port);
  ~StoreServer();

  int port() const { return listener_.port(); }

 private:
  void run();

  Socket listener_;
  Socket wakes_, woken_;  // a pair: the first one ends the thread
  std::thread thread_;
};

}  // namespace onnx_train
