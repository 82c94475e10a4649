#include "runtime/session.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "kernels/collectives.h"
#include "kernels/host.h"
#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/training/streamed_states.h"
#include "runtime/plan/fitting_plan.h"
#include "runtime/plan/upload.h"

namespace onnx_train {

// A run and the memory of its outputs. Its plan owns it, and is not evicted while the run is started.
struct Session::Run {
  CachedPlan* plan;
  TensorMap outputs;  // by name; the tensors of `ports`
  std::vector<Tensor> ports;
  Fault fault;
  int64_t mark = 0;
  bool is_started = false;
};

struct Session::CachedPlan {
  std::string entry;
  std::unique_ptr<Executable> executable;
  std::vector<const Tensor*> inputs;
  std::vector<std::unique_ptr<Run>> runs;  // as many as have been started at the same time

  Plan& plan() const { return executable->plan(); }
  bool has_started() const {
    return std::any_of(runs.begin(), runs.end(), [](const auto& run) { return run->is_started; });
  }
  Run& free_run() {
    for (const auto& run : runs) {
      if (!run->is_started) return *run;
    }
    auto run = std::make_unique<Run>();
    run->plan = this;
    for (const Port& port : plan().outputs()) {
      run->ports.emplace_back(port.dtype, port.shape);
      run->outputs.emplace(port.name, run->ports.back());
    }
    runs.push_back(std::move(run));
    return *runs.back();
  }

  uint64_t last_used = 0;
};

namespace {

// Sets the session's number of threads while the object lives.
class Threads {
 public:
  explicit Threads(int threads) : before_(num_threads()) { set_num_threads(threads > 0 ? threads : default_threads()); }
  ~Threads() { set_num_threads(before_); }
  Threads(const Threads&) = delete;

