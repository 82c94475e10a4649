// Assigns memory to each value of a plan: views share another value's buffer, kernels write in place if possible,
// results go directly to the caller's output, and all other values get a lifetime in the arena. The next value of a
// state overwrites the state if the old value is not read afterwards; otherwise it is copied from the arena after all
// nodes. A pure function; any thread. The plan owns the result.
#pragma once

#include "kernels/registry.h"
#include "onnx_passes/ir/tables.h"
#include "runtime/plan/memory_plan.h"

namespace onnx_train {

struct LoweringOptions;

// An input or output tensor of the plan.
struct Port {
  std::string name;
  DType dtype;
  Shape shape;
  size_t bytes;
};

// A state tensor of the plan.
struct StatePort : Port {
  bool written = false;   // whether an update writes it
  bool in_place = false;  // whether the node that computes its update overwrites it; else it is copied after all nodes
};

// A step of the plan: a node, its kernel, and its time if profiling is on.
struct PlanStep {
  const Node* node;
  const Kernel* kernel;
  double milliseconds = 0;       // summed over profiled runs
  double last_start = 0;         // start in the last profiled run, in milliseconds after the start of the run
  double last_milliseconds = 0;  // duration in the last profiled run
};

inline constexpr size_t kNoBuffer = static_cast<size_t>(-1);

struct Buffer {
  enum Kind { kArena, kInput, kOutput, kState, kConstant };
  Kind kind;
  size_t index;  // arena: number of the live range; input, output, state: number of the port; constant: 0
  size_t bytes;
  const Value* constant = nullptr;
};

// The location of a value: a byte offset in a buffer.
struct Location {
  size_t buffer;
  size_t offset;
};

// A copy after the last node of an output or a state whose value is in another buffer.
struct Copy {
  size_t from, to;  // buffers
  size_t bytes;
};

struct Placement {
  std::vector<Buffer> buffers;
  ValueTable<Location> location_of;
  std::vector<size_t> workspace_of;  // by step; kNoBuffer if the kernel needs none
  std::vector<bool> skipped;         // by step: whether its outputs are already in place, so that it need not run
  std::vector<Copy> copies;
  std::vector<LiveRange> ranges;
  std::vector<std::string> range_names;
};

// Places all values, and sets `in_place` of the states. `piece_alignment` is the device's. `options` may disable
// kViews, kWriteInPlace and kUpdateInPlace. Deterministic.
Placement place_values(const Graph& graph, const std::vector<PlanStep>& steps, const std::vector<Prepared>& prepared,
                       std::vector<StatePort>& states, size_t piece_alignment, const LoweringOptions& options);

}  // namespace onnx_train
