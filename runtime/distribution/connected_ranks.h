// Collectives over a connection between each two ranks. The caller owns the object; one thread, but for what
// collectives.h says. Nothing that another rank sends is trusted: memory is asked for as bytes come, and what does not
// fit is an Error that names the rank.
#pragma once

#include <memory>
#include <vector>

#include "kernels/collectives.h"
#include "runtime/distribution/socket.h"

namespace onnx_train {

// `peers` has a connection to each other rank, by its number; none for this one.
std::unique_ptr<Collectives> connected_ranks(int rank, std::vector<Socket> peers);

}  // namespace onnx_train
