#include "runtime/trial.h"

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes/expression.h"
#include "runtime/dataset.h"
#include "runtime/example_inputs.h"
#include "runtime/plan.h"

namespace onnx_train {
namespace {

constexpr int64_t kBatch = 2;

// ---- Build

// Every node without a gradient between the weights and the loss, which the model has by now.
std::vector<Hindrance> missing_gradients(Model* model, const BuildOptions& options) {
  const EntryPoint& step = *model->find_entry_point("step");
  std::vector<Hindrance> found;
  const Value* loss = step.algorithm->outputs().at(0);
  for (const Obstacle& o : find_obstacles(loss, select_trainable(*model, options.train, options.freeze)))
    found.push_back({o.node->label(), o.reason, o.way_out});
  return found;
}

std::vector<Hindrance> build(Model* model, const BuildOptions& options) {
  for (const Pass& pass : training_passes(options)) {
    if (pass.name == "gradients") {
      if (auto missing = missing_gradients(model, options); !missing.empty()) return missing;
    }
    pass.run(*model);
  }
  return {};
}

// ---- Plan

// The dimensions that have no size, by their symbols, and whether some size is open.
std::set<std::string> open_symbols(const std::vector<InputSpec>& inputs) {
  std::set<std::string> symbols;
  for (const InputSpec& input : inputs) {
    if (!input.type.dims) continue;
    for (const Dim& dim : *input.type.dims) {
      if (!dim.known()) symbols.insert(dim.symbol());
    }
  }
  return symbols;
}

// NAME=N for every symbol of the inputs, so that it has one size in all of them: the one that is given, or kBatch for
// what the model's inputs have first, or `other`. What is given for symbols of another entry point is left out.
std::vector<std::string> choose_sizes(const std::vector<InputSpec>& inputs, const std::vector<std::string>& given,
                                      int64_t other) {
  const std::set<std::string> symbols = open_symbols(inputs);
  std::map<std::string, std::string> sizes;
  for (const std::string& text : given) {
    const std::string name = text.substr(0, text.find('='));
    if (symbols.count(name)) sizes[name] = text;
  }
  std::set<std::string> first;
  for (const InputSpec& input : inputs) {
    if (!input.from_loss && input.type.dims && !input.type.dims->empty()) first.insert(input.type.dims->at(0).symbol());
  }
  std::vector<std::string> all;
  for (const std::string& symbol : symbols) {
    const bool is_name = symbol.find_first_of("*=") == std::string::npos && !symbol.empty();
    if (const auto found = sizes.find(symbol); found != sizes.end()) {
      all.push_back(found->second);
    } else if (is_name) {
      all.push_back(concat(symbol, "=", first.count(symbol) ? kBatch : other));
    }
  }
  return all;
}

void plan(Model flat, const std::vector<std::string>& states, const std::map<std::string, Shape>& shapes,
          Device& device) {
  for (const std::string& state : states) {  // those of `predict` are weights: a session reads them from its state
    Value* value = flat.graph->find(state);
    if (value && value->is_initializer() && !flat.graph->is_input(value)) flat.graph->add_input(state, value->type());
  }
  PlanOptions options;
  options.lowering.on = false;  // what runs at all is the same, and found sooner
  const Plan made(std::move(flat), states, shapes, device, options);
}

// Sizes that a model leaves open may still have to fit its strides and heads: a few are tried.
std::optional<Hindrance> try_plan(const Model& model, const std::string& entry, const std::vector<std::string>& sizes,
                                  Device& device) {
  std::optional<Model> first = flatten(model, entry);
  const std::vector<InputSpec> inputs = entry_inputs(model, entry, *first);
  const std::vector<std::string> states = state_of(model, entry);
  const bool open = !open_symbols(inputs).empty();
  std::string reason;
  for (const int64_t other : {8, 32, 224, 1}) {
    try {
      const auto shapes = example_shapes(inputs, kBatch, choose_sizes(inputs, sizes, other));
      plan(first ? *std::exchange(first, std::nullopt) : flatten(model, entry), states, shapes, device);
      return std::nullopt;
    } catch (const Error& error) {
      if (reason.empty()) reason = error.what();
      if (!open) break;
    }
  }
  return Hindrance{concat("the plan of '", entry, "'"), reason,
                   open ? "if only the sizes tried are wrong, give others: --dim NAME=N" : ""};
}

}  // namespace

std::string suggest_loss(const Graph& graph) {
  for (const Value* output : graph.outputs()) {
    if (!is_float(output->dtype())) continue;
    if (!output->has_rank() || output->rank() > 1) return "cross_entropy";
    const bool is_number = output->rank() == 0 || output->type().dims->at(0) == Dim(1);
    return is_number ? quoted_if_needed(output->name()) : "mse";
  }
  fail("none of the model's outputs is a float, so there is nothing a loss could be made of");
}

std::vector<Hindrance> try_training(Model* model, const BuildOptions& options, const std::vector<std::string>& sizes,
                                    Device& device) {
  try {
    if (auto missing = build(model, options); !missing.empty()) return missing;
  } catch (const Error& error) {
    return {{"build", error.what(), ""}};
  }
  for (const char* entry : {"step", "predict"}) {
    if (auto hindrance = try_plan(*model, entry, sizes, device)) return {*hindrance};
  }
  return {};
}

}  // namespace onnx_train
