// The plans of a session: one for each entry point, shapes of inputs, and sizes that a first run has found.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "onnx_passes/ir/equal_tensors.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/graph.h"
#include "onnx_passes/pipeline/kept_faults.h"
#include "runtime/plan/fitting_plan.h"
#include "runtime/plan/upload.h"
#include "runtime/session/session_runs.h"

namespace onnx_train {

std::unique_ptr<Plan> Session::compile(const EntryName& entry, GradientSums sums, Model flat,
                                       const std::map<std::string, Shape>& shapes, const FoundSizes& sizes) {
  std::optional<Model> first = std::move(flat);
  auto plan = keeping_faults(options_.plan.pipeline, [&](const PipelineOptions& pipeline) {
    PlanOptions plan_options = options_.plan;
    plan_options.sizes = sizes;
    plan_options.pipeline = pipeline;
    if (plan_options.detect_anomaly) plan_options.lowering.on = false;
    if (std::string& folder = plan_options.pipeline.dump_dir; !folder.empty()) folder += concat("/", entry);
    return plan_within(plan_options.memory, [&](size_t values) {
      Model model = first ? *std::exchange(first, std::nullopt) : plain(entry, sums, shapes, pipeline);
      plan_options.lowering.memory = values;
      return std::make_unique<Plan>(std::move(model), state_.names(), shapes, device_, plan_options);
    });
  });
  keep_choices();
  return plan;
}

void Session::keep_choices() {
  if (const std::string forms = choices_->text(); !forms.empty()) set_metadata(Choices::kMetadata, forms);
}

Session::CachedPlan& Session::make_plan(const EntryName& entry, GradientSums sums, Model flat,
                                        const std::map<std::string, Shape>& shapes, const FoundSizes& sizes) {
  auto cached = std::make_unique<CachedPlan>();
  cached->entry = entry;
  cached->sums = sums;
  std::unique_ptr<Plan> made = compile(entry, sums, std::move(flat), shapes, sizes);
  make_room(*made);
  cached->executable = std::make_unique<Executable>(std::move(made), device_, *stream_, fault_);
  Executable& executable = *cached->executable;
  if (refuses_non_finite_loss(entry)) executable.refuse_non_finite_loss();
  if (topology_.ranks() > 1) executable.wait_after_rehearsal([this] { wait_for_run(stream_->mark()); });
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

// Checks names and types, and that nothing is missing; the plan checks shapes. A state is not given.
void check_inputs(const std::vector<Value*>& declared, const EntryName& entry, const TensorMap& inputs,
                  const std::vector<std::string>& states) {
  for (const auto& [name, tensor] : inputs) {
    const auto has_name = [&, &wanted = name](const Value* value) { return value->name() == wanted; };
    const auto input = std::find_if(declared.begin(), declared.end(), has_name);
    if (input == declared.end() || std::ranges::count(states, name))
      fail_as(ErrorCode::kInputName, "entry point '", entry, "' has no input '", name, "'");
    if ((*input)->dtype() != tensor.dtype()) {
      fail_as(ErrorCode::kInputType, "entry point '", entry, "': input '", name, "' is ",
              onnx_train::name(tensor.dtype()), "; it must be ", onnx_train::name((*input)->dtype()));
    }
  }
  for (const Value* input : declared) {
    if (input->is_initializer() || inputs.count(input->name()) || std::ranges::count(states, input->name())) continue;
    fail_as(ErrorCode::kInputName, "entry point '", entry, "': the input '", input->name(), "', ",
            to_string(input->type()), ", is missing");
  }
}

// A step on no samples would still decay weights and moments.
void expect_samples(const std::vector<Value*>& declared, const EntryName& entry, const TensorMap& inputs) {
  if (entry != Entry::kStep && entry != Entry::kAccumulate) return;
  const Value* empty = nullptr;
  for (const Value* input : declared) {
    const auto given = inputs.find(input->name());
    if (input->is_initializer() || given == inputs.end()) continue;
    if (given->second.size() > 0) return;
    empty = input;
  }
  if (!empty) return;
  fail_as(ErrorCode::kInputShape, "the batch of entry point '", entry, "' is empty: '", empty->name(), "' is ",
          onnx_train::name(empty->dtype()), to_string(inputs.at(empty->name()).shape()));
}

}  // namespace

namespace {

// What `predict` needs to find the shapes of its outputs; an entry point that updates states runs once.
std::optional<std::vector<Tensor>> first_sizes(const EntryName& entry) {
  return entry == Entry::kPredict ? std::optional(std::vector<Tensor>()) : std::nullopt;
}

bool same_contents(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, are_same);
}

}  // namespace

