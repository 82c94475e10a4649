#include "runtime/plan/executable.h"

#include <cmath>

#include "kernels/host.h"
#include "onnx_passes/io/shared_copy.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/load_element.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/plan/anomaly.h"
#include "runtime/plan/memory_guard.h"
#include "runtime/plan/upload.h"

namespace onnx_train {
namespace {

constexpr int32_t kLossInput = -1;  // Fault::input of a loss that is not finite; `value` says whether it is NaN

// Whether a constant is used without a copy of this plan's own: large ones are in a mapped file or in memory that plans
// share.
bool read_in_place(const Device& device, const Value& constant) {
  const Tensor* beside = contents_beside(constant.shared_initializer());
  return beside && device.uses_host_memory() && (beside->is_stored_in_fewer_bits() || is_aligned(*beside));
}

bool is_copied(const Device& device, const Buffer& buffer) {
  return buffer.kind == Buffer::kConstant && !read_in_place(device, *buffer.constant);
}

}  // namespace

size_t copied_constants(const Plan& plan, const Device& device) {
  size_t bytes = 0;
  for (const Buffer& buffer : plan.placement().buffers) {
    if (is_copied(device, buffer)) bytes += align_up(buffer.bytes, device.alignment());
  }
  return bytes;
}

size_t slot_bytes(const Plan& plan, const Device& device) {
  if (device.uses_host_memory()) return 0;
  size_t bytes = align_up(sizeof(Fault), device.alignment());
  for (const Port& port : plan.inputs()) bytes += align_up(port.bytes, device.alignment());
  for (const Port& port : plan.outputs()) bytes += align_up(port.bytes, device.alignment());
  return bytes;
}

Executable::Executable(std::unique_ptr<Plan> plan, Device& device, Stream& stream, Fault* fault, Ports ports)
    : plan_(std::move(plan)), device_(device), stream_(stream), fault_(fault) {
  if (plan_->guarded() && !device_.uses_host_memory()) {
    fail_as(ErrorCode::kUsage, "--check-memory looks into the arena, which ", device_.name(), " keeps; run on the CPU");
  }
  if (plan_->detects_anomaly() && !device_.uses_host_memory()) {
    fail_as(ErrorCode::kUsage, "--detect-anomaly reads what each node writes, which ", device_.name(),
            " keeps; run on the CPU");
  }
  try {
    make_table();
    upload_constants();
    if (ports == Ports::kSlots) make_slots();
  } catch (...) {
    free_memory();
    throw;
  }
}

Executable::~Executable() {
  free_memory();
  try {
    const DeviceScope scope(device_);
    recording_.reset();
    plan_.reset();                   // kernels own device memory
  } catch (const std::exception&) {  // the members' destructors do the rest
  }
}

void Executable::free_memory() {
  try {
    stream_.synchronize();  // uploads of constants may still be in progress
  } catch (const std::exception&) {
    // An earlier run failed; the next caller that waits for the stream receives the error.
  }
  if (constants_) device_.free(constants_);
  if (slots_) device_.free(slots_);
}

void Executable::make_table() {
  const Placement& placement = plan_->placement();
  entries_.resize(placement.buffers.size());
  addresses_.assign(placement.buffers.size(), nullptr);
  const auto add = [&](const Value* value) {
    if (value) {
      const Location& location = placement.location_of.at(value);
      entries_[location.buffer].push_back({table_.size(), location.offset});
    }
    table_.push_back(nullptr);
  };
  for (size_t s = 0; s < plan_->steps().size(); ++s) {
    const Node& node = *plan_->steps()[s].node;
    Call call{table_.size(), 0, 0};
    for (const Value* input : node.inputs()) add(input);
    call.outputs = table_.size();
    for (const Value* output : node.outputs()) add(output);
    call.workspace = table_.size();
    if (placement.workspace_of[s] != kNoBuffer) entries_[placement.workspace_of[s]].push_back({table_.size(), 0});
    table_.push_back(nullptr);
    calls_.push_back(call);
  }
  input_buffers_.assign(plan_->inputs().size(), kNoBuffer);
  output_buffers_.assign(plan_->outputs().size(), kNoBuffer);
  state_buffers_.assign(plan_->states().size(), kNoBuffer);
  for (size_t b = 0; b < placement.buffers.size(); ++b) {
    const Buffer& buffer = placement.buffers[b];
    if (buffer.kind == Buffer::kInput) input_buffers_[buffer.index] = b;
    if (buffer.kind == Buffer::kOutput) output_buffers_[buffer.index] = b;
    if (buffer.kind == Buffer::kState) state_buffers_[buffer.index] = b;
  }
}

void Executable::upload_constants() {
  const std::vector<Buffer>& buffers = plan_->placement().buffers;
  const size_t bytes = copied_constants(*plan_, device_);
  if (bytes > 0) constants_ = static_cast<char*>(device_.allocate(bytes));
  char* next = constants_;
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].kind != Buffer::kConstant) continue;
    Tensor contents = stored_contents(*buffers[b].constant);
    if (is_copied(device_, buffers[b])) {
      upload(contents, &stream_, next);
      set(b, next);
      next += align_up(buffers[b].bytes, device_.alignment());
    } else {
      if (contents.is_stored_in_fewer_bits()) shared_.push_back(contents = shared_copy(contents, contents.dtype()));
      set(b, const_cast<void*>(std::as_const(contents).data()));  // kernels only read constants
    }
  }
}

