// An entry point compiled for one device and concrete shapes: the lowered graph, a prepared kernel for each node, and a
// location for each value. Immutable except for profiling; holds no device memory. An Executable (executable.h) runs
// it. A session owns it; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/lowering/memory/recompute.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/plan/placement.h"

namespace onnx_train {

struct PlanOptions {
  size_t memory = 0;         // limit of the arena in bytes; 0: the machine's memory. See fitting_plan.h
  LoweringOptions lowering;  // off: only the required passes (the reference for tests of lowering)
  PipelineOptions pipeline;
  Arithmetic arithmetic;
  Collectives* collectives = nullptr;  // NodeSpec::collectives
  Choices* choices = nullptr;          // NodeSpec::choices
  bool check_memory = false;           // whether each node runs under a guard, see memory_guard.h
  // Whether a run looks for the node at which a loss or gradients that are not finite begin (anomaly.h). Without
  // lowering nodes and values have the names that they have in the model.
  bool detect_anomaly = false;
  // Contents of the values that decide the shapes of outputs, as earlier plans for the same inputs have found them
  // (Plan::wanted_sizes); without it a plan is refused for an output whose shape depends on data.
  std::optional<std::vector<Tensor>> sizes;
};

// Thrown if there is no plan for any input sizes: an operator has no kernel, or a size depends on data.
class NoPlan : public Error {
 public:
  using Error::Error;
};

class Plan {
 public:
  // `entry` is a flattened entry point (passes.h): states are inputs, and their new values are outputs with the role
  // "next". `shapes` has the concrete shapes of all other inputs; omitted inputs with a default become constants of the
  // plan. Throws Error that lists all nodes without a kernel.
  Plan(Model entry, const std::vector<std::string>& states, const std::map<std::string, Shape>& shapes, Device& device,
       const PlanOptions& options = {});
  Plan(const Plan&) = delete;

  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }
  const std::vector<StatePort>& states() const { return states_; }
  const Model& model() const { return model_; }  // the lowered graph
  const std::vector<PlanStep>& steps() const { return steps_; }
  const std::vector<PassTiming>& passes() const { return passes_; }  // lowering passes, in order

  size_t arena_bytes() const { return memory_.bytes; }
  size_t workspace_bytes() const { return workspace_bytes_; }  // the part of the arena for the kernels' scratch memory
  size_t constant_bytes() const { return constant_bytes_; }    // constants on the device
  // What the products and convolutions of a run compute (kernels/cost.h), by the operands' element type.
  const std::map<DType, double>& operations() const { return operations_; }
  const MemoryPlan& memory() const { return memory_; }
  const Recomputation& recomputation() const { return recomputation_; }
  // If it is above 0, outputs whose shapes depend on data are left out, and so many of the last outputs are further
  // contents for PlanOptions::sizes.
  size_t wanted_sizes() const { return output_sizes_.wanted; }
  const std::vector<Tensor>& found_sizes() const { return output_sizes_.found; }   // those given
  const std::vector<LiveRange>& live_ranges() const { return placement_.ranges; }  // in step numbers
  const std::vector<std::string>& range_names() const { return placement_.range_names; }

  const std::vector<Prepared>& prepared() const { return prepared_; }  // by step
  const Placement& placement() const { return placement_; }            // its tables by step match `steps()`
  bool guarded() const { return guarded_; }
  bool detects_anomaly() const { return detects_anomaly_; }
  bool scales_loss() const;                  // whether updates with gradients that are not finite are skipped
  bool replays() const { return replays_; }  // whether a device that supports it replays a recorded run
  bool waits() const { return waits_; }      // whether a kernel waits for the device (subplans.h)
  int threads() const { return threads_; }   // number of threads that the kernels were prepared for

  // When turned on, clears measurements and measures each node of later runs (Stream::time).
  void set_profiling(bool on);
  bool profiling() const { return profiling_; }
  int profiled_runs() const { return profiled_runs_; }
  // Adds the measurements of one profiled run: the end of each step, in milliseconds after the start of the first.
  void add_profile(const std::vector<double>& ends);

 private:
  void lower(const PlanOptions& options, const std::map<std::string, Shape>& shapes);
  void select_kernels(const PlanOptions& options);
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
  OutputSizes output_sizes_;
  size_t workspace_bytes_ = 0, constant_bytes_ = 0;
  std::map<DType, double> operations_;
  bool profiling_ = false, guarded_ = false, detects_anomaly_ = false, replays_ = true, waits_ = false;
  int profiled_runs_ = 0;
  const int threads_ = num_threads();
};

}  // namespace onnx_train
