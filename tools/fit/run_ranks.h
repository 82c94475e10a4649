// The processes that a run trains on (runtime/distribution): those of a launcher, or that --devices starts. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "platform/process.h"
#include "runtime/distribution/ranks.h"
#include "runtime/session/session.h"
#include "runtime/training/trainer.h"
#include "tools/fit/fit_arguments.h"

namespace onnx_train {

class RunRanks {
 public:
  // Starts the processes of --devices, and connects to the others; does nothing where there is one process. Of ranks
  // above 0 nothing is printed but errors. Throws UsageError for options that ranks cannot share.
  explicit RunRanks(FitArguments* arguments);
  // Waits for the processes that it has started.
  ~RunRanks();
  RunRanks(const RunRanks&) = delete;

  bool leads() const { return !place_ || place_->rank == 0; }  // rank 0 writes the run's folder
  bool several() const { return place_.has_value(); }
  int threads() const;  // this process's share of the machine's
  int on_this_machine() const { return place_ ? place_->local_size : 1; }
  Collectives* collectives() const { return collectives_.get(); }

  // The others end, too.
  void leave(const std::string& reason) noexcept;
  // After `leave`: where a signal has ended processes that this one has started, runs the command again on the other
  // devices, from the last checkpoint on, and does not return.
  void go_on_without_killed(const FitArguments& arguments, const std::string& reason);
  // When this rank has succeeded: Collectives::end.
  void end() const;
  // The status of the run, for which this rank waits for the processes that it has started.
  int join(int status);

 private:
  void start_processes(const std::vector<std::string>& devices);

  std::optional<RankPlace> place_;
  std::unique_ptr<Collectives> collectives_;
  std::vector<std::string> devices_;  // of the processes that this one has started, and its own first
  std::vector<platform::Child> started_;
};

}  // namespace onnx_train
