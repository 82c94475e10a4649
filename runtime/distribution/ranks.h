// The processes that train together: which of them this one is, as its launcher says, and the connections between them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/collectives.h"
#include "runtime/distribution/socket.h"

namespace onnx_train {

// The engine that carries the bytes that ranks exchange: a module (kernels/modules.h). kAuto: MPI where this process
// was started by the launcher of an MPI whose module is there and loads, else Gloo.
enum class Transport { kAuto, kGloo, kMpi };
inline constexpr const char* kTransports[] = {"auto", "gloo", "mpi"};  // in that order
inline constexpr const char* kTransportVariable = "ONNX_TRAIN_TRANSPORT";
// "tcp" is Gloo, too. Throws UsageError for what is none of these; `given` says where the name comes from.
Transport transport_of(const std::string& name, const std::string& given);

struct RankPlace {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this machine
  std::string address = "127.0.0.1";   // of rank 0; "" where it is on another machine, and nothing says on which
  int port = 0;                        // where rank 0 listens, or the launcher's store
  bool has_store = false;              // torchrun's agent keeps one there
  std::string run = "0";               // one more at each restart
  std::string launcher = "";           // what said so: "torchrun", "mpirun", "srun", "--devices"
  Transport transport = Transport::kAuto;
};

// What the environment says: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun, and
// what starts processes as it does); OMPI_COMM_WORLD_* (Open MPI's mpirun); PMI_RANK, PMI_SIZE (MPICH's);
// SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST (srun); ONNX_TRAIN_TRANSPORT. None where
// nothing or one process is said. Throws UsageError for numbers that are none, or do not fit.
std::optional<RankPlace> rank_place_of_environment();

// Connects each rank to each other one, and returns when all are connected. Throws Error that says which rank is
// missing at the deadline, and where, as far as the transport knows; tells `on_wait` so after five seconds. Throws
// UsageError where the transport is MPI, and MPI has not started this process.
std::unique_ptr<Collectives> connect_ranks(const RankPlace& place, Deadline deadline,
                                           std::function<void(const std::string&)> on_wait = {});

// What each module exports. kMpiModule's gives null where this process was not started by the launcher of its MPI.
using ConnectOver = Collectives*(const RankPlace& place, Deadline deadline,
                                 const std::function<void(const std::string&)>& on_wait);
inline constexpr const char *kConnectOverGloo = "onnx_train_connect_over_gloo",
                            *kConnectOverMpi = "onnx_train_connect_over_mpi";

// This process's share of the machine's threads: at least one.
int threads_of(const RankPlace& place);

// How long a rank waits for the others to connect.
inline constexpr std::chrono::minutes kPatienceOfRanks{5};

// The processes that the environment names, connected by the first call, which waits for them; null where it names one.
// They live as long as the program.
Collectives* ranks_of_environment();

}  // namespace onnx_train
