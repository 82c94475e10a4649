// Which transport connects the ranks.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <vector>

#include "kernels/modules.h"
#include "onnx_passes/ir/error.h"
#include "runtime/distribution/ranks.h"

namespace onnx_train {
namespace {

// A process that something else has started may have inherited what an mpirun has said to its parent.
bool may_speak_mpi(const RankPlace& place) { return place.launcher == "mpirun" || place.launcher == "srun"; }

// Throws Error where there is no module, or it does not load.
ConnectOver* load(const char* module, const char* function, const char* needs) {
  const std::vector<std::string> names = module_names();
  const std::string what = concat("the transport '", module, "'");
  if (std::find(names.begin(), names.end(), module) == names.end()) {
    fail_as(ErrorCode::kUsage, what, " is not in this installation: build it where CMake finds ", needs,
            " (docs/distributed.md), or take another one");
  }
  return reinterpret_cast<ConnectOver*>(module_function(module, function, what));
}

std::unique_ptr<Collectives> connect_over_gloo(const RankPlace& place, Deadline deadline,
                                               const std::function<void(const std::string&)>& on_wait) {
  ConnectOver* const connect = load(kGlooModule, kConnectOverGloo, "Gloo");
  return std::unique_ptr<Collectives>(connect(place, deadline, on_wait));
}

std::unique_ptr<Collectives> connect_by_choice(const RankPlace& place, Deadline deadline,
                                               const std::function<void(const std::string&)>& on_wait) {
  ConnectOver* connect = nullptr;
  if (may_speak_mpi(place)) {
    try {
      connect = load(kMpiModule, kConnectOverMpi, "an MPI");
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
              " has started these: start them with mpirun, or take gloo");
    }
    fail_as(
        ErrorCode::kUsage, "the transport 'mpi' does not know the ", launcher,
        " that has started these processes: take the mpirun of the MPI with which this installation was built, srun "
        "--mpi=pmix, or gloo");
  }
  return connect_over_gloo(place, deadline, on_wait);
}

}  // namespace

Transport transport_of(const std::string& name, const std::string& given) {
  if (name == "tcp") return Transport::kGloo;  // what it was called before
  const auto found = std::find(std::begin(kTransports), std::end(kTransports), name);
  if (found == std::end(kTransports))
    fail_as(ErrorCode::kUsage, given, " is '", name, "'; it must be auto, gloo or mpi");
  return static_cast<Transport>(found - std::begin(kTransports));
}

std::unique_ptr<Collectives> connect_ranks(const RankPlace& place, Deadline deadline,
                                           std::function<void(const std::string&)> on_wait) {
  if (place.transport == Transport::kGloo) return connect_over_gloo(place, deadline, on_wait);
  return connect_by_choice(place, deadline, on_wait);
}

Collectives* ranks_of_environment() {
  static Collectives* const ranks = [] {
    const std::optional<RankPlace> place = rank_place_of_environment();
    return place ? connect_ranks(*place, std::chrono::steady_clock::now() + kPatienceOfRanks).release() : nullptr;
  }();
  return ranks;
}

}  // namespace onnx_train