 private:
  int before_;
};

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
      pipeline_(options.stages > 1 && options.collectives ? pipeline_of(options.collectives, options.stages) : nullptr),
      owners_(owners_of_states(model_, options_, ranks())),
      state_(&model_, device_, *stream_, memory_of_states()),
      active_ranks_(ranks()) {
  options_.plan.collectives = pipeline_ ? pipeline_.get() : options_.collectives;
  // The body of AllReduce would be one rank's.
  if (ranks() > 1 && device_.kernels().rows(kDomain, "AllReduce").empty())
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
    if (options_.plans_only || !has_state(name)) return StateMemory::kNone;
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

bool Session::has_entry(const std::string& entry) const {
  if (entry == "predict") return true;
  const auto& entries = model_.entry_points;
  return std::any_of(entries.begin(), entries.end(), [&](const EntryPoint& e) { return e.name() == entry; });
}

const std::string* Session::output_name(const std::string& entry, std::string_view role) const {
  const EntryPoint* point = model_.find_entry_point(entry);
  const Value* output = point ? point->output(role) : nullptr;
  return output ? &output->name() : nullptr;
}

std::string Session::metric_name(const std::string& entry, const std::string& output) const {
  const EntryPoint* point = model_.find_entry_point(entry);
  for (const Value* value : point ? point->algorithm->outputs() : std::vector<Value*>()) {
    if (value->name() == output && value->role()) return value->role()->name;
  }
  return output;
}

namespace {

// In `predict`, weights that other entry points train are initializers; makes them read the state instead.
void read_from_state(Model* model, const StateStore& states) {
  for (Value* value : std::vector<Value*>(model->graph->initializers())) {
    if (states.contains(value->name()) && !model->graph->is_input(value)) {
      model->graph->add_input(value->name(), value->type());
    }
  }
}

}  // namespace

std::unique_ptr<Plan> Session::compile(const std::string& entry, Model flat, const std::map<std::string, Shape>& shapes,
                                       const FoundSizes& sizes) {
  PlanOptions plan_options = options_.plan;
  plan_options.sizes = sizes;
  if (plan_options.detect_anomaly) plan_options.lowering.on = false;
  if (std::string& folder = plan_options.pipeline.dump_dir; !folder.empty()) folder += "/" + entry;
  std::optional<Model> first = std::move(flat);
  return plan_within(plan_options.memory, [&](size_t values) {
    Model model = first ? *std::exchange(first, std::nullopt) : plain(entry, shapes);
    read_from_state(&model, state_);
    plan_options.lowering.memory = values;
    return std::make_unique<Plan>(std::move(model), state_.names(), shapes, device_, plan_options);
  });
}

Session::CachedPlan& Session::make_plan(const std::string& entry, Model flat,
                                        const std::map<std::string, Shape>& shapes, const FoundSizes& sizes) {
  auto cached = std::make_unique<CachedPlan>();
  cached->entry = entry;
  std::unique_ptr<Plan> made = compile(entry, std::move(flat), shapes, sizes);
  make_room(*made);
  cached->executable = std::make_unique<Executable>(std::move(made), device_, *stream_, fault_);
  Executable& executable = *cached->executable;
  if (refuses_non_finite_loss(entry)) executable.refuse_non_finite_loss();
  if (ranks() > 1) executable.wait_after_rehearsal([this] { wait_for_run(stream_->mark()); });
  const Plan& plan = executable.plan();
  cached->inputs.resize(plan.inputs().size());
  for (size_t i = 0; i < plan.states().size(); ++i) {
    executable.bind_state(i, state_.data(state_.index(plan.states()[i].name)));
  }
  executable.bind_arena(arena_);
  if (plans_.size() >= options_.max_plans) {
    const auto oldest = std::min_element(plans_.begin(), plans_.end(), [](const auto& a, const auto& b) {
      return std::pair(a->has_started(), a->last_used) < std::pair(b->has_started(), b->last_used);
    });
    if (!(*oldest)->has_started()) plans_.erase(oldest);
  }
  plans_.push_back(std::move(cached));
  return *plans_.back();
}

// Checks that there is enough memory for the plan and enlarges the arena if necessary. The old arena is freed first,
// because both would not fit. If the allocation fails the session has no arena, and the next run of any plan allocates
// one.
void Session::make_room(const Plan& plan) {
  size_t needed = plan.arena_bytes() > arena_bytes_ ? plan.arena_bytes() : 0;
  const size_t freed = needed > 0 ? arena_bytes_ : 0;
  for (const Port& port : plan.outputs()) needed += port.bytes;
  const size_t available = device_.available_bytes();
  check_available(plan, needed, available > SIZE_MAX - freed ? SIZE_MAX : available + freed);
  if (plan.arena_bytes() <= arena_bytes_) return;
  wait_for_run(stream_->mark());  // started runs use the old arena
  arena_bytes_ = 0;
  if (arena_) device_.free(std::exchange(arena_, nullptr));
  arena_ = device_.allocate(plan.arena_bytes());
  arena_bytes_ = plan.arena_bytes();
  for (auto& other : plans_) other->executable->bind_arena(arena_);
}

namespace {

// The plan's inputs; returns false if other inputs are given or one has another shape: the plan is valid for these
// defaults only.
bool matches(const Plan& plan, const TensorMap& inputs, std::vector<const Tensor*>* found) {
  if (inputs.size() != plan.inputs().size()) return false;
  for (size_t i = 0; i < plan.inputs().size(); ++i) {
    const Port& port = plan.inputs()[i];
    const auto given = inputs.find(port.name);
    if (given == inputs.end()) return false;
    if (given->second.shape() != port.shape || given->second.dtype() != port.dtype) return false;
    (*found)[i] = &given->second;
  }
  return true;
}

// Checks names and types, and that nothing is missing; the plan checks shapes.
void check_inputs(const std::vector<Value*>& declared, const std::string& entry, const TensorMap& inputs,
                  const std::vector<std::string>& states) {
  for (const auto& [name, tensor] : inputs) {
    const auto has_name = [&, &wanted = name](const Value* value) { return value->name() == wanted; };
    const auto input = std::find_if(declared.begin(), declared.end(), has_name);
    if (input == declared.end()) fail_as(ErrorCode::kData, "entry point '", entry, "' has no input '", name, "'");
    if ((*input)->dtype() != tensor.dtype()) {
      fail_as(ErrorCode::kData, "entry point '", entry, "': input '", name, "' is ", onnx_train::name(tensor.dtype()),
              "; it must be ", onnx_train::name((*input)->dtype()));
    }
  }
  for (const Value* input : declared) {
    if (input->is_initializer() || inputs.count(input->name()) || std::ranges::count(states, input->name())) continue;
    fail_as(ErrorCode::kData, "entry point '", entry, "': the input '", input->name(), "', ", to_string(input->type()),
            ", is missing");
  }
}

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

namespace {

// What `predict` needs to find the shapes of its outputs; an entry point that updates states runs once.
std::optional<std::vector<Tensor>> first_sizes(const std::string& entry) {
  return entry == "predict" ? std::optional(std::vector<Tensor>()) : std::nullopt;
}

bool same_contents(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) {
    return x.dtype() == y.dtype() && x.shape() == y.shape() &&
           (x.bytes() == 0 || std::memcmp(x.data(), y.data(), x.bytes()) == 0);
  });
}

}  // namespace

Plan& Session::plan(const std::string& entry, const std::map<std::string, Shape>& own) {
  const Threads threads(options_.threads);
  const std::map<std::string, Shape> shapes = with_own_inputs(entry, own);
  for (auto& cached : plans_) {
    if (cached->entry != entry) continue;
    const auto& ports = cached->plan().inputs();
    const bool same = std::all_of(ports.begin(), ports.end(), [&](const Port& port) {
      const auto given = shapes.find(port.name);
      return given != shapes.end() && given->second == port.shape;
    });
    if (same && ports.size() == shapes.size()) return cached->plan();
  }
  return make_plan(entry, plain(entry, shapes), shapes, first_sizes(entry)).plan();
}

std::unique_ptr<Plan> Session::planned(const std::string& entry, const std::map<std::string, Shape>& shapes) {
  const Threads threads(options_.threads);
  const std::map<std::string, Shape> all = with_own_inputs(entry, shapes);
  return compile(entry, plain(entry, all), all, first_sizes(entry));
}

PlannedMemory Session::planned_memory(const std::string& entry, const std::map<std::string, Shape>& shapes) {
  const std::unique_ptr<Plan> plan = planned(entry, shapes);
  PlannedMemory memory{plan->arena_bytes(), copied_constants(*plan, device_), slot_bytes(*plan, device_), 0};
  for (const Port& port : plan->outputs()) memory.outputs += port.bytes;
  return memory;
}

Session::CachedPlan& Session::find_plan(const std::string& entry, const TensorMap& inputs, const FoundSizes& sizes) {
  for (auto& candidate : plans_) {
    const Plan& plan = candidate->plan();
    const bool is_sized = same_contents(plan.found_sizes(), sizes ? *sizes : std::vector<Tensor>());
    if (candidate->entry != entry || !is_sized || (!sizes && plan.wanted_sizes() > 0)) continue;
    if (matches(plan, inputs, &candidate->inputs)) return *candidate;
  }
  Model model = plain(entry, shapes_of(inputs));
  check_inputs(model.graph->inputs(), entry, inputs, state_.names());
  CachedPlan& made = make_plan(entry, std::move(model), shapes_of(inputs), sizes);
  if (!matches(made.plan(), inputs, &made.inputs)) {
    fail_as(ErrorCode::kData, "entry point '", entry, "': an input has no value");
  }
  return made;
}

void Session::start(const std::string& entry, const TensorMap& inputs) { start(entry, inputs, std::nullopt); }

void Session::start(const std::string& entry, const TensorMap& given, const FoundSizes& sizes) {
  const Threads threads(options_.threads);
  TensorMap own = own_inputs(entry, is_staged(entry) ? count_micro_batches(shapes_of(given)) : 1);
  if (!own.empty()) own.insert(given.begin(), given.end());
  const TensorMap& inputs = own.empty() ? given : own;
  if (ranks() > 1 && entry == "step") {
    fail_as(ErrorCode::kUsage,
            "ranks share out the batches of a step, and 'step' is one batch; build the model with accumulate, and run "
            "'accumulate' and 'apply'");
  }
  if (const EntryPoint* point = model_.find_entry_point(entry)) check_rates(*point, inputs);
  CachedPlan& cached = find_plan(entry, inputs, sizes);
  cached.last_used = ++clock_;
  Executable& executable = *cached.executable;
  if (executable.plan().arena_bytes() > arena_bytes_) make_room(executable.plan());
  Run& run = cached.free_run();
  const std::vector<const Tensor*>& tensors = cached.inputs;
  const bool on_device = std::any_of(tensors.begin(), tensors.end(), [](const Tensor* t) { return t->is_on_device(); });
  try {
    for (size_t i = 0; i < tensors.size(); ++i) executable.set_input(i, *tensors[i]);
    if (on_device) inputs_read_ = stream_->mark();
    executable.run(run.ports, &run.fault);
    if (collectives()) collectives()->drain();  // a fault has left some under way
    run.mark = stream_->mark();
  } catch (...) {
    if (collectives()) collectives()->drain();
    if (on_device) stream_->synchronize();  // the caller may free them
    throw;
  }
  run.is_started = true;
  started_.push_back(&run);
  drawn_[entry] += is_shared(entry) ? static_cast<uint64_t>(active_ranks_) : 1;
}

bool Session::refuses_non_finite_loss(const std::string& entry) const {
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
        fail_as(ErrorCode::kData, "the loss is ", std::isnan(loss) ? "NaN" : "infinite",
                "; the weights have been updated with it: load a checkpoint");
      }
    }
    // Weights are updated while the gradients of others are computed, so that the norm is known too late for them.
    const std::string* norm =
        refuses_non_finite_loss(run.plan->entry) ? output_name(run.plan->entry, roles::kGradNorm) : nullptr;
    const double size = norm ? run.outputs.at(*norm).at(0) : 0;
    if (!std::isfinite(size)) {
      fail_as(ErrorCode::kData, "the norm of the gradients is ", std::isnan(size) ? "NaN" : "infinite",
              ", though the loss is finite; the weights have been updated with them: load a checkpoint");
    }
  } catch (...) {
    abandon_runs();
    throw;
  }
  started_.front()->is_started = false;
  started_.pop_front();
  return run.outputs;
}

void Session::wait_for_inputs() { stream_->wait(inputs_read_); }

const TensorMap& Session::run(const std::string& entry, const TensorMap& inputs) {
  if (!started_.empty()) fail_as(ErrorCode::kUsage, "a run of the session is started and not finished");
  for (FoundSizes sizes = first_sizes(entry);;) {
    start(entry, inputs, sizes);
    const Run& run = *started_.front();
    const TensorMap& outputs = finish();
    const Plan& plan = run.plan->plan();
    if (plan.wanted_sizes() == 0) return outputs;
    for (const Value* output : model_.graph->outputs()) {
      if (!outputs.contains(output->name())) sized_by_data_.insert(output->name());
    }
    for (size_t i = run.ports.size() - plan.wanted_sizes(); i < run.ports.size(); ++i)
      sizes->push_back(run.ports[i].clone());
  }
}

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
  run("initialize", inputs);
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