Plan& Session::plan(const EntryName& entry, const std::map<std::string, Shape>& own) {
  const SessionThreads threads(options_.threads);
  const std::map<std::string, Shape> shapes = with_own_inputs(entry, own);
  const GradientSums sums = sums_of_plan(entry);
  for (auto& cached : plans_) {
    if (cached->entry != entry || cached->sums != sums) continue;
    const auto& ports = cached->plan().inputs();
    const bool same = std::all_of(ports.begin(), ports.end(), [&](const Port& port) {
      const auto given = shapes.find(port.name);
      return given != shapes.end() && given->second == port.shape;
    });
    if (same && ports.size() == shapes.size()) return cached->plan();
  }
  return make_plan(entry, sums, plain(entry, sums, shapes), shapes, first_sizes(entry)).plan();
}

void Session::drop_plans(const EntryName& entry) {
  std::erase_if(plans_, [&](const auto& cached) { return cached->entry == entry; });
}

std::unique_ptr<Plan> Session::planned(const EntryName& entry, const std::map<std::string, Shape>& shapes) {
  const SessionThreads threads(options_.threads);
  const std::map<std::string, Shape> all = with_own_inputs(entry, shapes);
  const GradientSums sums = sums_of_plan(entry);
  return compile(entry, sums, plain(entry, sums, all), all, first_sizes(entry));
}

PlannedMemory Session::planned_memory(const EntryName& entry, const std::map<std::string, Shape>& shapes) {
  const std::unique_ptr<Plan> plan = planned(entry, shapes);
  PlannedMemory memory{plan->arena_bytes(), copied_constants(*plan, device_), slot_bytes(*plan, device_), 0};
  for (const Port& port : plan->outputs()) memory.outputs += port.bytes;
  return memory;
}

Session::CachedPlan& Session::find_plan(const EntryName& entry, GradientSums sums, const TensorMap& inputs,
                                        const FoundSizes& sizes) {
  for (auto& candidate : plans_) {
    const Plan& plan = candidate->plan();
    const bool is_sized = same_contents(plan.found_sizes(), sizes ? *sizes : std::vector<Tensor>());
    if (candidate->entry != entry || candidate->sums != sums || !is_sized || (!sizes && plan.wanted_sizes() > 0))
      continue;
    if (matches(plan, inputs, &candidate->inputs)) return *candidate;
  }
  Model model = plain(entry, sums, shapes_of(inputs));
  check_inputs(model.graph->inputs(), entry, inputs, state_.names());
  expect_samples(model.graph->inputs(), entry, inputs);
  CachedPlan& made = make_plan(entry, sums, std::move(model), shapes_of(inputs), sizes);
  if (!matches(made.plan(), inputs, &made.inputs)) {
    fail_as(ErrorCode::kData, "entry point '", entry, "': an input has no value");
  }
  return made;
}

const TensorMap& Session::run(const EntryName& entry, const TensorMap& inputs, int64_t batches, bool ends_step) {
  if (!started_.empty()) fail_as(ErrorCode::kUsage, "a run of the session is started and not finished");
  const uint64_t drawn = drawn_[entry];
  for (FoundSizes sizes = first_sizes(entry);;) {
    drawn_[entry] = drawn;  // each of the runs draws the same numbers
    start(entry, inputs, batches, ends_step, sizes);
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

}  // namespace onnx_train