void Executable::make_slots() {
  if (device_.uses_host_memory()) return;  // inputs and outputs are the caller's memory
  slots_ = static_cast<char*>(device_.allocate(slot_bytes(*plan_, device_)));
  rehearsal_ = reinterpret_cast<Fault*>(slots_);
  const Fault fault{-1, 0, 0, 0};
  stream_.copy_from_host(rehearsal_, &fault, sizeof fault);
  char* next = slots_ + align_up(sizeof(Fault), device_.alignment());
  const auto give = [&](const std::vector<Port>& ports, const std::vector<size_t>& buffers) {
    for (size_t i = 0; i < ports.size(); ++i) {
      set(buffers[i], next);
      next += align_up(ports[i].bytes, device_.alignment());
    }
  };
  give(plan_->inputs(), input_buffers_);
  give(plan_->outputs(), output_buffers_);
}

void Executable::set(size_t buffer, void* address) {
  if (buffer == kNoBuffer) return;
  addresses_[buffer] = address;
  for (const Entry& entry : entries_[buffer]) {
    table_[entry.position] = address ? static_cast<char*>(address) + entry.offset : nullptr;
  }
}

void Executable::bind_arena(void* arena) {
  recording_.reset();
  arena_ = static_cast<char*>(arena);
  const std::vector<Buffer>& buffers = plan_->placement().buffers;
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].kind == Buffer::kArena) set(b, arena_ + plan_->memory().offsets[buffers[b].index]);
  }
}

void Executable::bind_state(size_t i, void* data) { set(state_buffers_[i], data); }

void Executable::set_input(size_t i, const Tensor& value) {
  const size_t buffer = input_buffers_[i];
  if (buffer == kNoBuffer) return;
  if (device_.uses_host_memory()) return set(buffer, const_cast<void*>(value.data()));
  const size_t bytes = plan_->inputs()[i].bytes;
  if (bytes == 0) return;
  if (value.is_on_device()) {
    stream_.copy({addresses_[buffer], value.data(), bytes});
  } else {
    stream_.copy_from_host(addresses_[buffer], value.data(), bytes);
  }
}

Launch Executable::launch(size_t step, Fault* fault) {
  const Call& call = calls_[step];
  void* const* all = table_.data();
  return {const_cast<const void* const*>(all + call.inputs),
          all + call.outputs,
          all[call.workspace],
          &stream_,
          fault,
          static_cast<int32_t>(step + 1)};
}

void Executable::run_kernel(size_t step, const Launch& launch) {
  try {
    plan_->prepared()[step].run(launch);
  } catch (const Error& error) {
    fail_as(error.code(), plan_->steps()[step].node->label(), ": ", error.what());
  }
}

void Executable::run_step(size_t step, Fault* fault) {
  run_kernel(step, launch(step, fault));
  if (step == loss_step_) check_loss(step, fault);
}

void Executable::refuse_non_finite_loss() {
  if (!device_.uses_host_memory()) return;
  for (size_t s = 0; s < plan_->steps().size(); ++s) {
    const std::vector<Value*>& outputs = plan_->steps()[s].node->outputs();
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i] || !outputs[i]->has_role(roles::kLoss) || plan_->placement().skipped[s]) continue;
      if (outputs[i]->dtype() != DType::kFloat && outputs[i]->dtype() != DType::kDouble) continue;
      loss_step_ = s;
      loss_at_ = calls_[s].outputs + i;
      loss_type_ = outputs[i]->dtype();
    }
  }
}

void Executable::check_loss(size_t step, Fault* fault) const {
  const void* const address = table_[loss_at_];
  const double loss = loss_type_ == DType::kDouble ? load_element<double>(address, 0) : load_element<float>(address, 0);
  if (fault->node == 0 && !std::isfinite(loss))
    *fault = {static_cast<int32_t>(step + 1), kLossInput, 0, std::isnan(loss)};
}

