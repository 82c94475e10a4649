// Which transport connects the ranks.
#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/modules.h"
#include "onnx_passes/ir/error.h"
#include "runtime/distribution/ranks.h"

namespace onnx_train {
namespace {

// A process that something else has started may have inherited what an mpirun has said to its parent.
bool may_speak_mpi(const RankPlace& place) { return place.launcher == "mpirun" || place.launcher == "srun"; }

// Null where MPI has not started this process. Throws Error where there is no module, or it does not load.
ConnectOverMpi* load_mpi() {
  const std::vector<std::string> names = module_names();
  if (std::find(names.begin(), names.end(), kMpiModule) == names.end()) {
    fail_as(
        ErrorCode::kUsage,
        "the transport 'mpi' is not in this installation: build it where CMake finds an MPI (docs/distributed.md), or "
        "take tcp");
  }
  return reinterpret_cast<ConnectOverMpi*>(module_function(kMpiModule, kConnectOverMpi, "the transport 'mpi'"));
}

std::unique_ptr<Collectives> connect_by_choice(const RankPlace& place, Deadline deadline,
                                               const std::function<void(const std::string&)>& on_wait) {
  ConnectOverMpi* connect = nullptr;
  if (may_speak_mpi(place)) {
    try {
      connect = load_mpi();
    } catch (const Error&) {
      if (place.transport == Transport::kMpi) throw;  // otherwise this machine is one without MPI
    }
  }
  if (connect) {
    if (Collectives* const ranks = connect(place, deadline, on_wait)) return std::unique_ptr<Collectives>(ranks);
  }
  if (place.transport == Transport::kMpi) {
    const std::string launcher = place.launcher.empty() ? "something else" : place.launcher;
    if (!connect) {
      fail_as(ErrorCode::kUsage, "the transport 'mpi' is for processes that mpirun starts, and ", launcher,
              " has started these: start them with mpirun, or take tcp");
    }
    fail_as(
        ErrorCode::kUsage, "the transport 'mpi' does not know the ", launcher,
        " that has started these processes: take the mpirun of the MPI with which this installation was built, srun "
        "--mpi=pmix, or tcp");
  }
  return connect_over_tcp(place, deadline, on_wait);
}

}  // namespace

std::unique_ptr<Collectives> connect_ranks(const RankPlace& place, Deadline deadline,
                                           std::function<void(const std::string&)> on_wait) {
  if (place.transport != Transport::kTcp) return connect_by_choice(place, deadline, on_wait);
  return connect_over_tcp(place, deadline, std::move(on_wait));
}

Collectives* ranks_of_environment() {
  static Collectives* const ranks = [] {
    const std::optional<RankPlace> place = rank_place_of_environment();
    return place ? connect_ranks(*place, std::chrono::steady_clock::now() + kPatienceOfRanks).release() : nullptr;
  }();
  return ranks;
}

}  // namespace onnx_train
