#include "runtime/plan.h"

#include <algorithm>
#include <chrono>
#include <unordered_set>

#include "kernels/preparation.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/memory_guard.h"
#include "runtime/placement.h"
#include "runtime/upload.h"

namespace onnx_train {

// The pointers that kernels see, and for every buffer the places that hold its address.
struct Plan::Slots {
  struct Call {
    size_t inputs, outputs, workspace;  // positions in `table`
  };
  std::vector<void*> table;
  struct Entry {
    size_t position;  // in `table`
    size_t offset;    // bytes behind the buffer's begin
  };
  std::vector<Call> calls;                  // one per step
  std::vector<std::vector<Entry>> entries;  // by buffer
  std::vector<Buffer> buffers;
  std::vector<void*> addresses;  // of buffers
  std::vector<Copy> copies;
  std::vector<size_t> input_buffers, output_buffers, front_buffers, back_buffers;  // by port; kNone where absent
  void* constants = nullptr;

  Args args(size_t step) const {
    const Call& call = calls[step];
    void* const* all = table.data();
    return {const_cast<const void* const*>(all + call.inputs), all + call.outputs, all[call.workspace]};
  }

  void set(size_t buffer, void* address) {
    if (buffer == kNone) return;
    addresses[buffer] = address;
    for (const Entry& entry : entries[buffer]) {
      table[entry.position] = address ? static_cast<char*>(address) + entry.offset : nullptr;
    }
  }
};

namespace {

Port make_port(const Value& value, const std::string& name) {
  const Shape shape = value.type().shape();
  return {name, value.dtype(), shape, static_cast<size_t>(num_elements(shape)) * size_of(value.dtype())};
}

bool accepts(const Dims& declared, const Shape& given) {
  if (declared.size() != given.size()) return false;
  for (size_t i = 0; i < given.size(); ++i) {
    if (declared[i].known() && declared[i].value() != given[i]) return false;
  }
  return true;
}

// Inputs that nobody gives are the constants that are their defaults; those of states stay inputs.
void fix_defaults(Graph* graph, const std::unordered_set<std::string>& states,
                  const std::map<std::string, Shape>& shapes) {
  const std::vector<Value*> inputs = graph->inputs();
  for (auto it = inputs.rbegin(); it != inputs.rend(); ++it) {  // the last one is the cheapest to remove
    Value* input = *it;
    if (!input->is_initializer() || shapes.count(input->name())) continue;
    const Shape shape = constant_shape(*input);
    input->set_type({input->dtype(), Dims(shape.begin(), shape.end())});
    if (!states.count(input->name())) graph->remove_input(input);
  }
}

// Gives the graph's inputs their concrete shapes and forgets all types that were derived from symbols.
void set_shapes(Graph* graph, const std::map<std::string, Shape>& shapes) {
  std::map<std::string, std::pair<int64_t, std::string>> symbols;  // symbol -> size, and the input that set it
  for (Value* input : graph->inputs()) {
    TensorType type = input->type();
    const auto given = shapes.find(input->name());
    if (given != shapes.end()) {
      if (type.dims && !accepts(*type.dims, given->second)) {
        fail_as(ErrorCode::kData, "input '", input->name(), "' has shape ", to_string(given->second),
                "; the model takes ", to_string(type));
      }
      for (size_t i = 0; type.dims && i < given->second.size(); ++i) {
        const std::string& symbol = (*type.dims)[i].symbol();
        if (symbol.empty()) continue;
        const auto [known, added] = symbols.try_emplace(symbol, given->second[i], input->name());
        if (!added && known->second.first != given->second[i]) {
          fail_as(ErrorCode::kData, "input '", input->name(), "' has ", given->second[i], " for '", symbol,
                  "', but input '", known->second.second, "' has ", known->second.first, "; give both the same size");
        }
      }
      type.dims.emplace(given->second.begin(), given->second.end());
      input->set_type(type);
    }
    if (!input->type().is_static()) {
      fail_as(ErrorCode::kData, "input '", input->name(), "' (", to_string(input->type()),
              ") needs a shape; none was given");
    }
  }
  for (Node* node = graph->first(); node; node = node->next()) {
    for (Value* output : node->outputs()) {
      if (!output) continue;
      output->set_type({output->dtype(), std::nullopt});
      output->set_elements(std::nullopt);
    }
  }
}

// Large constants stay where the model holds them, in a mapped file or in memory that plans share.
bool read_in_place(const Device& device, const Value& constant) {
  const Tensor* beside = contents_beside(constant.shared_initializer());
  return beside && &device == &Device::cpu() && is_aligned(*beside);
}

// Before a kernel prepares tables for it: an output alone must fit into the device's memory.
void expect_room(const Node& node, const Device& device) {
  for (const Value* output : node.outputs()) {
    if (!output || output->dtype() == DType::kString) continue;
    constexpr size_t kSmall = size_t{1} << 28;  // bytes: there is no need to ask the system
    const auto count = static_cast<size_t>(num_elements(output->type().shape()));
    const size_t size = size_of(output->dtype());
    if (count <= kSmall / size) continue;
    const size_t available = device.available_bytes();
    if (count <= available / size) continue;
    fail("[Plan] ", node.label(), ": its output '", output->name(), "' is ", to_string(output->type()),
         ", more than the ", available, " bytes that ", device.name(), " has left; use a smaller batch");
  }
}

}  // namespace

Plan::Plan(Model entry, const std::vector<std::string>& states, const std::map<std::string, Shape>& shapes,
           Device& device, const PlanOptions& options)
    : model_(std::move(entry)),
      device_(device),
      state_names_(states),
      slots_(std::make_unique<Slots>()),
      guarded_(options.check_memory) {
  lower(options, shapes);
  select_kernels();
  place(options);
}

Plan::~Plan() {
  if (slots_ && slots_->constants) device_.free(slots_->constants);
}

void Plan::lower(const PlanOptions& options, const std::map<std::string, Shape>& shapes) {
  Graph& graph = *model_.graph;
  const std::unordered_set<std::string> names(state_names_.begin(), state_names_.end());
  fix_defaults(&graph, names, shapes);
  set_shapes(&graph, shapes);
  LoweringOptions lowering = options.lowering;
  lowering.recomputation = &recomputation_;
  run_pipeline(lowering_passes(device_, lowering), &model_, options.pipeline);
  const auto is_state = [&](const std::string& name) { return names.count(name) > 0; };
  std::unordered_map<std::string, const Value*> fronts;
  for (const Value* input : graph.inputs()) {
    if (is_state(input->name())) {
      fronts.emplace(input->name(), input);
    } else {
      inputs_.push_back(make_port(*input, input->name()));
    }
  }
  for (const Value* output : graph.outputs()) {
    if (output->has_role(roles::kNext) && is_state(output->role()->of)) continue;
    if (!output->type().is_static()) {
      fail("[Plan] the shape of output '", output->name(), "' (", to_string(output->type()),
           ") depends on data; the runtime needs it when the plan is built");
    }
    outputs_.push_back(make_port(*output, output->name()));
  }
  const NextValues next_values(graph);
  for (const std::string& name : state_names_) {
    const auto found = fronts.find(name);
    const Value* front = found == fronts.end() ? nullptr : found->second;
    const Value* next = next_values.of(name);
    if (!front && !next) continue;
    StatePort port{make_port(front ? *front : *next, name)};
    port.written = next != nullptr;
    if (front && next && front->type() != next->type()) {
      fail("[Plan] state '", name, "' is ", to_string(front->type()), " but its update is ", to_string(next->type()));
    }
    states_.push_back(std::move(port));
  }
}

void Plan::select_kernels() {
  ValueTable<Tensor> constants;
  std::string missing;
  int count = 0;
  for (Node* node = model_.graph->first(); node; node = node->next()) {
    std::vector<Tensor> known;
    bool typed = true;
    for (const Value* input : node->inputs()) {
      known.emplace_back();
      if (!input) continue;
      typed = typed && input->type().is_static();
      if (!input->is_initializer() || model_.graph->is_input(input)) continue;
      const Tensor* constant = constants.find(input);
      known.back() = constant ? *constant : *constants.try_emplace(input, constant_of(input)).first;
    }
    for (const Value* output : node->outputs()) typed = typed && (!output || output->type().is_static());
    const NodeSpec spec(*node, std::move(known), num_threads());
    const Kernel* kernel = typed ? find_kernel(device_, spec) : nullptr;
    if (!kernel) {
      ++count;
      missing += concat(count > 1 ? "; " : "", node->label(), typed ? "" : ": a shape is not known", " with");
      for (const Value* input : node->inputs()) missing += " " + (input ? to_string(input->type()) : std::string("-"));
      continue;
    }
    expect_room(*node, device_);
    steps_.push_back({node, kernel});
    prepared_.push_back(prepare(*kernel, spec));
  }
  if (count > 0) {
    fail("[Plan] ", device_.name(), " has no kernel for ", count, count == 1 ? " node: " : " nodes: ", missing);
  }
}

void Plan::place(const PlanOptions& options) {
  Placement placement = place_values(*model_.graph, steps_, prepared_, states_, options.lowering);
  memory_ = plan_memory(placement.ranges);
  ranges_ = std::move(placement.ranges);
  range_names_ = std::move(placement.range_names);
  Slots& slots = *slots_;
  slots.buffers = std::move(placement.buffers);
  slots.copies = std::move(placement.copies);
  slots.addresses.assign(slots.buffers.size(), nullptr);
  slots.entries.resize(slots.buffers.size());

  // What is where it should be runs as no step at all.
  std::vector<PlanStep> steps;
  std::vector<Prepared> prepared;
  for (size_t s = 0; s < steps_.size(); ++s) {
    if (placement.skipped[s]) continue;
    const Node& node = *steps_[s].node;
    Slots::Call call{slots.table.size(), 0, 0};
    const auto add = [&](const Value* value) {
      if (value) {
        const Location& location = placement.location_of.at(value);
        slots.entries[location.buffer].push_back({slots.table.size(), location.offset});
      }
      slots.table.push_back(nullptr);
    };
    for (const Value* input : node.inputs()) add(input);
    call.outputs = slots.table.size();
    for (const Value* output : node.outputs()) add(output);
    call.workspace = slots.table.size();
    slots.table.push_back(nullptr);
    if (placement.workspace_of[s] != kNone) {
      slots.entries[placement.workspace_of[s]].push_back({call.workspace, 0});
      workspace_bytes_ = std::max(workspace_bytes_, prepared_[s].workspace);
    }
    slots.calls.push_back(call);
    steps.push_back(steps_[s]);
    prepared.push_back(std::move(prepared_[s]));
  }
  steps_ = std::move(steps);
  prepared_ = std::move(prepared);
  std::vector<int> number(placement.skipped.size() + 1);  // of a step, without those that are skipped
  for (size_t s = 0; s < placement.skipped.size(); ++s) number[s + 1] = number[s] + (placement.skipped[s] ? 0 : 1);
  for (LiveRange& range : ranges_) {
    range.first = number[static_cast<size_t>(range.first)];
    range.last = number[static_cast<size_t>(range.last)];
  }

  slots.input_buffers.assign(inputs_.size(), kNone);
  slots.output_buffers.assign(outputs_.size(), kNone);
  slots.front_buffers.assign(states_.size(), kNone);
  slots.back_buffers.assign(states_.size(), kNone);
  size_t copied_bytes = 0;
  for (size_t b = 0; b < slots.buffers.size(); ++b) {
    Buffer& buffer = slots.buffers[b];
    switch (buffer.kind) {
      case Buffer::kArena: break;
      case Buffer::kInput: slots.input_buffers[buffer.index] = b; break;
      case Buffer::kOutput: slots.output_buffers[buffer.index] = b; break;
      case Buffer::kFront: slots.front_buffers[buffer.index] = b; break;
      case Buffer::kBack: slots.back_buffers[buffer.index] = b; break;
      case Buffer::kConstant:
        constant_bytes_ += (buffer.bytes + 63) / 64 * 64;
        if (read_in_place(device_, *buffer.constant)) break;
        buffer.index = copied_bytes;  // its offset
        copied_bytes += (buffer.bytes + 63) / 64 * 64;
        break;
    }
  }
  if (constant_bytes_ == 0) return;
  const auto free = [this](void* data) { device_.free(data); };
  std::unique_ptr<void, decltype(free)> constants(copied_bytes > 0 ? device_.allocate(copied_bytes) : nullptr,
                                                  free);  // until all are there
  for (size_t b = 0; b < slots.buffers.size(); ++b) {
    const Buffer& buffer = slots.buffers[b];
    if (buffer.kind != Buffer::kConstant) continue;
    const Tensor contents = stored_contents(*buffer.constant);
    void* address = const_cast<void*>(contents.data());  // kernels read constants only
    if (!read_in_place(device_, *buffer.constant)) {
      address = static_cast<char*>(constants.get()) + buffer.index;
      upload(contents, &device_, address);
    }
    slots.set(b, address);
  }
  slots.constants = constants.release();
}

void Plan::bind_arena(void* arena) {
  arena_ = static_cast<char*>(arena);
  for (size_t b = 0; b < slots_->buffers.size(); ++b) {
    const Buffer& buffer = slots_->buffers[b];
    if (buffer.kind == Buffer::kArena) slots_->set(b, static_cast<char*>(arena) + memory_.offsets[buffer.index]);
  }
}

void Plan::bind_input(size_t i, const void* data) { slots_->set(slots_->input_buffers[i], const_cast<void*>(data)); }
void Plan::bind_output(size_t i, void* data) { slots_->set(slots_->output_buffers[i], data); }

void Plan::bind_state(size_t i, const void* front, void* back) {
  slots_->set(slots_->front_buffers[i], const_cast<void*>(front));
  slots_->set(slots_->back_buffers[i], back);
}

void Plan::set_profiling(bool on) {
  profiling_ = on;
  if (!on) return;
  profiled_runs_ = 0;
  for (PlanStep& step : steps_) step.milliseconds = step.last_start = step.last_milliseconds = 0;
}

void Plan::run() {
  // OpenMP's number is one per thread of the program; scratch memory was sized for the planner's.
  if (num_threads() != threads_) set_num_threads(threads_);
  if (guarded_) {
    run_guarded();
  } else if (profiling_) {
    run_profiled();
  } else {
    for (size_t s = 0; s < steps_.size(); ++s) prepared_[s].run(slots_->args(s));
  }
  for (const Copy& copy : slots_->copies) {
    device_.copy(slots_->addresses[copy.to], slots_->addresses[copy.from], copy.bytes);
  }
}

void Plan::run_guarded() {
  MemoryGuard guard(arena_, memory_.bytes);
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Args args = slots_->args(s);
    guard.before(*steps_[s].node, args, prepared_[s].workspace);
    prepared_[s].run(args);
    guard.after(*steps_[s].node);
  }
}

void Plan::run_profiled() {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  };
  const Clock::time_point begin = Clock::now();
  for (size_t s = 0; s < steps_.size(); ++s) {
    const double start = since(begin);
    prepared_[s].run(slots_->args(s));
    device_.synchronize();
    steps_[s].last_start = start;
    steps_[s].last_milliseconds = since(begin) - start;
    steps_[s].milliseconds += steps_[s].last_milliseconds;
  }
  ++profiled_runs_;
}

}  // namespace onnx_train
