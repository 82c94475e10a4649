// An entry point compiled for one device and one set of concrete shapes: the lowered graph, a prepared kernel for each
// node, and a location for each value. Immutable except for profiling; it holds no memory of the device. An Executable
// (executable.h) runs it. A session owns it; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/lowering/lowering.h"
#include "kernels/lowering/memory/recompute.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/plan/placement.h"

namespace onnx_train {

struct PlanOptions {
  size_t memory = 0;         // bytes that the arena may have; 0: as many as the machine has. See fitting_plan.h
  LoweringOptions lowering;  // off: only what is needed to run at all (the reference that lowering is compared with)
  PipelineOptions pipeline;
  bool tf32 = false;          // NodeSpec::tf32
  bool check_memory = false;  // runs each node under a guard: see memory_guard.h
};

// Thrown for what has no plan, whatever the sizes of its inputs: an operator without a kernel, a size that depends on
// data.
class NoPlan : public Error {
 public:
  using Error::Error;
};

class Plan {
 public:
  // `entry` is a flattened entry point (passes.h): states are inputs, and their new values are outputs with the role
  // "next". `shapes` has the concrete shapes of all other inputs; inputs with a default that it omits become constants
  // of the plan. Throws Error that lists every node that no kernel supports.
  Plan(Model entry, const std::vector<std::string>& states, const std::map<std::string, Shape>& shapes, Device& device,
       const PlanOptions& options = {});
  Plan(const Plan&) = delete;

  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }
  const std::vector<StatePort>& states() const { return states_; }
  const Model& model() const { return model_; }  // the lowered graph
  const std::vector<PlanStep>& steps() const { return steps_; }
  const std::vector<PassTiming>& passes() const { return passes_; }  // of the lowering, in order

  size_t arena_bytes() const { return memory_.bytes; }
  size_t workspace_bytes() const { return workspace_bytes_; }  // of arena_bytes, the kernels' scratch memory
  size_t constant_bytes() const { return constant_bytes_; }    // constants that an executable keeps on the device
  const MemoryPlan& memory() const { return memory_; }
  const Recomputation& recomputation() const { return recomputation_; }
  const std::vector<LiveRange>& live_ranges() const { return placement_.ranges; }  // in numbers of `steps()`
  const std::vector<std::string>& range_names() const { return placement_.range_names; }

  const std::vector<Prepared>& prepared() const { return prepared_; }  // in the order of `steps()`
  const Placement& placement() const { return placement_; }            // its tables by step are those of `steps()`
  bool guarded() const { return guarded_; }
  bool replays() const { return replays_; }  // a device that can records a run and replays it
  int threads() const { return threads_; }   // the number of threads that the kernels were prepared for

  // When turned on, clears earlier measurements and measures each node of the following runs (Stream::time).
  void set_profiling(bool on);
  bool profiling() const { return profiling_; }
  int profiled_runs() const { return profiled_runs_; }
  // Adds the measurements of one profiled run: when each step ended, in milliseconds from the start of the first.
  void add_profile(const std::vector<double>& ends);

 private:
  void lower(const PlanOptions& options, const std::map<std::string, Shape>& shapes);
  void select_kernels(bool tf32);
  void place(const PlanOptions& options);

  Model model_;
  Device& device_;
  std::vector<Port> inputs_, outputs_;
  std::vector<StatePort> states_;
  std::vector<std::string> state_names_;
  std::vector<PlanStep> steps_;
  std::vector<PassTiming> passes_;
  std::vector<Prepared> prepared_;
  Placement placement_;
  MemoryPlan memory_;
  Recomputation recomputation_;
  size_t workspace_bytes_ = 0, constant_bytes_ = 0;
  bool profiling_ = false, guarded_ = false, replays_ = true;
  int profiled_runs_ = 0;
  const int threads_ = num_threads();
};

}  // namespace onnx_train
