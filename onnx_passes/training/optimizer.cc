#include "onnx_passes/training/optimizer.h"

#include <limits>
#include <unordered_set>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/precision/loss_scaling.h"
#include "onnx_passes/training/entry_point.h"
#include "onnx_passes/training/optimizer_spec.h"
#include "onnx_passes/training/select.h"
#include "onnx_passes/training/weight_roles.h"

namespace onnx_train {
namespace {

using ValueSet = std::unordered_set<const Value*>;

// Biases and scales, which do not decay unless they are named; some are stored with ones around their axis, as [1, C,
// 1, 1].
bool is_bias_or_scale(const Value& weight) {
  const WeightRole role = use_of(weight).role;
  return weight.rank() <= 1 || role == WeightRole::kBias || role == WeightRole::kNormScale;
}

ValueSet decaying(const std::vector<Value*>& weights, const BuildOptions& options) {
  if (!options.decay.empty()) {
    const auto chosen = match_names(weights, options.decay, "--decay");
    return {chosen.begin(), chosen.end()};
  }
  ValueSet result;
  for (const Value* w : weights) {
    if (!is_bias_or_scale(*w)) result.insert(w);
  }
  return result;
}

class OptimizerBuilder {
 public:
  OptimizerBuilder(Model* model, EntryPoint* entry, const OptimizerSpec& spec, const BuildOptions& options)
      : model_(*model), entry_(*entry), spec_(spec), options_(options), b_(entry->algorithm.get()) {}

  void run() {
    std::vector<Value*> weights;
    for (const WeightGradient& g : entry_.gradients) weights.push_back(g.weight);
    const ValueSet decay = decaying(weights, options_);
    count_steps();
    add_clipping();
    for (const WeightGradient& g : entry_.gradients) update(g, decay.count(g.weight) ? spec_.weight_decay : 0);
    bind(step_.value(), next_step_);
    if (finite_) advance_loss_scale(model_, &entry_, &b_, finite_, options_);
  }

 private:
  void count_steps() {
    step_ = b_.var(add_state(model_, &b_.graph(), "state/step", Tensor::scalar<int64_t>(0), {roles::kStep, ""}));
    b_.set_name("next/" + step_.value()->name());
    next_step_ = step_ + 1.0;
  }

  // scale = min(1, clip_norm / (norm + 1e-6)), like torch.nn.utils.clip_grad_norm_; 1 if clip_norm is infinite, so that
  // a plan with that value need not wait for the norm.
  void add_clipping() {
    rate_ = b_.var(
        add_input_with_default(&entry_, roles::kLearningRate, Tensor::scalar(static_cast<float>(spec_.learning_rate))));
    const float clip =
        options_.clip_norm > 0 ? static_cast<float>(options_.clip_norm) : std::numeric_limits<float>::infinity();
    const Var clip_norm = b_.var(add_input_with_default(&entry_, roles::kClipNorm, Tensor::scalar(clip)));
    std::vector<Var> gradients;
    for (const WeightGradient& g : entry_.gradients) gradients.push_back(b_.var(g.gradient));
    b_.set_name("grad_norm");
    Var norm = call(b_, "GlobalNorm", gradients);
    const auto scale = loss_scale(model_, &entry_, &b_, options_);
    if (scale) finite_ = is_finite(norm), norm = norm / cast_like(*scale, norm);
    b_.set_name("grad_scale");
    const Var one = b_.scalar(norm.dtype(), 1);
    scale_ = where(b_.op("IsInf", {clip_norm}), one, min(cast_like(clip_norm, norm) / (norm + 1e-6), one));
    if (scale) scale_ = scale_ / cast_like(*scale, norm);
    add_result(&entry_, roles::kGradNorm, norm);
    if (scale) add_result(&entry_, roles::kLossScale, *scale);
  }

  // With loss scaling, an update with non-finite gradients is skipped.
  void bind(Value* state, Var next) {
    b_.set_name("next/" + state->name());
    bind_state(&entry_, state, finite_ ? where(finite_, next, b_.var(state)) : next);
  }

  Var slot(const Value* weight, const char* name) { return b_.var(add_slot(model_, &b_.graph(), weight, name)); }

  void update(const WeightGradient& of, double weight_decay) {
    Value* weight = of.weight;
    std::vector<Var> slots, inputs{b_.var(weight), b_.var(of.gradient)};
    Attrs attrs{{"weight_decay", Tensor::scalar(weight_decay)}};
    std::string op = "Sgd";
    if (spec_.is_sgd()) {
      if (spec_.momentum != 0) slots.push_back(slot(weight, "momentum_buffer"));
      inputs.push_back(slots.empty() ? Var() : slots[0]);
      attrs.insert(attrs.end(), {{"momentum", Tensor::scalar(spec_.momentum)},
                                 {"dampening", Tensor::scalar(spec_.dampening)},
                                 {"nesterov", spec_.nesterov ? 1 : 0}});
    } else {
      op = spec_.name == "adam" ? "Adam" : "AdamW";
      slots = {slot(weight, "exp_avg"), slot(weight, "exp_avg_sq")};
      inputs.insert(inputs.end(), slots.begin(), slots.end());
      attrs.insert(attrs.end(), {{"beta1", Tensor::scalar(spec_.beta1)},
                                 {"beta2", Tensor::scalar(spec_.beta2)},
                                 {"epsilon", Tensor::scalar(spec_.epsilon)}});
    }
    inputs.insert(inputs.end(), {next_step_, rate_, scale_});
    b_.set_name("next/" + weight->name());
    const auto next = call(b_, op, static_cast<int>(1 + slots.size()), inputs, attrs);
    bind(weight, next[0]);
    for (size_t i = 0; i < slots.size(); ++i) bind(slots[i].value(), next[i + 1]);
  }

  Model& model_;
  EntryPoint& entry_;
  const OptimizerSpec& spec_;
  const BuildOptions& options_;
  Builder b_;
  Var step_, next_step_, rate_, scale_;
  Var finite_;  // only with loss scaling
};

bool add_optimizer(Model& model, const BuildOptions& options) {
  const OptimizerSpec spec = parse_optimizer(options.optimizer);
  EntryPoint* entry = model.find_entry_point("apply");
  if (!entry) entry = model.find_entry_point("step");
  if (!entry) fail("[Optimizer] the model has no gradients; run the pass 'gradients' first");
  OptimizerBuilder(&model, entry, spec, options).run();
  model.set_metadata("onnx_train.optimizer", to_string(spec));
  return true;
}

}  // namespace

Pass optimizer(const BuildOptions& options) {
  return {"optimizer", [options](Model& model) { return add_optimizer(model, options); }};
}

Value* add_slot(const Model& model, Graph* graph, const Value* weight, const std::string& slot) {
  const Tensor zeros(weight->dtype(), weight->type().shape());
  return add_state(model, graph, concat("state/", weight->name(), "/", slot), zeros, {slot, weight->name()});
}

}  // namespace onnx_train
