#include "onnx_passes/training/optimizer.h"

#include <algorithm>
#include <limits>
#include <map>

#include "onnx_passes/functions/dynamic_map.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/precision/loss_scaling.h"
#include "onnx_passes/training/parameter_groups.h"
#include "onnx_passes/training/raw_weights.h"

namespace onnx_train {
namespace {

Tensor initial_value(const OptimizerSlot& slot, const OptimizerSpec& spec, const Value& weight) {
  Shape shape = weight.type().shape();
  if (slot.shape == SlotShape::kScalar) shape.clear();
  if (slot.shape == SlotShape::kRows) shape.end()[-1] = 1;
  if (slot.shape == SlotShape::kColumns) shape.end()[-2] = 1;
  const int64_t blocks = (num_elements(weight.type().shape()) + kQuantizedBlock - 1) / kQuantizedBlock;
  if (slot.shape == SlotShape::kBlocks) shape = {blocks, kQuantizedBlock};
  if (slot.shape == SlotShape::kBlockMaxima) shape = {blocks, 1};
  const DType dtype = slot.shape == SlotShape::kBlocks ? DType::kUint8 : weight.dtype();
  const double initial = slot.initial_key ? spec[slot.initial_key] : slot.initial;
  // A tensor starts as zeros, in pages that take no memory before somebody writes to them.
  return initial == 0 ? Tensor(dtype, shape) : Tensor::full(dtype, shape, initial);
}

class OptimizerBuilder {
 public:
  OptimizerBuilder(Model* model, EntryPoint* entry, const BuildOptions& options)
      : model_(*model), entry_(*entry), options_(options), b_(entry->algorithm.get()) {}

  void run() {
    std::vector<Value*> weights;
    for (const WeightGradient& g : entry_.gradients) weights.push_back(g.weight);
    const ParameterGroups groups = parameter_groups(model_, weights, options_);
    if (keeps_average(groups) || averages()) raw_ = add_raw_weights(&model_, weights);
    count_steps();
    add_clipping();
    for (const WeightGradient& g : entry_.gradients) add_rate(groups.updates.at(g.weight).rate);
    for (size_t i = 0; i < weights.size(); ++i) update(weights[i], gradients_[i], groups.updates.at(weights[i]));
    bind(step_.value(), next_step_);
    if (finite_) advance_loss_scale(model_, &entry_, &b_, finite_, options_);
  }

 private:
  void count_steps() {
    step_ = b_.var(add_state(model_, &b_.graph(), "state/step", Tensor::scalar<int64_t>(0), {roles::kStep, ""}));
    b_.set_name("next/" + step_.value()->name());
    next_step_ = step_ + 1.0;
  }

  // A default of a control: float64 in a model whose weights all are, so that no rate is rounded to float32.
  Tensor control(double value) const {
    const auto& trained = entry_.gradients;
    const bool in_double = std::all_of(trained.begin(), trained.end(),
                                       [](const WeightGradient& g) { return g.weight->dtype() == DType::kDouble; });
    return Tensor::full(in_double ? DType::kDouble : DType::kFloat, {}, value);
  }

