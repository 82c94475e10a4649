// How ranks find each other before Gloo connects them: each says in a store where it is, and waits for the others. The
// caller owns the values; one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/distribution/ranks.h"
#include "runtime/distribution/store.h"
#include "runtime/distribution/store_server.h"

namespace onnx_train {

struct FoundRanks {
  std::unique_ptr<StoreServer> server;  // rank 0's, where the launcher keeps no store
  std::unique_ptr<StoreClient> store;
  std::string prefix;              // of the run's keys
  std::vector<std::string> hosts;  // of all ranks; this rank's as the others reach it
};

// Waits until all ranks have come. `on_wait` is told once for whom this rank waits, if that is long. Throws Error that
// names who is missing at the deadline, and for two processes of one number.
FoundRanks find_ranks(const RankPlace& place, Deadline deadline,
                      const std::function<void(const std::string&)>& on_wait);

}  // namespace onnx_train
