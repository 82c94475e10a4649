#include "runtime/plan/subplans.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "kernels/lowering/memory/lifetimes.h"
#include "kernels/subgraph_calls.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/copy_graph.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/plan/executable.h"

namespace onnx_train {
namespace {

// A subgraph as an entry point. Its first `states` inputs are states, and its first outputs their next values.
Model entry_of(const Graph& subgraph, int states) {
  Model model;
  model.context->opsets = subgraph.context().opsets;
  model.context->functions = subgraph.context().functions;
  GraphCopy copy(model.graph.get());
  for (size_t i = 0; i < subgraph.inputs().size(); ++i) {
    const Value* v = subgraph.inputs()[i];
    copy.map(v, model.graph->add_input(concat("input/", i), v->type()));
  }
  copy.contents(subgraph);
  for (size_t i = 0; i < subgraph.outputs().size(); ++i) {
    Value* result = copy.of(subgraph.outputs()[i]);
    if (i < static_cast<size_t>(states)) {
      result->set_type(subgraph.inputs()[i]->type());
      result->set_role({roles::kNext, concat("input/", i)});
    }
    model.graph->add_output(result);
  }
  return model;
}

class Subplan {
 public:
  Subplan(const Graph& subgraph, int states, Device& device, const PlanOptions& options)
      : stream_(device.make_stream()) {
    std::vector<std::string> names;
    std::map<std::string, Shape> shapes;
    for (size_t i = 0; i < subgraph.inputs().size(); ++i) {
      const std::string name = concat("input/", i);
      if (i < static_cast<size_t>(states)) {
        names.push_back(name);
      } else {
        shapes[name] = subgraph.inputs()[i]->type().shape();
      }
    }
    PlanOptions inner = options;
    inner.memory = inner.lowering.memory = 0;
    inner.lowering.recomputation = nullptr;
    inner.pipeline = {};
    executable_.emplace(std::make_unique<Plan>(entry_of(subgraph, states), names, shapes, device, inner), device,
                        *stream_, &fault_);
    // The plan has the ports that it needs, by name.
    const auto number = [](const std::string& name) {
      return static_cast<size_t>(std::stoll(name.substr(name.find('/') + 1)));
    };
    for (const Port& port : plan().inputs()) inputs_.push_back(number(port.name));
    for (const StatePort& port : plan().states()) states_.push_back(number(port.name));
  }

  const Plan& plan() const { return executable_->plan(); }
  size_t nodes() const { return plan().steps().size(); }

