// An entry point compiled for one device and one set of concrete shapes: the lowered graph, a prepared kernel for each
// node, and an offset in the arena for each value. Made once; running it allocates nothing.
//
// A plan owns no memory but small tables. Whoever runs it (Session) gives it an arena of `arena_bytes()` and binds the
// buffers of inputs, state and outputs. One thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/device.h"
#include "kernels/lowering/lowering.h"
#include "kernels/lowering/recompute.h"
#include "onnx_passes/ir/model.h"
#include "runtime/memory_plan.h"

namespace onnx_train {

struct PlanOptions {
  size_t memory = 0;         // bytes that the arena may have; 0: as many as the machine has. See fitting_plan.h
  LoweringOptions lowering;  // off: only what is needed to run at all (the reference that lowering is compared with)
  PipelineOptions pipeline;
  bool check_memory = false;  // runs each node under a guard: see memory_guard.h
};

// A tensor that crosses the plan's border.
struct Port {
  std::string name;
  DType dtype;
  Shape shape;
  size_t bytes;
};

// A state tensor of the plan.
struct StatePort : Port {
  bool written = false;   // some binding updates it
  bool in_place = false;  // by the node that computes the update, which is the last to read it; else after all nodes
};

// One line of the plan: a node, its kernel, and the time it took when profiling is on.
struct PlanStep {
  const Node* node;
  const Kernel* kernel;
  double milliseconds = 0;       // summed over profiled runs
  double last_start = 0;         // in the last profiled run: milliseconds from its begin to the node's,
  double last_milliseconds = 0;  // and how long the node took
};

class Plan {
 public:
  // `entry` is a flattened entry point (passes.h): states are inputs of their names, their new values the outputs with
  // the role "next". `shapes` gives
  // inputs that are no states their concrete shapes; those with a default that it leaves out are constants of the plan,
  // and no inputs of it. Throws Error that lists every node no kernel supports.
  Plan(Model entry, const std::vector<std::string>& states, const std::map<std::string, Shape>& shapes, Device& device,
       const PlanOptions& options = {});
  ~Plan();
  Plan(const Plan&) = delete;

  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }
  const std::vector<StatePort>& states() const { return states_; }
  const Model& model() const { return model_; }  // the lowered graph
  const std::vector<PlanStep>& steps() const { return steps_; }

  size_t arena_bytes() const { return memory_.bytes; }
  size_t workspace_bytes() const { return workspace_bytes_; }  // of arena_bytes, the kernels' scratch memory
  size_t constant_bytes() const { return constant_bytes_; }    // constants that the plan keeps on the device
  const MemoryPlan& memory() const { return memory_; }
  const Recomputation& recomputation() const { return recomputation_; }
  const std::vector<LiveRange>& live_ranges() const { return ranges_; }  // in numbers of `steps()`
  const std::vector<std::string>& range_names() const { return range_names_; }

  // Memory that the next runs use. All must be bound before `run`; binding again only changes pointers.
  void bind_arena(void* arena);
  void bind_input(size_t i, const void* data);
  void bind_output(size_t i, void* data);
  void bind_state(size_t i, void* data);

  // Runs all nodes in order, then copies the states that are not updated in place. Throws Error from a kernel (an index
  // out of range): all states are then as they were, for in-place updates come after every node that can fail.
  void run();
  // On: forgets what was measured, and measures each node of the runs that follow, waiting for the device after each.
  void set_profiling(bool on);
  int profiled_runs() const { return profiled_runs_; }

 private:
  struct Slots;  // pointer tables, and where each buffer's pointer is used
  void lower(const PlanOptions& options, const std::map<std::string, Shape>& shapes);
  void select_kernels();
  void place(const PlanOptions& options);
  void run_profiled();
  void run_guarded();

  Model model_;
  Device& device_;
  std::vector<Port> inputs_, outputs_;
  std::vector<StatePort> states_;
  std::vector<std::string> state_names_;
  std::vector<PlanStep> steps_;
  std::vector<Prepared> prepared_;
  std::vector<LiveRange> ranges_;
  std::vector<std::string> range_names_;
  MemoryPlan memory_;
  Recomputation recomputation_;
  size_t workspace_bytes_ = 0, constant_bytes_ = 0;
  std::unique_ptr<Slots> slots_;
  bool profiling_ = false, guarded_ = false;
  char* arena_ = nullptr;
  int profiled_runs_ = 0;
  const int threads_ = num_threads();  // what the kernels were prepared for
};

}  // namespace onnx_train