  // scale = min(1, clip_norm / (norm + 1e-6)), like torch.nn.utils.clip_grad_norm_; 1 if clip_norm is infinite, so that
  // a plan with that value need not wait for the norm. Clipping by value comes first; the norm that is reported is that
  // of the gradients before both.
  void add_clipping() {
    const double lr = parse_optimizer(options_.optimizer)["lr"];
    rate_ = b_.var(add_input_with_default(&entry_, roles::kLearningRate, control(lr)));
    const double clip = options_.clip_norm > 0 ? options_.clip_norm : std::numeric_limits<double>::infinity();
    const Var clip_norm = b_.var(add_input_with_default(&entry_, roles::kClipNorm, control(clip)));
    for (const WeightGradient& g : entry_.gradients) gradients_.push_back(b_.var(g.gradient));
    b_.set_name("grad_norm");
    Var norm = call(b_, "GlobalNorm", gradients_);
    const auto scale = loss_scale(model_, &entry_, &b_, options_);
    const Var reported = norm;
    if (scale) finite_ = is_finite(norm), norm = norm / cast_like(*scale, norm);
    const Var grad_norm = norm;
    if (options_.clip_value > 0) norm = clip_values(scale ? *scale : Var(), reported.dtype());
    b_.set_name("grad_scale");
    const Var one = b_.scalar(norm.dtype(), 1);
    const Var is_infinite = b_.op("IsInf", {clip_norm}), most = cast_like(clip_norm, norm);
    scale_ = where(is_infinite, one, min(most / (norm + 1e-6), one));
    if (scale) scale_ = scale_ / cast_like(*scale, norm);
    add_result(&entry_, roles::kGradNorm, grad_norm);
    if (scale) add_result(&entry_, roles::kLossScale, *scale);
  }

  // Bounds each element of the gradients, which are multiplied by the loss scale, if there is one. Returns their norm
  // without that.
  Var clip_values(Var loss_scale, DType dtype) {
    b_.set_name("clip_value");
    Var bound = b_.scalar(dtype, options_.clip_value);
    if (loss_scale) bound = bound * cast_like(loss_scale, bound);
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const Var most = cast_like(bound, gradients_[i]);
      b_.set_name("clipped/" + entry_.gradients[i].weight->name());
      gradients_[i] = b_.op("Clip", {gradients_[i], -most, most});
    }
    b_.set_name("clipped_norm");
    const Var norm = call(b_, "GlobalNorm", gradients_);
    return loss_scale ? norm / cast_like(loss_scale, norm) : norm;
  }

  // With loss scaling, an update with non-finite gradients is skipped.
  void bind(Value* state, Var next) {
    b_.set_name("next/" + state->name());
    bind_state(&entry_, state, finite_ ? where(finite_, next, b_.var(state)) : next);
  }

  // The learning rate of weights with this factor.
  void add_rate(double factor) {
    if (factor == 1 || rates_.count(factor)) return;
    b_.set_name("learning_rate/factor");
    rates_[factor] = cast(rate_, DType::kDouble) * b_.scalar(DType::kDouble, factor);
  }

  Attrs attributes(const WeightUpdate& update, const Value& weight) const {
    const OptimizerSpec& spec = update.spec;
    // Every update has a weight_decay: reports know updates by it.
    Attrs attrs{{"weight_decay", Tensor::scalar(spec.has("weight_decay") ? spec["weight_decay"] : 0.0)}};
    for (const Hyperparameter& h : spec.row->hyperparameters) {
      if (!h.attribute || attrs[0].name == h.attribute) continue;
      const double value = spec[h.key];
      const bool is_integer = h.valid == ValidNumbers::kFlag || h.valid == ValidNumbers::kSmallWhole;
      attrs.push_back(is_integer ? Attr(h.attribute, static_cast<int64_t>(value))
                                 : Attr(h.attribute, Tensor::scalar(value)));
    }
    if (spec.row->weight_attributes) {
      for (Attr& attr : spec.row->weight_attributes(spec, weight)) attrs.push_back(std::move(attr));
    }
    return attrs;
  }

  void update(Value* weight, Var gradient, const WeightUpdate& update) {
    const OptimizerSpec& spec = update.spec;
    Value* trained = raw_.empty() ? weight : raw_.at(weight);
    std::vector<Var> slots, inputs{b_.var(trained), gradient};
    for (const OptimizerSlot& slot : spec.row->slots) {
      if (slot.of_variant && !spec.is_variant()) continue;
      inputs.emplace_back();
      if (slot.exists && !slot.exists(spec, *weight)) continue;
      inputs.back() =
          slot.shape == SlotShape::kAverage
              ? b_.var(weight)
              : b_.var(add_slot(model_, &b_.graph(), weight, slot.name, initial_value(slot, spec, *weight)));
      slots.push_back(inputs.back());
    }
    inputs.insert(inputs.end(), {next_step_, update.rate == 1 ? rate_ : rates_.at(update.rate), scale_});
    b_.set_name("next/" + weight->name());
    const auto next = call(b_, spec.op(), static_cast<int>(1 + slots.size()), inputs, attributes(update, *weight));
    if (averages()) bind(weight, average(weight, next[0]));
    bind(trained, next[0]);
    for (size_t i = 0; i < slots.size(); ++i) bind(slots[i].value(), next[i + 1]);
  }

