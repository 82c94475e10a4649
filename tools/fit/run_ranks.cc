#include "tools/fit/run_ranks.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>

#include "kernels/host.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/support/fingerprint.h"
#include "runtime/support/text_hash.h"
#include "tools/report/output.h"

namespace onnx_train {
namespace {

constexpr const char* kStartedHere = "ONNX_TRAIN_DEVICES";  // in the environment of the processes of --devices

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) parts.push_back(name);
  return parts;
}

// All on the CPU, or each on a GPU of its own.
void check_devices(const std::vector<std::string>& devices) {
  std::set<std::string> gpus;
  for (const std::string& device : devices) {
    const bool is_gpu = device.starts_with("cuda");
    if (!is_gpu && device != "cpu")
      throw UsageError(concat("--devices: ranks train on the CPU and on CUDA, not on '", device,
                              "'; give cpu,cpu or cuda:0,cuda:1"));
    if (is_gpu != devices[0].starts_with("cuda"))
      throw UsageError("--devices: all ranks train on the CPU, or all on GPUs; give cpu,cpu or cuda:0,cuda:1");
    if (is_gpu && !gpus.insert(device == "cuda" ? "cuda:0" : device).second)
      throw UsageError(concat("--devices: '", device, "' is given twice; each rank takes a GPU of its own"));
  }
}

}  // namespace

RunRanks::RunRanks(FitArguments* a) : place_(rank_place_of_environment()) {
  const std::vector<std::string> devices = split(a->devices);
  check_devices(devices);
  const bool started_here = std::getenv(kStartedHere) != nullptr;
  if (place_ && !devices.empty() && !started_here) {
    throw UsageError(concat("--devices starts processes, and ", place_->launcher, " has started some: leave out one"));
  }
  if (!place_ && a->transport == "mpi")
    throw UsageError("--transport mpi is for several processes that mpirun starts: mpirun -np 2 onnx-train fit ...");
  if (a->elastic && (place_ ? !started_here : devices.size() < 2))
    throw UsageError(
        "--elastic is for the processes of --devices; a launcher starts its own again: torchrun --max-restarts");
  if (a->elastic && (a->session.pipeline > 1 || a->session.tensor_parallel > 1 || a->session.sync_batch_norm))
    throw UsageError(concat("--elastic: with ",
                            a->session.pipeline > 1          ? "--pipeline"
                            : a->session.tensor_parallel > 1 ? "--tensor-parallel"
                                                             : "--sync-batch-norm",
                            " a run needs its number of processes; leave out one of them"));
  const int64_t ranks = place_ ? place_->size : std::max<int64_t>(std::ssize(devices), 1);
  check_ranks(ranks, topology_of(a->session));
  if (!place_ && devices.size() < 2) {
    if (!devices.empty() && a->given->count("device") == 0) a->session.device = devices[0];
    return;
  }
  // A rank whose loss becomes infinite in the range test leaves it, where the others wait for it.
  if (a->schedule.find_rate) throw UsageError("--lr auto is for one process; run it on one, and give its result");
  const std::string& device = a->session.device;
  if (!devices.empty() && a->given->count("device") > 0)
    throw UsageError("--devices names the device of each process; leave out --device");
  if (device != "cpu" && !device.starts_with("cuda"))
    throw UsageError(concat("ranks train on the CPU and on CUDA, not on ", device, "; leave out --device"));
  if (!place_) {
    devices_ = devices;
    start_processes(devices);
  }
  if (!devices.empty()) place_->transport = Transport::kGloo;
  if (a->given->count("transport") > 0) place_->transport = transport_of(a->transport, "--transport");
  if (started_here) place_->launcher = "--devices";
  // A launcher's processes take the GPUs of a machine in order.
  if (!devices.empty()) a->session.device = devices.at(static_cast<size_t>(place_->rank));
  if (devices.empty() && device == "cuda") a->session.device = concat("cuda:", place_->local_rank);
  if (!leads()) speak_as_rank(place_->rank);
  // Who waits for a process that is gone would wait long; once connected it is told.
  if (started_here) platform::end_with_parent(true);
  try {
    collectives_ = connect_ranks(*place_, std::chrono::steady_clock::now() + kPatienceOfRanks,
                                 [](const std::string& text) { print_error(concat("onnx-train: note: ", text)); });
  } catch (const Error&) {
    for (const platform::Child child : started_) platform::terminate(child);
    join(1);
    throw;
  }
  if (started_here) platform::end_with_parent(false);
}

