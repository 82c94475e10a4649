#include "onnx_passes/training/initialization.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/weight_roles.h"

namespace onnx_train {
namespace {

// Initial weights are drawn at a counter that no step reaches soon, so they share no random numbers with dropout.
constexpr uint64_t kCounter = 0xffffffff;

enum class Rule { kNone, kKaiming, kXavier, kGpt2 };

Rule parse_rule(const std::string& name) {
  const std::map<std::string, Rule> rules = {
      {"", Rule::kNone}, {"kaiming", Rule::kKaiming}, {"xavier", Rule::kXavier}, {"gpt2", Rule::kGpt2}};
  const auto found = rules.find(name);
  if (found == rules.end())
    fail("[Initialization] there is no rule '", name, "' for initial weights; choose kaiming, xavier or gpt2");
  return found->second;
}

// The initialization graph of one entry point under construction.
class Initialization {
 public:
  Initialization(const Model& model, EntryPoint* entry, const BuildOptions& options)
      : model_(model), entry_(entry), options_(options), rule_(parse_rule(options.init)) {
    entry->initialization = std::make_unique<Graph>(model.context);
    entry->initialization->shell().set_name("initialization");
    entry->initialization_bindings.clear();
    builder_ = std::make_unique<Builder>(entry->initialization.get());
  }

  // `residuals`: the number of weights that write to the residual stream.
  void add(Value* state, int residuals) {
    builder_->set_name("draw/" + state->name());
    Var value;
    if (state->has_role(roles::kRandomKey)) {
      value = concat({seed(), builder_->constant(Tensor::of<uint64_t>({1}, {0}))}, 0);
    } else if (state->has_role(roles::kRaw)) {
      const Var of_weight = drawn_[state->role()->of];
      if (of_weight) value = builder_->op("Identity", {of_weight});
    } else if (state->role()) {
      value = as_built(state);
    } else if (rule_ != Rule::kNone) {
      value = weight(state, residuals);
    }
    if (!value) return;
    drawn_[state->name()] = value;
    entry_->initialization->claim_name(value.value(), "initial/" + state->name());
    entry_->initialization->add_output(value.value());
    entry_->initialization_bindings.push_back({state, value.value()});
  }

 private:
  // The seed as uint64[1].
  Var seed() {
    if (!seed_) {
      Graph& graph = *entry_->initialization;
      // One input of the flattened initialization, shared by all entry points that draw from it.
      seed_ = graph.add_initializer(model_.unique_name("seed"), Tensor::scalar<uint64_t>(options_.seed));
      seed_->set_role({roles::kSeed, ""});
    }
    return unsqueeze(builder_->var(seed_), {0});
  }

  Var as_built(const Value* state) {
    const Tensor tensor = contents_of(*state);
    if (tensor.size() > 0 && is_uniform(tensor)) return fill(state, tensor.at(0));
    return builder_->op("Identity", {builder_->constant(tensor)});
  }

  Var fill(const Value* state, double value) {
    return full(builder_->ints(state->type().shape()), state->dtype(), value);
  }

  Var weight(const Value* state, int residuals) {
    const WeightUse use = use_of(*state);
    switch (use.role) {
      case WeightRole::kNormScale:
      case WeightRole::kRunningVariance: return fill(state, 1);
      case WeightRole::kRunningMean: return fill(state, 0);
      case WeightRole::kBias:
        return rule_ == Rule::kKaiming && use.fan_in > 0 ? uniform(state, 1 / std::sqrt(use.fan_in)) : fill(state, 0);
      case WeightRole::kEmbedding:
        if (rule_ == Rule::kKaiming) return normal(state, 1);
        break;
      case WeightRole::kLinear: break;
      case WeightRole::kOther: return as_built(state);
    }
    if (rule_ == Rule::kKaiming) return uniform(state, 1 / std::sqrt(use.fan_in));
    if (rule_ == Rule::kXavier) return uniform(state, std::sqrt(6 / (use.fan_in + use.fan_out)));
    return normal(state, use.residual ? 0.02 / std::sqrt(residuals) : 0.02);
  }

  Var uniform(const Value* state, double bound) {
    return draw("RandomUniform", state, {{"low", static_cast<float>(-bound)}, {"high", static_cast<float>(bound)}});
  }
  Var normal(const Value* state, double deviation) {
    return draw("RandomNormal", state, {{"mean", 0.0f}, {"scale", static_cast<float>(deviation)}});
  }

  Var draw(const char* function, const Value* state, Attrs attrs) {
    if (!key_) key_ = concat({seed(), builder_->constant(Tensor::of<uint64_t>({1}, {kCounter}))}, 0);
    attrs.emplace_back("stream", stream_++);
    return cast(call(*builder_, function, {key_, builder_->ints(state->type().shape())}, attrs), state->dtype());
  }

  const Model& model_;
  EntryPoint* entry_;
  const BuildOptions& options_;
  Rule rule_;
  std::unique_ptr<Builder> builder_;
  Value* seed_ = nullptr;
  std::map<std::string, Var> drawn_;  // by state
  Var key_;
  int stream_ = 0;
};

std::vector<Value*> states_of(const Model& model) {
  std::vector<Value*> states;
  for (const EntryPoint& entry : model.entry_points) {
    for (const Binding& binding : entry.update_bindings) states.push_back(binding.state);
  }
  return states;
}

}  // namespace

Pass initialization(const BuildOptions& options) {
  return {"initialization", [options](Model& model) {
            std::vector<Value*> states = states_of(model);
            // Raw weights begin as the weights, which are drawn before them.
            std::stable_partition(states.begin(), states.end(),
                                  [](const Value* s) { return !s->has_role(roles::kRaw); });
            int residuals = 0;
            for (const Value* state : states) residuals += use_of(*state).residual ? 1 : 0;
            // The standard lets an entry point initialize its own initializers and those of the inference graph; the
            // latter are assigned to the first entry point.
            for (EntryPoint& entry : model.entry_points) {
              Initialization initialization(model, &entry, options);
              for (Value* state : states) {
                const bool first = &state->graph() == model.graph.get() && &entry == &model.entry_points[0];
                if (first || &state->graph() == entry.algorithm.get()) initialization.add(state, residuals);
              }
            }
            return true;
          }};
}

}  // namespace onnx_train
