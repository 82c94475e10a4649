// libonnx_train_mpi.so, which MPI's launcher makes useful: what carries the ranks' bytes over the MPI that it was built
// with. It is loaded as a device's module is, and never where it is not asked for.
#include <cstdlib>

#include "runtime/distribution/mpi/mpi_ranks.h"

namespace onnx_train {
namespace {

// Without its launcher, MPI makes a world of each process alone, or ends it.
bool is_started_by_mpi() {
#ifdef OPEN_MPI
  return std::getenv("OMPI_COMM_WORLD_RANK") || std::getenv("PMIX_RANK");
#else  // MPICH, and what comes from it
  return std::getenv("PMI_RANK");
#endif
}

}  // namespace
}  // namespace onnx_train

using namespace onnx_train;

extern "C" __attribute__((visibility("default"))) Collectives* onnx_train_connect_over_mpi(
    const RankPlace& place, Deadline deadline, const std::function<void(const std::string&)>& on_wait) {
  return is_started_by_mpi() ? new MpiRanks(MpiLink::connect(place, deadline, on_wait)) : nullptr;
}
