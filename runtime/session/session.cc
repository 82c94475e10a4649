#include "runtime/session/session.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "kernels/collectives.h"
#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/training/streamed_states.h"
#include "runtime/plan/upload.h"
#include "runtime/session/session_runs.h"

namespace onnx_train {

namespace {

void for_each_state(const Model& model, const std::function<void(Value*)>& f) {
  for (const EntryPoint& point : model.entry_points) {
    for (const Binding& binding : point.update_bindings) f(binding.state);
    for (const Binding& binding : point.initialization_bindings) f(binding.state);
  }
}

}  // namespace

Session::Session(Model model, const SessionOptions& options)
    : model_(std::move(model)),
      device_(options.device ? *options.device : default_device()),
      stream_(device_.make_stream()),
      options_(options),
      choices_(std::make_unique<Choices>(model_.metadata(Choices::kMetadata))),
      topology_(model_, options.topology),
      state_(&model_, device_, *stream_, memory_of_states(),
             [this](const std::string& name) { return topology_.part_of(name); }) {
  if (!options_.plans_only) options_.plan.choices = choices_.get();
  set_new_choices(Choices::New::kTimed);
  options_.plan.collectives = topology_.collectives_of_plans();
  // The body of AllReduce would be one rank's.
  if (topology_.ranks() > 1 && device_.kernels().rows(kDomain, "AllReduce").empty())
    fail_as(ErrorCode::kUsage, "several ranks train on the CPU and on CUDA, not on ", device_.name());
  connect_device();
  assign_roles(&model_);
  align_contents(&model_);
  fault_ = static_cast<Fault*>(device_.allocate(sizeof(Fault)));
}

std::function<StateMemory(const std::string&)> Session::memory_of_states() const {
  std::set<std::string> on_host;
  if (options_.offload == Offload::kOptimizer) {
    if (device_.uses_host_memory())
      fail_as(ErrorCode::kUsage, "offload moves the optimizer's states from a GPU's memory to the host's, where ",
              device_.name(), " has them; leave it out");
    on_host = streamed_states(model_);
  }
  return [this, on_host = std::move(on_host)](const std::string& name) {
    if (options_.plans_only || !topology_.has_state(name)) return StateMemory::kNone;
    return on_host.contains(name) ? StateMemory::kHost : StateMemory::kDevice;
  };
}

Session::~Session() {
  abandon_runs();
  plans_.clear();
  if (arena_) device_.free(arena_);
  device_.free(fault_);
}

std::map<std::string, Shape> shapes_of(const TensorMap& tensors) {
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : tensors) shapes[name] = tensor.shape();
  return shapes;
}

bool Session::has_entry(const EntryName& entry) const {
  return entry == Entry::kPredict || model_.find_entry_point(entry) != nullptr;
}

const std::string* Session::output_name(const EntryName& entry, std::string_view role) const {
  const EntryPoint* point = model_.find_entry_point(entry);
  const Value* output = point ? point->output(role) : nullptr;
  return output ? &output->name() : nullptr;
}

std::string Session::metric_name(const EntryName& entry, const std::string& output) const {
  const EntryPoint* point = model_.find_entry_point(entry);
  for (const Value* value : point ? point->algorithm->outputs() : std::vector<Value*>()) {
    if (value->name() == output && value->role()) return value->role()->name;
  }
  return output;
}

namespace {

// Refuses rates of a step that would write NaN into every weight, or climb. Those on devices are not looked at.
void check_rates(const EntryPoint& point, const TensorMap& inputs) {
  for (const auto& [role, may_be_infinite] : {std::pair{roles::kLearningRate, false}, {roles::kClipNorm, true}}) {
    const Value* input = point.input(role);
    const auto given = input ? inputs.find(input->name()) : inputs.end();
    if (given == inputs.end() || given->second.is_on_device() || given->second.size() != 1) continue;
    const double rate = given->second.at(0);
    if (rate >= 0 && (may_be_infinite || std::isfinite(rate))) continue;
    fail_as(ErrorCode::kUsage, "entry point '", point.name(), "': ", input->name(), " is ", rate,
            "; it must be a number that is not negative");
  }
}

}  // namespace

void Session::start(const EntryName& entry, const TensorMap& inputs, int64_t batches, bool ends_step) {
  start(entry, inputs, batches, ends_step, std::nullopt);
}