RunRanks::~RunRanks() { join(0); }

// Each runs this command again, with a place of its own.
void RunRanks::start_processes(const std::vector<std::string>& devices) {
  const int size = static_cast<int>(devices.size());
  place_ = RankPlace{.size = size, .local_size = size, .port = Socket::listen(0).port(), .launcher = "--devices"};
  const std::vector<std::string> command_line = platform::own_command_line();
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<std::string> variables = {
        concat(kStartedHere, "=1"),          concat("RANK=", rank),
        concat("WORLD_SIZE=", size),         concat("LOCAL_RANK=", rank),
        concat("LOCAL_WORLD_SIZE=", size),   concat("MASTER_ADDR=", place_->address),
        concat("MASTER_PORT=", place_->port)};
    const platform::Child child = platform::start_rank(command_line, variables);
    if (child < 0) fail("cannot start a process for rank ", rank, ": ", std::strerror(errno));
    started_.push_back(child);
  }
}

void RunRanks::end() const {
  if (collectives_) collectives_->end();
}

int RunRanks::join(int status) {
  collectives_.reset();  // the others wait for the last word of this one, and this one for their end
  for (const platform::Child child : std::exchange(started_, {})) {
    const platform::ProcessEnd end = platform::wait_for(child);
    if (status == 0) status = end.signal != 0 ? 1 : end.status;
  }
  return status;
}

void RunRanks::go_on_without_killed(const FitArguments& a, const std::string& reason) {
  if (devices_.empty()) return;  // this is one of the processes that another has started
  std::vector<std::string> left = {devices_[0]};
  const std::vector<platform::Child> started = std::exchange(started_, {});
  for (size_t i = 0; i < started.size(); ++i) {
    if (platform::wait_for(started[i]).signal == 0) left.push_back(devices_[i + 1]);
  }
  if (left.size() == devices_.size()) return;
  const bool resumes = path_exists(a.last_checkpoint());
  std::vector<std::string> arguments;
  for (const std::string& argument : platform::own_command_line()) {
    const bool is_value = !arguments.empty() && arguments.back() == "--devices";
    if (is_value) arguments.pop_back();
    if (!is_value && !argument.starts_with("--devices=") && argument != "--resume" && argument != "--overwrite")
      arguments.push_back(argument);
  }
  std::string devices;
  for (const std::string& device : left) devices += (devices.empty() ? "" : ",") + device;
  for (const std::string& more : {std::string("--devices"), devices, std::string(resumes ? "--resume" : "--overwrite")})
    arguments.push_back(more);
  if (a.given->count("accumulate") == 0) {
    arguments.push_back("--accumulate");
    arguments.push_back(std::to_string(a.trainer.accumulate));
  }
  if (left.size() == 1) std::erase(arguments, "--elastic");  // nothing is left to shrink
  print_error(concat("onnx-train: note: ", reason, "; the run goes on ", resumes ? "from its last checkpoint" : "anew",
                     " with ", left.size(), left.size() == 1 ? " process" : " processes"));
  platform::run_again(arguments);
  fail("cannot run the command again: ", std::strerror(errno));
}

int RunRanks::threads() const { return threads_of(place_.value_or(RankPlace{})); }

void RunRanks::leave(const std::string& reason) noexcept {
  if (collectives_) collectives_->give_up(reason);
  collectives_.reset();  // a rank that still sends to this one does not wait for it
}

}  // namespace onnx_train
