// Gloo's connections between all ranks. The caller owns the object.
#pragma once

#include <gloo/context.h>

#include <memory>

#include "runtime/distribution/gloo/rendezvous.h"

namespace onnx_train {

// Connects this rank to all others that have met. The environment variable GLOO_SOCKET_IFNAME names the network
// interface, as it does for PyTorch. Throws Error at the deadline.
std::shared_ptr<gloo::Context> connect_mesh(const RankPlace& place, const FoundRanks& met, Deadline deadline);

// Gloo writes to connections whose other side may be gone, for which the system would end the process. While this
// object lives, its thread, and threads that it starts, do without.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal();
  ~WithoutPipeSignal();

 private:
  bool was_pending_ = false, was_blocked_ = false;
};

}  // namespace onnx_train