void Session::start(const EntryName& entry, const TensorMap& given, int64_t batches, bool ends_step,
                    const FoundSizes& sizes) {
  if (batches == 0) batches = topology_.batches_at_once();
  const SessionThreads threads(options_.threads);
  TensorMap own = own_inputs(entry, topology_.is_staged(entry) ? count_micro_batches(shapes_of(given)) : 1, batches);
  if (!own.empty()) own.insert(given.begin(), given.end());
  const TensorMap& inputs = own.empty() ? given : own;
  if (topology_.shares_batches() && entry == Entry::kStep) {
    fail_as(ErrorCode::kNeedsAccumulate,
            "ranks share out the batches of a step, and 'step' is one batch; build the model with accumulate, and run "
            "'accumulate' and 'apply'");
  }
  if (const EntryPoint* point = model_.find_entry_point(entry)) check_rates(*point, inputs);
  const GradientSums sums = topology_.sums_of(entry, ends_step, has_own_sums_);
  CachedPlan& cached = find_plan(entry, sums, inputs, sizes);
  cached.last_used = ++clock_;
  Executable& executable = *cached.executable;
  Collectives* const ranks = topology_.collectives();
  if (executable.plan().arena_bytes() > arena_bytes_) make_room(executable.plan());
  Run& run = cached.free_run();
  const std::vector<const Tensor*>& tensors = cached.inputs;
  const bool on_device = std::any_of(tensors.begin(), tensors.end(), [](const Tensor* t) { return t->is_on_device(); });
  try {
    for (size_t i = 0; i < tensors.size(); ++i) executable.set_input(i, *tensors[i]);
    if (on_device) inputs_read_ = stream_->mark();
    executable.run(run.ports, &run.fault);
    if (ranks) ranks->drain();  // a fault has left some under way
    run.mark = stream_->mark();
  } catch (...) {
    if (ranks) ranks->drain();
    if (on_device) stream_->synchronize();  // the caller may free them
    throw;
  }
  if (entry == Entry::kAccumulate || entry == Entry::kApply) has_own_sums_ = sums == GradientSums::kOwn;
  run.is_started = true;
  started_.push_back(&run);
  drawn_[entry] += topology_.shares(entry) ? static_cast<uint64_t>(batches) : 1;
}

bool Session::refuses_non_finite_loss(const EntryName& entry) const {
  const EntryPoint* point = model_.find_entry_point(entry);
  return options_.refuse_non_finite_loss && point && !point->update_bindings.empty() &&
         !point->output(roles::kLossScale) && point->output(roles::kLoss);
}

const TensorMap& Session::finish() {
  if (started_.empty()) fail_as(ErrorCode::kUsage, "no run of the session is started");
  const Run& run = *started_.front();
  try {
    wait_for_run(run.mark);
    if (run.fault.node != 0) run.plan->executable->refuse(run.fault);
    if (!device_.uses_host_memory() && refuses_non_finite_loss(run.plan->entry)) {
      const double loss = run.outputs.at(*output_name(run.plan->entry, roles::kLoss)).at(0);
      if (!std::isfinite(loss)) {
        fail_as(ErrorCode::kLossNotFinite, "the loss is ", std::isnan(loss) ? "NaN" : "infinite",
                "; the weights have been updated with it: load a checkpoint");
      }
    }
    // Weights are updated while the gradients of others are computed, so that the norm is known too late for them.
    const std::string* norm =
        refuses_non_finite_loss(run.plan->entry) ? output_name(run.plan->entry, roles::kGradNorm) : nullptr;
    const double size = norm ? run.outputs.at(*norm).at(0) : 0;
    if (!std::isfinite(size)) {
      fail_as(ErrorCode::kLossNotFinite, "the norm of the gradients is ", std::isnan(size) ? "NaN" : "infinite",
              ", though the loss is finite; the weights have been updated with them: load a checkpoint");
    }
  } catch (...) {
    abandon_runs();
    throw;
  }
  started_.front()->is_started = false;
  started_.pop_front();
  operations_ = &run.plan->executable->plan().operations();
  return run.outputs;
}

void Session::wait_for_inputs() { stream_->wait(inputs_read_); }

// Waits for all enqueued work, also if it fails. Afterwards the session is as if the runs had not been started.
void Session::abandon_runs() noexcept {
  const auto attempt = [](const auto& work) {
    try {
      work();
    } catch (const std::exception&) {
      // Whoever waits for the work that failed reports it.
    }
  };
  attempt([&] { wait_for_run(stream_->mark()); });
  attempt([&] {
    constexpr Fault no_fault;
    stream_->copy_from_host(fault_, &no_fault, sizeof(Fault));
    stream_->synchronize();
  });
  for (Run* run : started_) run->is_started = false;
  started_.clear();
}

void Session::initialize(uint64_t seed) {
  TensorMap inputs;
  for (const EntryPoint& entry : model_.entry_points) {
    for (const Value* value : entry.initialization->initializers()) {
      if (value->has_role(roles::kSeed)) inputs[value->name()] = Tensor::scalar<uint64_t>(seed);
    }
  }
  run(Entry::kInitialize, inputs);
}

Tensor Session::contents(const std::string& name) const {
  if (state_.contains(name)) return state_.get(name);
  for (const EntryPoint& entry : model_.entry_points) {
    const Value* value = entry.algorithm->find(name);  // in one of the two graphs
    if (value && value->is_initializer()) return contents_of(*value);
  }
  fail("the model has no initializer '", name, "'");
}

Model Session::snapshot() const {
  Model copy = clone(model_);
  for_each_state(copy, [&](Value* state) { state->graph().set_initializer(state, state_.get(state->name())); });
  return copy;
}

}  // namespace onnx_train