  bool averages() const { return options_.ema > 0 || options_.swa > 0; }

  // Whether the optimizer itself averages the weights.
  bool keeps_average(const ParameterGroups& groups) const {
    const bool keeps = std::any_of(groups.updates.begin(), groups.updates.end(), [](const auto& of) {
      const auto& slots = of.second.spec.row->slots;
      return std::any_of(slots.begin(), slots.end(),
                         [](const OptimizerSlot& slot) { return slot.shape == SlotShape::kAverage; });
    });
    if (options_.ema > 0 && options_.swa > 0)
      fail_as(ErrorCode::kUsage, "--ema and --swa are an average of the weights each; give one");
    if (keeps && averages()) {
      const char* const option = options_.ema > 0 ? "--ema" : "--swa";
      fail_as(ErrorCode::kUsage, option, " averages the weights, and so does --optimizer ", options_.optimizer,
              "; leave out ", option);
    }
    return keeps;
  }

  Var average(Value* weight, Var next) {
    b_.set_name("next/" + weight->name() + "/average");
    if (options_.ema > 0)
      return call(b_, "MovingAverage", {b_.var(weight), next, next_step_}, {{"decay", Tensor::scalar(options_.ema)}});
    return call(b_, "MeanOfWeights", {b_.var(weight), next, next_step_},
                {{"start", Tensor::scalar(options_.swa)}, {"every", Tensor::scalar(options_.swa_every)}});
  }

  Model& model_;
  EntryPoint& entry_;
  const BuildOptions& options_;
  Builder b_;
  RawWeights raw_;              // where there is an average
  std::vector<Var> gradients_;  // of all weights, clipped by value
  Var step_, next_step_, rate_, scale_;
  std::map<double, Var> rates_;  // by factor
  Var finite_;                   // only with loss scaling
};

bool add_optimizer(Model& model, const BuildOptions& options) {
  const OptimizerSpec spec = parse_optimizer(options.optimizer);
  EntryPoint* entry = model.find_entry_point(Entry::kApply);
  if (!entry) entry = model.find_entry_point(Entry::kStep);
  if (!entry) fail("[Optimizer] the model has no gradients; run the pass 'gradients' first");
  OptimizerBuilder(&model, entry, options).run();
  model.set_metadata("onnx_train.optimizer", to_string(spec));
  if (!options.groups.empty()) model.set_metadata("onnx_train.groups", json_list(options.groups));
  if (options.layer_decay != 1) model.set_metadata("onnx_train.layer_decay", number_text(options.layer_decay));
  if (options.ema > 0) model.set_metadata("onnx_train.ema", number_text(options.ema));
  if (options.swa > 0) {
    const std::string every = options.swa_every > 1 ? concat(",", options.swa_every) : "";
    model.set_metadata("onnx_train.swa", concat(options.swa, every));
  }
  if (options.clip_value > 0) model.set_metadata("onnx_train.clip_value", number_text(options.clip_value));
  return true;
}

}  // namespace

Pass optimizer(const BuildOptions& options) {
  return {"optimizer", [options](Model& model) { return add_optimizer(model, options); }};
}

Value* add_slot(const Model& model, Graph* graph, const Value* weight, const std::string& slot, const Tensor& initial) {
  return add_state(model, graph, concat("state/", weight->name(), "/", slot), initial, {slot, weight->name()});
}

}  // namespace onnx_train
