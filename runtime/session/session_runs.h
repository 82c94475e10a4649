// What a session keeps of each plan and of each run. For the sources of Session alone.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/host.h"
#include "runtime/session/session.h"

namespace onnx_train {

// A run and the memory of its outputs. Its plan owns it, and is not evicted while the run is started.
struct Session::Run {
  CachedPlan* plan;
  TensorMap outputs;  // by name; the tensors of `ports`
  std::vector<Tensor> ports;
  Fault fault;
  int64_t mark = 0;
  bool is_started = false;
};

struct Session::CachedPlan {
  EntryName entry = Entry::kOther;
  GradientSums sums = GradientSums::kEachRound;
  std::unique_ptr<Executable> executable;
  std::vector<const Tensor*> inputs;
  std::vector<std::unique_ptr<Run>> runs;  // as many as have been started at the same time

  Plan& plan() const { return executable->plan(); }
  bool has_started() const {
    return std::any_of(runs.begin(), runs.end(), [](const auto& run) { return run->is_started; });
  }
  Run& free_run() {
    for (const auto& run : runs) {
      if (!run->is_started) return *run;
    }
    auto run = std::make_unique<Run>();
    run->plan = this;
    for (const Port& port : plan().outputs()) {
      run->ports.emplace_back(port.dtype, port.shape);
      run->outputs.emplace(port.name, run->ports.back());
    }
    runs.push_back(std::move(run));
    return *runs.back();
  }

  uint64_t last_used = 0;
};

// Sets the session's number of threads while the object lives.
class SessionThreads {
 public:
  explicit SessionThreads(int threads) : before_(num_threads()) {
    set_num_threads(threads > 0 ? threads : default_threads());
  }
  ~SessionThreads() { set_num_threads(before_); }
  SessionThreads(const SessionThreads&) = delete;

 private:
  int before_;
};

}  // namespace onnx_train
