#include "onnx_passes/derivatives/derivative.h"

#include <algorithm>

#include "onnx_passes/adapt/reference_model.h"
#include "onnx_passes/derivatives/sizes.h"
#include "onnx_passes/derivatives/weights_as_inputs.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/loss/loss.h"
#include "onnx_passes/loss/probabilities.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/model/training_versions.h"
#include "onnx_passes/training/training_mode.h"

namespace onnx_train {
namespace {

bool is_of_loss(Derivative kind) { return kind == Derivative::kGradient || kind == Derivative::kHvp; }

// The float inputs whose derivative nothing obstructs.
std::vector<Value*> differentiable_inputs(const std::vector<Value*>& outputs, const Graph& graph,
                                          std::vector<std::string>* notes) {
  std::vector<Value*> found;
  for (Value* input : graph.inputs()) {
    if (!is_float(input->dtype()) || input->is_initializer()) continue;
    const std::vector<Obstacle> obstacles = find_obstacles(outputs, {input});
    if (obstacles.empty()) {
      found.push_back(input);
    } else if (notes) {
      notes->push_back(concat("no gradient of the input '", input->name(), "': ", obstacles[0].node->label(), ": ",
                              obstacles[0].reason));
    }
  }
  return found;
}

class Derivatives {
 public:
  Derivatives(Model* model, Derivative kind, const BuildOptions& options, std::vector<std::string>* notes)
      : kind_(kind),
        step_(*model->find_entry_point(Entry::kStep)),
        algorithm_(step_.algorithm.get()),
        builder_(algorithm_) {
    const Marks<Value> known = known_to_plans(*model->graph);
    for (Value* output : model->graph->outputs()) {
      // An output needs one shape; the loss does without this one.
      if (is_of_loss(kind) && is_sized_by_data(*output, known)) continue;
      Value* value = training_value(step_, output);
      add_result(&step_, "output/" + output->name(), builder_.var(value))->set_role({roles::kOutput, output->name()});
      if (is_of_loss(kind) || !is_float(output->dtype())) continue;
      outputs_.push_back(value);
      names_.push_back(output->name());
    }
    if (is_of_loss(kind)) outputs_ = {step_.output(roles::kLoss)};
    if (outputs_.empty()) fail("none of the model's outputs is a float, so there is nothing to differentiate");
    weights_ = select_trainable(*model, options.train, options.freeze);
    std::vector<std::string> obstructed;
    std::vector<Value*> inputs = differentiable_inputs(outputs_, *model->graph, &obstructed);
    if (weights_.empty() && !obstructed.empty()) fail(obstructed[0]);
    if (notes) *notes = std::move(obstructed);
    sources_ = weights_;
    sources_.insert(sources_.end(), inputs.begin(), inputs.end());
    if (sources_.empty()) fail("the model has neither float weights nor float inputs to differentiate by");
  }

  const std::vector<Value*>& weights() const { return weights_; }

  void add() {
    switch (kind_) {
      case Derivative::kOutputs: return;
      case Derivative::kGradient: return add_first("grad/", "grad_input/", {});
      case Derivative::kVjp: return add_first("vjp/", "vjp/", add_cotangents());
      case Derivative::kJvp: return add_jvp();
      case Derivative::kHvp: return add_hvp();
    }
  }

 private:
  // An input for the vector of a value: of an output, a weight or an input, which is called `name`.
  Value* add_vector(const std::string& name, const TensorType& type, const char* role) {
    Value* vector = algorithm_->add_input(algorithm_->unique_name("vector/" + name), type);
    vector->set_role({role, name});
    return vector;
  }

  std::vector<Value*> add_cotangents() {
    std::vector<Value*> cotangents;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      cotangents.push_back(add_vector(names_[i], outputs_[i]->type(), roles::kOutputGradient));
    }
    return cotangents;
  }

  std::vector<Value*> differentiate(const std::vector<Value*>& cotangents) {
    const std::vector<Value*> gradients = is_of_loss(kind_) ? add_gradients(algorithm_, outputs_[0], sources_)
                                                            : add_gradients(algorithm_, outputs_, cotangents, sources_);
    if (std::none_of(gradients.begin(), gradients.end(), [](const Value* gradient) { return gradient; })) {
      fail_as(ErrorCode::kLossReachesNothing, "the ", is_of_loss(kind_) ? "loss depends" : "outputs depend",
              " on none of the weights and float inputs, so that there is no gradient");
    }
    return gradients;
  }

