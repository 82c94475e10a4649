#include "runtime/plan/subplans.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <optional>

#include "kernels/lowering/memory/lifetimes.h"
#include "kernels/subgraph_calls.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/plan/executable.h"

namespace onnx_train {
namespace {

// A subgraph as an entry point. Its first `states` inputs are states, and its first outputs their next values. The
// first inputs that are no states are constants: `found`.
Model entry_of(const Graph& subgraph, int states, const std::vector<Tensor>& found) {
  Model model;
  model.context->opsets = subgraph.context().opsets;
  model.context->functions = subgraph.context().functions;
  GraphCopy copy(model.graph.get());
  for (size_t i = 0; i < subgraph.inputs().size(); ++i) {
    const Value* v = subgraph.inputs()[i];
    const size_t number = i - static_cast<size_t>(states);
    const bool is_found = i >= static_cast<size_t>(states) && number < found.size();
    copy.map(v, is_found ? model.graph->add_initializer(concat("found/", number), found[number])
                         : model.graph->add_input(concat("input/", i), v->type()));
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

// Memory of a device that grows.
class Arena {
 public:
  explicit Arena(Device& device) : device_(device) {}
  ~Arena() { release(); }
  Arena(const Arena&) = delete;
  void* at_least(size_t bytes) {
    if (bytes <= bytes_) return memory_;
    release();
    memory_ = device_.allocate(bytes);
    bytes_ = bytes;
    return memory_;
  }

 private:
  void release() {
    bytes_ = 0;
    if (void* old = std::exchange(memory_, nullptr)) device_.free(old);
  }

  Device& device_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// On a device with memory of its own it runs on a stream of its own, to whose end each run waits.
class Subplan {
 public:
  Subplan(const Graph& subgraph, int states, Device& device, const PlanOptions& options,
          const std::vector<Tensor>& found = {})
      : device_(device), device_fault_(device), stream_(device.make_stream()) {
    std::vector<std::string> names;
    std::map<std::string, Shape> shapes;
    for (size_t i = 0; i < subgraph.inputs().size(); ++i) {
      const std::string name = concat("input/", i);
      if (i < static_cast<size_t>(states)) {
        names.push_back(name);
      } else if (i >= static_cast<size_t>(states) + found.size()) {
        shapes[name] = subgraph.inputs()[i]->type().shape();
      }
    }
    PlanOptions inner = options;
    inner.memory = inner.lowering.memory = 0;
    inner.sizes.reset();
    inner.pipeline = {};
    Fault* fault = &fault_;
    if (!on_host()) fault = static_cast<Fault*>(device_fault_.at_least(sizeof(Fault)));
    executable_.emplace(std::make_unique<Plan>(entry_of(subgraph, states, found), names, shapes, device, inner), device,
                        *stream_, fault, Executable::Ports::kBound);
    // The plan has the ports that it needs, by name.
    const auto number = [](const std::string& name) {
      return static_cast<size_t>(std::stoll(name.substr(name.find('/') + 1)));
    };
    for (const Port& port : plan().inputs()) inputs_.push_back(number(port.name));
    for (const StatePort& port : plan().states()) states_.push_back(number(port.name));
  }

  const Plan& plan() const { return executable_->plan(); }
  size_t nodes() const { return plan().steps().size(); }
  Stream& stream() { return *stream_; }

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
    if (!on_host()) stream_->copy_from_host(device_fault_.at_least(sizeof(Fault)), &fault_, sizeof(Fault));
    for (size_t i = 0; i < outputs.size(); ++i) executable_->bind_output(i, outputs[i]);
    executable_->run_bound();
    if (!on_host()) {
      stream_->copy_to_host(&fault_, device_fault_.at_least(sizeof(Fault)), sizeof(Fault));
      stream_->synchronize();
    }
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
  bool on_host() const { return device_.uses_host_memory(); }

  Device& device_;
  Arena device_fault_;  // of a device with memory of its own
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

// ---- What the host waits for: on a device with memory of its own, the nodes before it, and then the copies

// Reads values of a run on the host. False if the run has a fault, so that they may be anything.
class HostReader {
 public:
  HostReader(const Launch& launch, const Device& device) : launch_(launch), on_host_(device.uses_host_memory()) {}
  void read(const void* from, void* to, size_t bytes) {
    if (bytes == 0) return;
    if (on_host_) {
      std::memcpy(to, from, bytes);
    } else {
      launch_.stream->copy_to_host(to, from, bytes);
    }
  }
  bool finish() {
    if (on_host_) return true;
    Fault fault;
    launch_.stream->copy_to_host(&fault, launch_.fault, sizeof fault);
    launch_.stream->synchronize();
    return fault.node == 0;
  }

 private:
  const Launch& launch_;
  const bool on_host_;
};

// Reports a fault of a run within this one.
void report_inner(const Launch& launch, const Device& device, int64_t position) {
  if (device.uses_host_memory()) return launch.report(0, position, 0);
  const Fault fault{launch.node, 0, position, 0};
  launch.stream->copy_from_host(launch.fault, &fault, sizeof fault);
}

// ---- Segments

constexpr size_t kMostPlans = 16;  // of a segment; the one that was not used for longest gives way

// "'k' = 3, 'ends' = [2, 5]"
std::string text_of(const Node& node, const std::vector<Tensor>& found) {
  constexpr int64_t kMostShown = 8;
  std::string text;
  for (size_t i = 0; i < found.size(); ++i) {
    std::string elements;
    for (int64_t k = 0; k < std::min(found[i].size(), kMostShown); ++k)
      elements += concat(k > 0 ? ", " : "", found[i].at(k));
    if (found[i].size() > kMostShown) elements += ", ..";
    const bool is_list = !found[i].shape().empty();
    text += concat(i > 0 ? ", " : "", "'", node.input(static_cast<int>(i))->name(), "' = ", is_list ? "[" : "",
                   elements, is_list ? "]" : "");
  }
  return text;
}

// The plans of a segment, by what was found.
class SegmentPlans {
 public:
  SegmentPlans(const Node& node, Device& device, const PlanOptions& options)
      : node_(node), device_(device), options_(options), arena_(device) {
    options_.pipeline = {};
    const auto count = static_cast<int>(node.attr("found", 0));
    for (int i = 0; i < count; ++i) found_.emplace_back(node.input(i)->dtype(), node.input(i)->type().shape());
  }

  void run(const Launch& launch) {
    HostReader host(launch, device_);
    for (size_t i = 0; i < found_.size(); ++i) host.read(launch.inputs[i], found_[i].data(), found_[i].bytes());
    if (!host.finish()) return;
    Subplan& plan = plan_of_found();
    plan.bind_arena(arena_.at_least(plan.plan().arena_bytes()));
    plan.bind([&](size_t i) { return launch.inputs[i]; });
    if (!plan.run({launch.outputs, launch.outputs + node_.num_outputs()})) report_inner(launch, device_, 0);
  }

  // Of the last run.
  std::string fault() const { return concat("with ", text_of(node_, found_), ": ", plans_.front().plan->fault()); }

 private:
  struct Entry {
    std::string key;
    SharedSubplan plan;
  };

  // The plan for what was found, as the first of the list.
  Subplan& plan_of_found() {
    std::string key;
    for (const Tensor& t : found_) key.append(static_cast<const char*>(t.data()), t.bytes());
    const auto known = std::find_if(plans_.begin(), plans_.end(), [&](const Entry& e) { return e.key == key; });
    if (known != plans_.end()) {
      plans_.splice(plans_.begin(), plans_, known);
    } else {
      std::vector<Tensor> contents;
      for (const Tensor& t : found_) contents.push_back(t.clone());
      try {
        plans_.push_front({key, std::make_shared<Subplan>(*node_.subgraph("segment"), 0, device_, options_, contents)});
      } catch (const Error& error) {
        fail_as(error.code(), "with ", text_of(node_, found_), ": ", error.what());
      }
      if (plans_.size() > kMostPlans) plans_.pop_back();
    }
    return *plans_.front().plan;
  }

  const Node& node_;
  Device& device_;
  PlanOptions options_;
  std::vector<Tensor> found_;
  Arena arena_;
  std::list<Entry> plans_;
};

Prepared prepare_segment(const Node& node, Device& device, const PlanOptions& options) {
  const auto plans = std::make_shared<SegmentPlans>(node, device, options);
  std::string names;
  for (int i = 0; i < node.attr("found", 0); ++i) names += concat(i > 0 ? ", '" : "'", node.input(i)->name(), "'");
  Prepared prepared;
  prepared.run = [plans](const Launch& launch) { plans->run(launch); };
  prepared.explain = [plans](const Fault&) { return plans->fault(); };
  prepared.form = concat("the plan is cut: ", node.subgraph("segment")->num_nodes(), " nodes are planned when ", names,
                         device.uses_host_memory() ? " is known" : " is copied to the host");
  return prepared;
}

// ---- Loops that their condition ends

// A condition that never becomes false must not hang the program.
constexpr int64_t kMostSteps = 100'000'000;

Prepared prepare_loop(const Node& node, Device& device, const PlanOptions& options) {
  const auto states = static_cast<size_t>(node.attr("states", 0));
  const Graph& graph = *node.subgraph("body");
  const SharedSubplan body = make_subplan(node, "body", static_cast<int>(states) + 2, device, options);
  const bool has_most = node.input(0), has_condition = node.input(1);
  const DType most_type = has_most ? node.input(0)->dtype() : DType::kInt64;
  std::vector<size_t> bytes;
  for (size_t i = 0; i < states; ++i) bytes.push_back(bytes_of(*graph.inputs()[i + 2]));
  size_t scratch = body->plan().arena_bytes();
  const std::vector<size_t> unread = place_unread(node, bytes, device.alignment(), &scratch);
  const size_t number_at = align_up(scratch, device.alignment());
  const size_t condition_at = align_up(number_at + sizeof(int64_t), device.alignment());
  const auto too_long = std::make_shared<bool>();
  Prepared prepared;
  prepared.workspace = condition_at + sizeof(bool);
  prepared.run = [=, &device](const Launch& launch) {
    *too_long = false;
    Tensor most_given(most_type, {});
    bool go = true;
    HostReader host(launch, device);
    if (has_most) host.read(launch.inputs[0], most_given.data(), most_given.bytes());
    if (has_condition) host.read(launch.inputs[1], &go, sizeof go);
    if (!host.finish()) return;
    const int64_t most = has_most ? most_given.to_ints()[0] : kMostSteps;
    Stream& stream = body->stream();
    int64_t* const number = reinterpret_cast<int64_t*>(launch.scratch<char>() + number_at);
    bool* const condition = reinterpret_cast<bool*>(launch.scratch<char>() + condition_at);
    const int64_t zero = 0;
    stream.copy_from_host(number, &zero, sizeof zero);
    stream.copy_from_host(condition, &go, sizeof go);
    for (size_t i = 0; i < states; ++i) {
      void* const state = place_of(launch, unread, i);
      if (bytes[i] > 0 && state != launch.inputs[i + 2]) stream.copy({state, launch.inputs[i + 2], bytes[i]});
    }
    body->bind_arena(launch.workspace);
    body->bind([&](size_t i) -> const void* {
      if (i == 0) return number;
      if (i == 1) return condition;
      return i < states + 2 ? place_of(launch, unread, i - 2) : launch.inputs[i];
    });
    for (int64_t step = 0; go && step < most; ++step) {
      *too_long = step >= kMostSteps;
      if (*too_long || !body->run({})) return report_inner(launch, device, step);
      stream.copy_to_host(&go, condition, sizeof go);
      stream.synchronize();
    }
    stream.synchronize();
  };
  prepared.explain = [body, too_long](const Fault& fault) {
    if (*too_long) return concat("it has not ended after ", kMostSteps, " steps; give it a largest number of steps");
    return concat("in step ", fault.position, ": ", body->fault());
  };
  prepared.form = concat("steps of ", body->nodes(), " nodes until its condition ends it",
                         device.uses_host_memory() ? "" : ", which the host reads after each");
  return prepared;
}

}  // namespace

const Kernel* find_subplan_kernel(const Device& device, const Node& node) {
  static const Kernel kScan = {kCallScan, {}, {}, kDomain, "Scan", InputCheck::kChecks};
  static const Kernel kIf = {kCallIf, {}, {}, kDomain, "If", InputCheck::kChecks};
  static const Kernel kLoop = {kCallLoop, {}, {}, kDomain, "Loop", InputCheck::kChecks};
  static const Kernel kSegment = {kCallSegment, {}, {}, kDomain, "Segment", InputCheck::kChecks};
  if (node.is(kCallLoop, kDomain)) return &kLoop;
  if (node.is(kCallSegment, kDomain)) return &kSegment;
  if (!device.uses_host_memory()) return nullptr;
  return node.is(kCallScan, kDomain) ? &kScan : node.is(kCallIf, kDomain) ? &kIf : nullptr;
}

bool waits_for_device(const Node& node) { return node.is(kCallLoop, kDomain) || node.is(kCallSegment, kDomain); }

Prepared prepare_subplans(const Node& node, Device& device, const PlanOptions& options) {
  if (node.is(kCallLoop, kDomain)) return prepare_loop(node, device, options);
  if (node.is(kCallSegment, kDomain)) return prepare_segment(node, device, options);
  return node.is(kCallIf, kDomain) ? prepare_if(node, device, options) : prepare_scan(node, device, options);
}

}  // namespace onnx_train