  void bind_arena(void* arena) {
    if (arena == arena_) return;
    executable_->bind_arena(arena);
    arena_ = arena;
  }
  // The addresses of all inputs of the subgraph, by their numbers; states are updated where they are.
  template <typename F>
  void bind(const F& address_of) {
    for (size_t i = 0; i < inputs_.size(); ++i) executable_->bind_input(i, address_of(inputs_[i]));
    for (size_t i = 0; i < states_.size(); ++i) executable_->bind_state(i, const_cast<void*>(address_of(states_[i])));
  }
  // Runs it; `outputs` are those that are no states. Returns whether there was no fault.
  bool run(const std::vector<void*>& outputs) {
    fault_ = {};
    for (size_t i = 0; i < outputs.size(); ++i) executable_->bind_output(i, outputs[i]);
    executable_->run_bound();
    return fault_.node == 0;
  }
  // What was wrong with the last run.
  std::string fault() const {
    try {
      executable_->refuse(fault_);
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  const std::unique_ptr<Stream> stream_;
  Fault fault_;
  std::optional<Executable> executable_;
  std::vector<size_t> inputs_, states_;  // numbers of the subgraph's inputs, by port
  void* arena_ = nullptr;
};

using SharedSubplan = std::shared_ptr<Subplan>;

SharedSubplan make_subplan(const Node& node, const char* attribute, int states, Device& device,
                           const PlanOptions& options) {
  try {
    return std::make_shared<Subplan>(*node.subgraph(attribute), states, device, options);
  } catch (const Error& error) {
    fail_as(error.code(), node.label(), ", ", attribute, ": ", error.what());
  }
}

// Where the outputs that the node leaves out are written: in scratch memory, which begins with `*scratch` bytes for
// other things and grows by those. `bytes` are those of all outputs.
std::vector<size_t> place_unread(const Node& node, const std::vector<size_t>& bytes, size_t alignment,
                                 size_t* scratch) {
  std::vector<size_t> places;
  for (size_t i = 0; i < bytes.size(); ++i) {
    *scratch = align_up(*scratch, alignment);
    places.push_back(*scratch);
    if (!node.output(static_cast<int>(i))) *scratch += bytes[i];
  }
  return places;
}

// Where output `i` of a run is written.
void* place_of(const Launch& launch, const std::vector<size_t>& unread, size_t i) {
  void* const output = launch.outputs[i];
  return output ? output : launch.scratch<char>() + unread[i];
}

Prepared prepare_if(const Node& node, Device& device, const PlanOptions& options) {
  const SharedSubplan yes = make_subplan(node, "then_branch", 0, device, options);
  const SharedSubplan no = make_subplan(node, "else_branch", 0, device, options);
  const auto failed = std::make_shared<SharedSubplan>();
  std::vector<size_t> bytes;
  for (const Port& output : yes->plan().outputs()) bytes.push_back(output.bytes);
  size_t scratch = std::max(yes->plan().arena_bytes(), no->plan().arena_bytes());
  const std::vector<size_t> unread = place_unread(node, bytes, device.alignment(), &scratch);
  Prepared prepared;
  prepared.workspace = scratch;
  prepared.run = [=](const Launch& launch) {
    const SharedSubplan& taken = *launch.in<bool>(0) ? yes : no;
    taken->bind_arena(launch.workspace);
    taken->bind([&](size_t i) { return launch.inputs[i + 1]; });
    std::vector<void*> results;
    for (size_t i = 0; i < unread.size(); ++i) results.push_back(place_of(launch, unread, i));
    if (taken->run(results)) return;
    *failed = taken;
    launch.report(0, 0, 0);
  };
  prepared.explain = [failed](const Fault&) { return (*failed)->fault(); };
  prepared.form = concat(yes->nodes(), " or ", no->nodes(), " nodes");
  return prepared;
}

// What one step of a Scan reads or writes of a value with all steps.
struct Slices {
  int place;  // among the node's inputs or outputs
  size_t bytes;
  bool backwards;
};

Prepared prepare_scan(const Node& node, Device& device, const PlanOptions& options) {
  const auto states = static_cast<int>(node.attr("states", 0)), scanned = static_cast<int>(node.attr("scanned", 0));
  const SharedSubplan body = make_subplan(node, "body", states, device, options);
  const int64_t steps = node.input(states)->type().shape()[0];
  const Graph& graph = *node.subgraph("body");
  std::vector<Slices> inputs, outputs;
  const Shape in_back = node.attr("scan_input_directions", Shape{}),
              out_back = node.attr("scan_output_directions", Shape{});
  for (size_t i = 0; i < static_cast<size_t>(scanned); ++i) {
    const size_t at = static_cast<size_t>(states) + i;
    inputs.push_back({static_cast<int>(at), bytes_of(*graph.inputs()[at]), i < in_back.size() && in_back[i] != 0});
  }
  for (size_t at = static_cast<size_t>(states); at < graph.outputs().size(); ++at) {
    const size_t i = at - static_cast<size_t>(states);
    outputs.push_back({static_cast<int>(at), body->plan().outputs()[i].bytes, i < out_back.size() && out_back[i] != 0});
  }
  std::vector<size_t> bytes;
  for (size_t i = 0; i < static_cast<size_t>(states); ++i) bytes.push_back(bytes_of(*graph.inputs()[i]));
  for (const Slices& output : outputs) bytes.push_back(output.bytes);
  size_t scratch = body->plan().arena_bytes();
  const std::vector<size_t> unread = place_unread(node, bytes, device.alignment(), &scratch);
  Prepared prepared;
  prepared.workspace = scratch;
  prepared.run = [=](const Launch& launch) {
    body->bind_arena(launch.workspace);
    for (size_t i = 0; i < static_cast<size_t>(states); ++i) {
      void* const state = place_of(launch, unread, i);
      if (bytes[i] > 0 && state != launch.inputs[i]) std::memcpy(state, launch.inputs[i], bytes[i]);
    }
    std::vector<void*> results(outputs.size());
    for (int64_t step = 0; step < steps; ++step) {
      const auto at = [&](const Slices& s) {
        return static_cast<size_t>(s.backwards ? steps - 1 - step : step) * s.bytes;
      };
      body->bind([&](size_t i) -> const void* {
        const int number = static_cast<int>(i);
        if (number < states) return place_of(launch, unread, i);
        if (number >= states + scanned) return launch.inputs[number];
        return launch.in<char>(number) + at(inputs[i - static_cast<size_t>(states)]);
      });
      for (size_t i = 0; i < outputs.size(); ++i) {
        const auto place = static_cast<size_t>(outputs[i].place);
        char* const first = static_cast<char*>(place_of(launch, unread, place));
        results[i] = launch.outputs[place] ? first + at(outputs[i]) : first;  // one that is left out has one slice
      }
      if (!body->run(results)) return launch.report(0, step, 0);
    }
  };
  prepared.explain = [body](const Fault& fault) { return concat("in step ", fault.position, ": ", body->fault()); };
  prepared.form = concat(steps, steps == 1 ? " step of " : " steps of ", body->nodes(), " nodes");
  return prepared;
}

}  // namespace

const Kernel* find_subplan_kernel(const Device& device, const Node& node) {
  static const Kernel kScan = {kCallScan, {}, {}, kDomain, "Scan", InputCheck::kChecks};
  static const Kernel kIf = {kCallIf, {}, {}, kDomain, "If", InputCheck::kChecks};
  if (!device.uses_host_memory()) return nullptr;
  return node.is(kCallScan, kDomain) ? &kScan : node.is(kCallIf, kDomain) ? &kIf : nullptr;
}

Prepared prepare_subplans(const Node& node, Device& device, const PlanOptions& options) {
  return node.is(kCallIf, kDomain) ? prepare_if(node, device, options) : prepare_scan(node, device, options);
}

}  // namespace onnx_train
