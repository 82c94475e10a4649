#include "runtime/plan/plan.h"
#include "onnx_passes/distribution/order_collectives.h"

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include "kernels/collectives.h"
#include "kernels/cost.h"
#include "kernels/host.h"
#include "kernels/lowering/canonical/segments.h"
#include "kernels/lowering/pipeline.h"
#include "kernels/registry.h"
#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/import/declared_shapes.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/plan/placement.h"
#include "runtime/plan/subplans.h"

namespace onnx_train {

namespace {

Port make_port(const Value& value, const std::string& name) {
  const Shape shape = value.type().shape();
  return {name, value.dtype(), shape, static_cast<size_t>(num_elements(shape)) * size_of(value.dtype())};
}

bool are_static(const std::vector<Value*>& values) {
  return std::all_of(values.begin(), values.end(), [](const Value* v) { return !v || v->type().is_static(); });
}

// Throws an error that names the first node with an output size that depends on data.
void expect_sizes(const Graph& graph) {
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (!are_static(node->inputs()) || are_static(node->outputs())) continue;
    const std::vector<Value*> sizes = computed_sizes(*node);
    for (const Value* output : graph.outputs()) {  // why the plan was not cut
      if (sizes.empty() || output->type().is_static()) continue;
      throw NoPlan(concat("[Plan] the shape of output '", output->name(), "' (", to_string(output->type()),
                          ") depends on data, of '", sizes[0]->name(),
                          "', and an output needs one shape; pad it, or end the model before it (--cut)"));
    }
    throw NoPlan(concat(
        "[Plan] ", node->label(), ": the size of its output ", to_string(node->output()->type()),
        " depends on data, and a plan needs it; compute it outside of the model, or write it in operators whose sizes "
        "follow from those of their inputs"));
  }
}

// Throws an error that names the operators without any kernel on the device, before errors about shapes that they leave
// open. Operators with a function body that could not be inlined are excluded: these lack a shape.
void expect_operators(const Graph& graph, const Device& device) {
  std::vector<const Node*> missing;
  for (const Node* node = graph.first(); node; node = node->next()) {
    const bool known = !device.kernels().rows(node->domain(), node->op()).empty() || has_function_body(*node) ||
                       find_subplan_kernel(device, *node);
    if (!known) missing.push_back(node);
  }
  if (missing.empty()) return;
  // A Scan has no kernel where its number of steps is not known when the plan is made.
  if (std::ranges::all_of(missing, [](const Node* node) { return node->is("Scan"); })) expect_sizes(graph);
  throw NoPlan(concat("[Plan] ", device.name(), " has no kernel for the ", list_operators(missing), "; ",
                      replacement_advice(*missing[0])),
               ErrorCode::kNoKernel);
}

// Throws an error if an output exceeds the device's memory, before a kernel builds tables for it.
void expect_room(const Node& node, const Device& device) {
  for (const Value* output : node.outputs()) {
    if (!output || output->dtype() == DType::kString) continue;
    constexpr size_t kSmall = size_t{1} << 28;  // bytes; smaller outputs need no query
    const auto count = static_cast<size_t>(num_elements(output->type().shape()));
    const size_t size = size_of(output->dtype());
    if (count <= kSmall / size) continue;
    const size_t available = device.available_bytes();
    if (count <= available / size) continue;
    fail_as(ErrorCode::kOutOfMemory, "[Plan] ", node.label(), ": its output '", output->name(), "' is ",
            to_string(output->type()), ", more than the ", available, " bytes that ", device.name(),
            " has left; use a smaller batch");
  }
}

}  // namespace

Plan::Plan(Model entry, const std::vector<std::string>& states, const std::map<std::string, Shape>& shapes,
           Device& device, const PlanOptions& options)
    : model_(std::move(entry)),
      device_(device),
      state_names_(states),
      guarded_(options.check_memory),
      detects_anomaly_(options.detect_anomaly),
      replays_(options.lowering.takes(kReplay)) {
  const DeviceScope scope(device);
  lower(options, shapes);
  select_kernels(options);
  replays_ = replays_ && !waits_;
  place(options);
}

bool Plan::scales_loss() const {
  const auto& outputs = model_.graph->outputs();
  return std::any_of(outputs.begin(), outputs.end(), [](const Value* v) { return v->has_role(roles::kLossScale); });
}

