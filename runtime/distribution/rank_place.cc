#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <iterator>

#include "kernels/host.h"
#include "onnx_passes/ir/error.h"
#include "runtime/distribution/ranks.h"
#include "runtime/support/text_hash.h"

namespace onnx_train {
namespace {

std::string text_of(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

// A number of the environment; `otherwise` where it has none.
int number_of(const char* name, int otherwise, int least, int most) {
  const std::string text = text_of(name);
  if (text.empty()) return otherwise;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most)
    fail_as(ErrorCode::kUsage, "the environment has ", name, "=", text, "; it must be a number from ", least, " to ",
            most);
  return number;
}

constexpr int kMostRanks = 1 << 16;

struct Launcher {
  const char* name;
  const char *rank, *size, *local_rank, *local_size;
};

// The first whose rank and size are set.
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

// The first of "gpu[03-07,12],login2": "gpu03".
std::string first_host(const std::string& list) {
  const size_t open = list.find_first_of("[,");
  if (open == std::string::npos || list[open] == ',') return list.substr(0, open);
  const size_t end = list.find_first_of("-,]", open);
  return end == std::string::npos ? list : list.substr(0, open) + list.substr(open + 1, end - open - 1);
}

// A port that all processes of one job choose, and others hardly.
int port_of_job() {
  std::string job;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"})
    job += text_of(name) + " ";
  return 20000 + static_cast<int>(text_hash(job) % 12000);
}

}  // namespace

std::optional<RankPlace> rank_place_of_environment() {
  for (const Launcher& launcher : kLaunchers) {
    if (text_of(launcher.rank).empty() || text_of(launcher.size).empty()) continue;
    RankPlace place;
    place.launcher = launcher.name;
    place.size = number_of(launcher.size, 1, 1, kMostRanks);
    place.rank = number_of(launcher.rank, 0, 0, place.size - 1);
    if (place.size == 1) return std::nullopt;
    place.local_rank = number_of(launcher.local_rank, 0, 0, kMostRanks);
    place.local_size = number_of(launcher.local_size, 1, 1, kMostRanks);
    const std::string nodes = text_of("SLURM_STEP_NODELIST"), address = text_of("MASTER_ADDR");
    if (!address.empty()) {
      place.address = address;
    } else if (launcher.name == std::string("srun") && !nodes.empty()) {
      place.address = first_host(nodes);
    } else if (place.local_size != place.size) {
      place.address = "";
    }
    place.port = number_of("MASTER_PORT", port_of_job(), 1, 65535);
    if (const std::string name = text_of(kTransportVariable); !name.empty())
      place.transport = transport_of(name, kTransportVariable);
    place.has_store = text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
    place.run = concat(text_of("TORCHELASTIC_RUN_ID"), "/", number_of("TORCHELASTIC_RESTART_COUNT", 0, 0, 1 << 30));
    return place;
  }
  return std::nullopt;
}

int threads_of(const RankPlace& place) { return std::max(1, default_threads() / place.local_size); }

}  // namespace onnx_train