  void add_first(const std::string& of_weights, const std::string& of_inputs, const std::vector<Value*>& cotangents) {
    const std::vector<Value*> gradients = differentiate(cotangents);
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (!gradients[i]) continue;
      const std::string& name = sources_[i]->name();
      Value* result =
          add_result(&step_, (i < weights_.size() ? of_weights : of_inputs) + name, builder_.var(gradients[i]));
      result->set_role({roles::kGradient, name});
    }
  }

  // The gradients that are there, and the directions of what they belong to.
  std::pair<std::vector<Value*>, std::vector<Value*>> along_directions(const std::vector<Value*>& gradients) {
    std::pair<std::vector<Value*>, std::vector<Value*>> pairs;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (!gradients[i]) continue;
      pairs.first.push_back(gradients[i]);
      pairs.second.push_back(add_vector(sources_[i]->name(), sources_[i]->type(), roles::kDirection));
    }
    return pairs;
  }

  void add_second(const char* prefix, const std::vector<std::string>& names, const std::vector<Value*>& of,
                  const std::vector<Value*>& gradients) {
    const auto [firsts, vectors] = along_directions(gradients);
    // What is linear has a gradient that does not depend on the weights.
    const std::vector<Value*> seconds = add_gradients(algorithm_, firsts, vectors, of);
    for (size_t i = 0; i < of.size(); ++i) {
      const Var result = seconds[i] ? builder_.var(seconds[i]) : zeros_like(builder_.var(of[i]));
      add_result(&step_, prefix + names[i], result)->set_role({roles::kDerivative, names[i]});
    }
  }

  void add_jvp() {
    std::vector<Value*> zeros;  // the vjp is linear in u: any u will do
    for (Value* output : outputs_) zeros.push_back(zeros_like(builder_.var(output)).value());
    add_second("jvp/", names_, zeros, differentiate(zeros));
  }

  void add_hvp() {
    const std::vector<Value*> gradients = differentiate({});
    std::vector<Value*> reached;
    std::vector<std::string> names;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (!gradients[i]) continue;
      reached.push_back(sources_[i]);
      names.push_back(sources_[i]->name());
    }
    add_second("hvp/", names, reached, gradients);
  }

  Derivative kind_;
  EntryPoint& step_;
  Graph* algorithm_;
  Builder builder_;
  std::vector<Value*> outputs_, weights_, sources_;
  std::vector<std::string> names_;  // of the outputs that are differentiated
};

}  // namespace

Derivative parse_derivative(const std::string& name) {
  if (name == "outputs") return Derivative::kOutputs;
  if (name == "gradient") return Derivative::kGradient;
  if (name == "vjp") return Derivative::kVjp;
  if (name == "jvp") return Derivative::kJvp;
  if (name == "hvp") return Derivative::kHvp;
  fail_as(ErrorCode::kUsage, "'", name, "' is no derivative; there are outputs, gradient, vjp, jvp, hvp");
}

Model derivative(Model model, Derivative kind, const BuildOptions& options, std::vector<std::string>* notes) {
  const std::vector<Finding> doubled =
      is_of_loss(kind) ? describe_predictions(*model.graph, options) : std::vector<Finding>();
  std::vector<Pass> passes = {training_mode(options)};
  if (is_of_loss(kind)) passes.insert(passes.end(), {loss(options, reference_maker(options)), random_numbers(options)});
  run_pipeline(passes, &model, options.pipeline);
  const std::vector<Value*> statistics = running_statistics(*model.graph);
  Derivatives derivatives(&model, kind, options, notes);
  derivatives.add();
  for (size_t i = 0; notes && i < doubled.size(); ++i)
    notes->push_back(concat(doubled[i].subject, ": ", doubled[i].what, "; ", doubled[i].advice));
  Model flat = flatten(model, Entry::kStep);
  const std::vector<InputWithDefault> parameters =
      make_inputs(flat.graph.get(), model, derivatives.weights(), statistics);
  infer_types(flat.graph.get());
  return finish_pass(std::move(flat), "derivative", parameters);
}

}  // namespace onnx_train
