// How the ranks of a training find each other. Any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/distribution/ranks.h"

namespace onnx_train {

// A connection to each other rank, by its number; none for this one. Rank 0 listens where `place` says, and tells the
// others where each listens. `on_wait` is told once for whom this rank waits, if that is long. Throws Error that names
// who is missing at the deadline.
std::vector<Socket> connect_peers(const RankPlace& place, Deadline deadline,
                                  std::function<void(const std::string&)> on_wait);

}  // namespace onnx_train
