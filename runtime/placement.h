// Which memory each value of a plan lives in: views lie in another value's buffer, kernels write in place where they
// can, results go straight to the caller's output, the rest gets a life time in the arena. A state's next value is
// written over the state where nothing reads the old one afterwards; else it waits in the arena and is copied when all
// nodes have run.
#pragma once

#include "kernels/registry.h"
#include "onnx_passes/ir/tables.h"
#include "runtime/memory_plan.h"

namespace onnx_train {

struct LoweringOptions;

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

inline constexpr size_t kNone = static_cast<size_t>(-1);

struct Buffer {
  enum Kind { kArena, kInput, kOutput, kState, kConstant };
  Kind kind;
  size_t index;  // arena: which live range; input, output, state: which port; constant: its offset
  size_t bytes;
  const Value* constant = nullptr;
};

// A value's place: bytes behind the begin of a buffer.
struct Location {
  size_t buffer;
  size_t offset;
};

// Done after the last node, in order: an output or a state whose value is in another buffer.
struct Copy {
  size_t from, to;  // buffers
  size_t bytes;
};

struct Placement {
  std::vector<Buffer> buffers;
  ValueTable<Location> location_of;
  std::vector<size_t> workspace_of;  // by step; kNone where a kernel needs none
  std::vector<bool> skipped;         // by step: its outputs lie where they should, nothing to run
  std::vector<Copy> copies;
  std::vector<LiveRange> ranges;
  std::vector<std::string> range_names;
};

// Sets `in_place` of the states. `options` may leave out kViews, kWriteInPlace and kUpdateInPlace. Deterministic.
Placement place_values(const Graph& graph, const std::vector<PlanStep>& steps, const std::vector<Prepared>& prepared,
                       std::vector<StatePort>& states, const LoweringOptions& options);

// The shape of an initializer's data.
Shape constant_shape(const Value& value);

}  // namespace onnx_train
