#include "runtime/models/trial.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "kernels/device.h"
#include "kernels/registry.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/import/sizes.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/probabilities.h"
#include "onnx_passes/text/expression.h"
#include "onnx_passes/training/body_draws.h"
#include "runtime/data/dataset.h"
#include "runtime/models/example_inputs.h"
#include "runtime/models/size_search.h"
#include "runtime/plan/entry_passes.h"
#include "runtime/plan/plan.h"

namespace onnx_train {
namespace {

// ---- Build

// Every node without a gradient between the weights and the loss, which the model has by now.
std::vector<Hindrance> missing_gradients(Model* model, const BuildOptions& options) {
  const EntryPoint& step = *model->find_entry_point(Entry::kStep);
  std::vector<Hindrance> found;
  const Value* loss = step.algorithm->outputs().at(0);
  for (const Obstacle& o : find_obstacles(loss, select_trainable(*model, options.train, options.freeze)))
    found.push_back({o.node->label(), o.reason, o.way_out, false, ErrorCode::kNoGradient});
  return found;
}

std::vector<Hindrance> build(Model* model, const BuildOptions& options) {
  const std::vector<Pass> passes = training_passes(options);
  const auto gradients = std::ranges::find(passes, "gradients", &Pass::name);
  const PipelineOptions pipeline = options.pipeline.of_trial();
  try {
    run_pipeline({passes.begin(), gradients}, model, pipeline);
    if (auto missing = missing_gradients(model, options); !missing.empty()) return missing;
    run_pipeline({gradients, passes.end()}, model, pipeline);
  } catch (const PassFault&) {  // no obstacle of the model
    throw;
  } catch (const Error& error) {
    return {{"build", error.what(), "", false, error.code()}};
  }
  return {};
}

// ---- Plan

void plan(const EntryName& entry, Model flat, const std::vector<std::string>& states,
          std::map<std::string, Shape> shapes, Device& device, const PipelineOptions& pipeline) {
  if (draw_from_input(flat.graph.get())) shapes[kRandomKeyInput] = {2};
  read_states(flat.graph.get(), states);
  PlanOptions options;
  options.pipeline = pipeline.of_trial();
  options.lowering.on = false;  // what runs at all is the same, and found sooner
  if (entry == Entry::kPredict) options.sizes.emplace();
  const Plan made(std::move(flat), states, shapes, device, options);
}

// What is wrong with the first entry point that has no plan for these sizes.
std::optional<Hindrance> find_misfit(const Model& model, const std::vector<std::string>& sizes, Device& device,
                                     const PipelineOptions& pipeline) {
  if (!can_run_models(device)) return std::nullopt;
  std::vector<EntryName> entries;
  for (const EntryPoint& entry : model.entry_points) {
    if (!entry.is(Entry::kEvaluate)) entries.push_back(entry.name());  // a part of the step
  }
  entries.emplace_back(Entry::kPredict);
  for (const EntryName& entry : entries) {
    try {
      Model flat = flatten(model, entry);
      const std::vector<InputSpec> inputs = entry_inputs(model, entry, flat);
      const auto shapes = example_shapes(inputs, kTrialBatch, sizes_of(inputs, sizes));
      plan(entry, std::move(flat), state_of(model, entry), shapes, device, pipeline);
    } catch (const PassFault&) {
      throw;
    } catch (const Error& error) {
      const bool always = dynamic_cast<const NoPlan*>(&error);
      return Hindrance{concat("the plan of '", entry, "'"), error.what(), "", always, error.code()};
    }
  }
  return std::nullopt;
}

// One attempt: whether the sizes fit, or why not.
using Attempt = std::function<std::vector<Hindrance>(const std::vector<std::string>& sizes)>;

// Attempts the candidates in order until one fits.
Trial search(const std::vector<std::vector<std::string>>& candidates, const Attempt& attempt) {
  Trial trial;
  for (const std::vector<std::string>& sizes : candidates) {
    const std::vector<Hindrance> obstacles = attempt(sizes);
    if (obstacles.empty()) {
      trial.obstacles.clear();
      trial.sizes = sizes;
      return trial;
    }
    if (trial.obstacles.empty()) {
      trial.obstacles = obstacles;
      trial.unfit = in_one_sentence(obstacles);
    }
    if (obstacles[0].for_all_sizes) return trial;
  }
  if (candidates.size() > 1 && trial.obstacles[0].way_out.empty()) {
    trial.obstacles[0].way_out =
        concat("tried ", describe_sizes(candidates), "; if others are right, give them: --dim NAME=N");
  }
  return trial;
}

size_t num_nodes(const Model& model) {
  size_t count = model.graph->num_nodes();
  for (const EntryPoint& entry : model.entry_points) count += entry.algorithm->num_nodes();
  return count;
}

// Attempts to import, build and plan the model anew for each of the candidates. Batches of the usual size stay open.
Trial try_fixed(const std::vector<std::vector<std::string>>& candidates, const std::set<std::string>& batches,
                const TrialOptions& options, Device& device) {
  const auto without_batches = [&](std::vector<std::string> sizes) {
    std::erase_if(sizes, [&](const std::string& text) {
      const auto [name, size] = parse_size(text);
      return size == kTrialBatch && batches.count(name);
    });
    return sizes;
  };
  Trial trial = search(candidates, [&](const std::vector<std::string>& sizes) -> std::vector<Hindrance> {
    try {
      Model model = options.import(without_batches(sizes));
      if (auto obstacles = build(&model, options.build); !obstacles.empty()) return obstacles;
      if (auto misfit = find_misfit(model, sizes, device, options.build.pipeline)) return {*misfit};
      return {};
    } catch (const PassFault&) {
      throw;
    } catch (const Error& error) {
      return {{"import", error.what(), "", false, error.code()}};
    }
  });
  trial.sizes = without_batches(trial.sizes);
  return trial;
}

// The symbols of the first dimensions of the model's inputs.
std::set<std::string> batches_of(const Graph& graph) {
  std::set<std::string> names;
  for (const Value* input : graph.inputs()) {
    if (input->has_rank() && input->rank() > 0) names.insert(input->type().dims->front().symbol());
  }
  return names;
}

// Whether the loss has an input with a size that does not follow from symbols: an example of it can only be found where
// all sizes are known.
bool has_open_labels(const Model& built) {
  for (const EntryPoint& entry : built.entry_points) {
    for (const InputSpec& input : entry_inputs(built, entry.name())) {
      if (!input.from_loss || input.has_default || !input.type.dims) continue;
      for (const Dim& dim : *input.type.dims) {
        if (!dim.known() && dim.symbol().empty()) return true;
      }
    }
  }
  return false;
}

}  // namespace

bool can_run_models(const Device& device) { return device.kernels().begin() != device.kernels().end(); }

std::string in_one_sentence(const std::vector<Hindrance>& obstacles) {
  const Hindrance& first = obstacles.at(0);
  std::string reason = first.reason;
  if (reason.starts_with("[")) reason.erase(0, reason.find("] ") + 2);  // the part that found it
  const bool is_node = first.place.starts_with("node ");
  std::string text =
      concat(is_node ? first.place + ": " : "", reason, first.way_out.empty() ? "" : "; ", first.way_out);
  const size_t more = obstacles.size() - 1;
  if (more > 0) text += concat(" (and ", more, more == 1 ? " more obstacle)" : " more obstacles)");
  return text;
}

std::string suggest_loss(const Graph& graph) {
  if (default_prediction(graph)) return default_loss(graph).loss;
  fail("none of the model's outputs is a float, so there is nothing a loss could be made of");
}

Trial try_plans(const Model& built, const TrialOptions& options, Device& device) {
  const auto candidates = size_candidates(built, options.sizes, num_nodes(built));
  Trial trial = search(candidates, [&](const std::vector<std::string>& sizes) -> std::vector<Hindrance> {
    const auto misfit = find_misfit(built, sizes, device, options.build.pipeline);
    return misfit ? std::vector<Hindrance>{*misfit} : std::vector<Hindrance>();
  });
  if (trial.obstacles.empty() || candidates.size() < 2 || !options.import || !has_open_labels(built)) return trial;
  const Trial fixed = try_fixed(candidates, batches_of(*built.graph), options, device);
  return fixed.obstacles.empty() ? fixed : trial;
}

Trial try_training(Model* model, const TrialOptions& options, Device& device) {
  const auto candidates = size_candidates(*model, options.sizes, num_nodes(*model));
  if (auto obstacles = build(model, options.build); !obstacles.empty()) {
    Trial trial;
    trial.obstacles = obstacles;
    if ((candidates.size() < 2 && options.sizes.empty()) || !options.import) return trial;
    Trial fixed = try_fixed(candidates, batches_of(*model->graph), options, device);
    if (!fixed.obstacles.empty()) return trial;
    fixed.fixed = true;
    fixed.unfit = in_one_sentence(obstacles);
    return fixed;
  }
  return try_plans(*model, options, device);
}

}  // namespace onnx_train