void Plan::lower(const PlanOptions& options, const std::map<std::string, Shape>& shapes) {
  Graph& graph = *model_.graph;
  const DeclaredFacts declared(model_);
  const auto lowering =
      std::make_shared<Lowering>(Lowering{device_, device_.lowering(), options.lowering, options.arithmetic});
  lowering->inputs = PlanInputs{{state_names_.begin(), state_names_.end()}, shapes};
  const PlanInputs& given = *lowering->inputs;
  if (options.sizes) lowering->output_sizes = OutputSizes{*options.sizes};
  std::vector<Pass> passes = lowering_passes(lowering);
  // This pass infers all shapes. A wrong declaration may make it fail with another error, so declarations are
  // checked in both cases.
  Pass& first_inference = *std::ranges::find(passes, "fold_constants", &Pass::name);
  first_inference.run = [&, infer = first_inference.run](Model& model) {
    try {
      const bool changed = infer(model);
      declared.expect(*model.graph, given.sizes);
      return changed;
    } catch (const Error&) {
      declared.expect(*model.graph, given.sizes);
      throw;
    }
  };
  passes_ = run_pipeline(passes, &model_, options.pipeline);
  recomputation_ = std::move(lowering->recomputation);
  if (lowering->output_sizes) output_sizes_ = std::move(*lowering->output_sizes);
  expect_operators(graph, device_);
  expect_sizes(graph);
  const auto is_state = [&](const std::string& name) { return given.states.contains(name); };
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

void Plan::select_kernels(const PlanOptions& options) {
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
    Collectives* const ranks =
        options.collectives ? options.collectives->along(node->attr(kMeshAxis, "")) : options.collectives;
    const NodeSpec spec(*node, std::move(known), num_threads(), options.arithmetic, ranks, options.choices);
    const Kernel* calls = typed ? find_subplan_kernel(device_, *node) : nullptr;
    const Kernel* kernel = calls ? calls : typed ? find_kernel(device_, spec) : nullptr;
    if (!kernel) {
      ++count;
      missing += concat(count > 1 ? "; " : "", node->label(), typed ? "" : ": a shape is not known", " with");
      for (const Value* input : node->inputs()) missing += " " + (input ? to_string(input->type()) : std::string("-"));
      continue;
    }
    expect_room(*node, device_);
    waits_ = waits_ || (calls && waits_for_device(*node));
    steps_.push_back({node, kernel});
    for (const auto& [dtype, flops] : cost_of(*node).flops) operations_[dtype] += flops;
    prepared_.push_back(calls ? prepare_subplans(*node, device_, options) : prepare(*kernel, spec));
  }
  if (count > 0) {
    fail_as(ErrorCode::kNoKernel, "[Plan] ", device_.name(), " has no kernel for ", count,
            count == 1 ? " node: " : " nodes: ", missing);
  }
}

void Plan::place(const PlanOptions& options) {
  placement_ = place_values(*model_.graph, steps_, prepared_, states_, device_.piece_alignment(), options.lowering);
  memory_ = plan_memory(placement_.ranges, device_.alignment());
  // Removes steps whose results are already in place.
  std::vector<int> number(steps_.size() + 1);  // new number of each step
  size_t kept = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    number[s] = static_cast<int>(kept);
    if (placement_.skipped[s]) continue;
    if (placement_.workspace_of[s] != kNoBuffer) workspace_bytes_ = std::max(workspace_bytes_, prepared_[s].workspace);
    placement_.workspace_of[kept] = placement_.workspace_of[s];
    if (kept != s) {
      steps_[kept] = steps_[s];
      prepared_[kept] = std::move(prepared_[s]);
    }
    ++kept;
  }
  number.back() = static_cast<int>(kept);
  steps_.resize(kept);
  prepared_.resize(kept);
  placement_.workspace_of.resize(kept);
  placement_.skipped.assign(kept, false);
  for (LiveRange& range : placement_.ranges) {
    range.first = number[static_cast<size_t>(range.first)];
    range.last = number[static_cast<size_t>(range.last)];
  }
  for (const Buffer& buffer : placement_.buffers) {
    if (buffer.kind == Buffer::kConstant) constant_bytes_ += align_up(buffer.bytes, device_.alignment());
  }
}

void Plan::set_profiling(bool on) {
  profiling_ = on;
  if (!on) return;
  profiled_runs_ = 0;
  for (PlanStep& step : steps_) step.milliseconds = step.last_start = step.last_milliseconds = 0;
}

void Plan::add_profile(const std::vector<double>& ends) {
  double start = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    steps_[s].last_start = start;
    steps_[s].last_milliseconds = ends[s] - start;
    steps_[s].milliseconds += steps_[s].last_milliseconds;
    start = ends[s];
  }
  ++profiled_runs_;
}

}  // namespace onnx_train