void Executable::run(const std::vector<Tensor>& outputs, Fault* fault) {
  const bool in_place = device_.uses_host_memory();
  if (in_place) {
    for (size_t i = 0; i < outputs.size(); ++i) set(output_buffers_[i], const_cast<void*>(outputs[i].data()));
  }
  const DeviceScope scope(device_);
  // OpenMP's setting is per calling thread, and scratch memory was sized for the plan's number of threads.
  if (num_threads() != plan_->threads()) set_num_threads(plan_->threads());
  collect_commits();
  if (!in_place && !is_rehearsed_) rehearse();
  if (!in_place && !recording_ && plan_->replays()) {
    if (wait_) wait_();
    recording_ = stream_.record([this] { enqueue(fault_); });
  }
  if (plan_->detects_anomaly()) {
    run_watched();
  } else if (plan_->guarded()) {
    run_guarded();
  } else if (plan_->profiling()) {
    run_profiled();
  } else if (recording_) {
    recording_->replay();
  } else {
    enqueue(fault_);
  }
  if (in_place) {
    *fault = *fault_;
    return;
  }
  stream_.copy_to_host(fault, fault_, sizeof(Fault));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (output_buffers_[i] == kNoBuffer) continue;
    stream_.copy_to_host(const_cast<void*>(outputs[i].data()), addresses_[output_buffers_[i]], outputs[i].bytes());
  }
}

void Executable::run_bound() {
  if (device_.uses_host_memory()) return run({}, fault_);
  collect_commits();
  enqueue(fault_);
}

// The addresses of inputs may change between runs.
void Executable::collect_commits() {
  commits_.clear();
  for (const Copy& copy : plan_->placement().copies) {
    commits_.push_back({addresses_[copy.to], addresses_[copy.from], copy.bytes});
  }
}

// Runs all nodes once with a fault set, so that no state changes. This loads kernels and lets libraries allocate at
// their first call, which a recording cannot contain, and a launch that fails does so before any state changes. Once:
// ranks exchange here, and another arena, which brings about another recording, is a rank's own affair.
void Executable::rehearse() {
  enqueue(rehearsal_);
  if (wait_) wait_();
  is_rehearsed_ = true;
}

void Executable::enqueue(Fault* fault) {
  const bool stops = device_.uses_host_memory();
  if (stops && fault->node != 0) return;
  for (size_t s = 0; s < plan_->steps().size(); ++s) {
    run_step(s, fault);
    if (stops && fault->node != 0) return;
  }
  stream_.commit(commits_, fault);
}

void Executable::run_guarded() {
  MemoryGuard guard(arena_, plan_->memory().bytes);
  for (size_t s = 0; s < plan_->steps().size(); ++s) {
    const Node& node = *plan_->steps()[s].node;
    guard.before(node, launch(s, fault_), plan_->prepared()[s].workspace);
    run_step(s, fault_);
    guard.after(node);
    if (fault_->node != 0) return;
  }
  stream_.commit(commits_, fault_);
}

void Executable::run_watched() {
  AnomalyDetector detector(plan_->scales_loss());
  for (size_t s = 0; s < plan_->steps().size(); ++s) {
    const Launch call = launch(s, fault_);
    run_kernel(s, call);
    if (fault_->node != 0) return;
    detector.after(*plan_->steps()[s].node, call);
  }
  detector.finish();
  stream_.commit(commits_, fault_);
}

void Executable::run_profiled() {
  const bool stops = device_.uses_host_memory();
  const auto run_one = [&](size_t s) {
    if (!stops || fault_->node == 0) run_step(s, fault_);
  };
  // A device may record what it measures; a run that waits cannot be recorded.
  const size_t steps = plan_->steps().size();
  const std::vector<double> ends = plan_->waits() ? stream_.Stream::time(steps, run_one) : stream_.time(steps, run_one);
  if (stops && fault_->node != 0) return;
  stream_.commit(commits_, fault_);
  plan_->add_profile(ends);
}

void Executable::refuse(const Fault& found) const {
  const auto step = static_cast<size_t>(found.node - 1);
  const Prepared& prepared = plan_->prepared()[step];
  if (found.input == kLossInput) {
    fail_as(ErrorCode::kLossNotFinite, plan_->steps()[step].node->label(), ": the loss is ",
            found.value ? "NaN" : "infinite", "; no weight is changed: look at the inputs and the learning rate");
  }
  const std::string why = prepared.explain ? prepared.explain(found) : concat(found.value, " is out of range");
  fail_as(ErrorCode::kIndexOutOfRange, plan_->steps()[step].node->label(), ": ", why);
}

}  // namespace onnx_train
