#include "onnx_passes/training/optimizer_table.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/model/weight_roles.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/training/optimizer_spec.h"

namespace onnx_train {
namespace {

using enum ValidNumbers;

// ---- Hyper-parameters that several rows have

Hyperparameter lr(double otherwise) { return {"lr", otherwise}; }
Hyperparameter weight_decay(double otherwise) { return {"weight_decay", otherwise, kNonNegative, "weight_decay"}; }
Hyperparameter eps(double otherwise) { return {"eps", otherwise, kNonNegative, "epsilon"}; }
Hyperparameter beta1(double otherwise = 0.9) { return {"beta1", otherwise, kFraction, "beta1", "betas"}; }
Hyperparameter beta2(double otherwise = 0.999) { return {"beta2", otherwise, kFraction, "beta2", "betas"}; }
Hyperparameter flag(const char* key, bool otherwise = false) { return {key, otherwise ? 1.0 : 0.0, kFlag, key}; }
const Hyperparameter kAmsgrad = {"amsgrad", 0, kFlag};
const Hyperparameter kDecoupled = {"decoupled_weight_decay", 0, kFlag, "decoupled"};

// ---- Slots

bool has_momentum(const OptimizerSpec& spec, const Value&) { return spec["momentum"] != 0; }
bool is_centered(const OptimizerSpec& spec, const Value&) { return spec["centered"] != 0; }
bool is_factored(const OptimizerSpec&, const Value& weight) { return weight.rank() > 1; }
bool is_whole(const OptimizerSpec&, const Value& weight) { return weight.rank() <= 1; }

OptimizerSlot slot(const char* name, bool (*exists)(const OptimizerSpec&, const Value&) = nullptr) {
  return {name, SlotShape::kWeight, 0, nullptr, exists};
}

const OptimizerSlot kLargestSquare = {.name = "max_exp_avg_sq", .of_variant = true};

std::string nesterov_conflict(const OptimizerSpec& spec) {
  const bool fits = spec["nesterov"] == 0 || (spec["momentum"] != 0 && spec["dampening"] == 0);
  return fits ? "" : "nesterov needs a momentum, and a dampening of 0";
}

// ---- SparseAdam: tables of which a batch reads some rows

bool reads_rows(const Use& use) { return use.index == 0 && use.node->is("Gather") && use.node->attr("axis", 0) == 0; }

// Whether the network reads the weight by rows alone. What reads all of it moves all of it.
bool is_table(const OptimizerSpec&, const Value& weight) {
  const auto& uses = weight.uses();
  return weight.rank() > 1 && std::any_of(uses.begin(), uses.end(), [](const Use& use) { return reads_rows(use); }) &&
         std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
           return reads_rows(use) || &use.node->graph() != &weight.graph();  // the backward pass
         });
}

// ---- Moments in 8 bits: as bitsandbytes, which leaves small tensors in 32

bool is_large(const OptimizerSpec& spec, const Value& weight) {
  const int64_t size = num_elements(weight.type().shape());
  return size > 0 && static_cast<double>(size) >= spec["min_8bit_size"];
}

// ---- Muon: matrices of layers and filters of convolutions

bool is_filter(const Value& weight) {
  return std::any_of(weight.uses().begin(), weight.uses().end(), [](const Use& use) {
    const ImageRole role = operator_of(*use.node).image_role;
    return use.index == 1 && (role == ImageRole::kConvolution || role == ImageRole::kTransposed);
  });
}

bool is_matrix_of_layer(const OptimizerSpec& spec, const Value& weight) {
  if (spec["use_muon"] == 0 || use_of(weight).role != WeightRole::kLinear || weight.rank() < 2) return false;
  return num_elements(weight.type().shape()) > 0 && (weight.rank() == 2 || is_filter(weight));
}

// The factor of the learning rate for a weight of `rows` outputs and `columns` inputs, however the file stores it.
Attrs rate_scale(const OptimizerSpec& spec, const Value& weight) {
  const WeightUse use = use_of(weight);
  const Shape shape = weight.type().shape();
  const bool filter = weight.rank() > 2;
  const double rows = filter ? static_cast<double>(shape[0]) : use.fan_out;
  const double columns = filter ? static_cast<double>(num_elements(shape) / shape[0]) : use.fan_in;
  const double scale =
      spec["adjust_lr_fn"] == 0 ? std::sqrt(std::max(1.0, rows / columns)) : 0.2 * std::sqrt(std::max(rows, columns));
  return {{"rate_scale", Tensor::scalar(scale)}};
}

}  // namespace

const std::vector<OptimizerRow>& optimizer_rows() {
  static const std::vector<OptimizerRow> rows = {
      {.name = "sgd",
       .op = "Sgd",
       .source = "torch.optim.SGD",
       .hyperparameters = {lr(0.01),
                           {"momentum", 0, kNonNegative, "momentum"},
                           {"dampening", 0, kNonNegative, "dampening"},
                           flag("nesterov"),
                           weight_decay(0)},
       .slots = {slot("momentum_buffer", has_momentum)},
       .conflict = nesterov_conflict},
      {.name = "adam",
       .op = "Adam",
       .source = "torch.optim.Adam",
       .hyperparameters = {lr(0.001), beta1(), beta2(), eps(1e-8), weight_decay(0), kAmsgrad},
       .slots = {slot("exp_avg"), slot("exp_avg_sq"), kLargestSquare},
       .variant = {"amsgrad", "Amsgrad"}},
      {.name = "adamw",
       .op = "AdamW",
       .source = "torch.optim.AdamW",
       .hyperparameters = {lr(0.001), beta1(), beta2(), eps(1e-8), weight_decay(0.01), kAmsgrad},
       .slots = {slot("exp_avg"), slot("exp_avg_sq"), kLargestSquare},
       .variant = {"amsgrad", "AmsgradW"}},
      {.name = "hf_adamw",
       .op = "HfAdamW",
       .source = "transformers.AdamW of Hugging Face, and ONNX Runtime's AdamWOptimizer",
       .hyperparameters = {lr(0.001), beta1(), beta2(), eps(1e-6), weight_decay(0), flag("correct_bias", true)},
       .slots = {slot("exp_avg"), slot("exp_avg_sq")}},
      {.name = "sparse_adam",
       .op = "SparseAdam",
       .source = "torch.optim.SparseAdam for tables of embeddings, torch.optim.Adam for the rest",
       .hyperparameters = {lr(0.001), beta1(), beta2(), eps(1e-8)},
       .slots = {slot("exp_avg"), slot("exp_avg_sq")},
       .rest = "adam",
       .takes = is_table},
      {.name = "adamw8bit",
       .op = "AdamW8bit",
       .source = "Dettmers et al. 2022, as bitsandbytes.optim.AdamW8bit; adamw for small weights",
       .hyperparameters = {lr(0.001), beta1(), beta2(), eps(1e-8), weight_decay(0.01), {"min_8bit_size", 4096}},
       .slots = {{"state1", SlotShape::kBlocks, 127},  // 127 is zero in bitsandbytes' map with signs
                 {"absmax1", SlotShape::kBlockMaxima},
                 {"state2", SlotShape::kBlocks},
                 {"absmax2", SlotShape::kBlockMaxima}},
       .rest = "adamw",
       .takes = is_large},
      {.name = "rmsprop",
       .op = "RmsProp",
       .source = "torch.optim.RMSprop",
       .hyperparameters = {lr(0.01),
                           {"alpha", 0.99, kFraction, "alpha"},
                           eps(1e-8),
                           weight_decay(0),
                           {"momentum", 0, kNonNegative, "momentum"},
                           flag("centered")},
       .slots = {slot("square_avg"), slot("momentum_buffer", has_momentum), slot("grad_avg", is_centered)}},
      {.name = "adagrad",
       .op = "Adagrad",
       .source = "torch.optim.Adagrad",
       .hyperparameters = {lr(0.01),
                           {"lr_decay", 0, kNonNegative, "lr_decay"},
                           weight_decay(0),
                           {"initial_accumulator_value", 0},
                           eps(1e-10)},
       .slots = {{"sum", SlotShape::kWeight, 0, "initial_accumulator_value"}}},
      {.name = "adadelta",
       .op = "Adadelta",
       .source = "torch.optim.Adadelta",
       .hyperparameters = {lr(1), {"rho", 0.9, kFraction, "rho"}, eps(1e-6), weight_decay(0)},
       .slots = {slot("square_avg"), slot("acc_delta")}},
      {.name = "adamax",
       .op = "Adamax",
       .source = "torch.optim.Adamax",
       .hyperparameters = {lr(0.002), beta1(), beta2(), eps(1e-8), weight_decay(0)},
       .slots = {slot("exp_avg"), slot("exp_inf")}},
      {.name = "nadam",
       .op = "NAdam",
       .source = "torch.optim.NAdam",
       .hyperparameters = {lr(0.002),
                           beta1(),
                           beta2(),
                           eps(1e-8),
                           weight_decay(0),
                           {"momentum_decay", 0.004, kNonNegative, "momentum_decay"},
                           kDecoupled},
       .slots = {slot("exp_avg"), slot("exp_avg_sq"), {"mu_product", SlotShape::kScalar, 1}}},
      {.name = "radam",
       .op = "RAdam",
       .source = "torch.optim.RAdam",
       .hyperparameters = {lr(0.001), beta1(), beta2(), eps(1e-8), weight_decay(0), kDecoupled},
       .slots = {slot("exp_avg"), slot("exp_avg_sq")}},
      {.name = "adafactor",
       .op = "Adafactor",
       .source = "torch.optim.Adafactor",
       .hyperparameters = {lr(0.01),
                           {"beta2_decay", -0.8, kNonPositive, "beta2_decay"},
                           {"eps1", 0, kNonNegative, "epsilon1", "eps"},  // 0: that of the weight's type
                           {"eps2", 0.001, kNonNegative, "epsilon2", "eps"},
                           {"d", 1, kNonNegative, "d"},
                           weight_decay(0)},
       .slots = {{"row_var", SlotShape::kRows, 0, nullptr, is_factored},
                 {"col_var", SlotShape::kColumns, 0, nullptr, is_factored},
                 slot("variance", is_whole)}},
      {.name = "lion",
       .op = "Lion",
       .source = "Chen et al. 2023, decoupled decay",
       .hyperparameters = {lr(0.0001), beta1(), beta2(0.99), weight_decay(0)},
       .slots = {slot("exp_avg")}},
      {.name = "adan",
       .op = "Adan",
       .source = "Xie et al. 2022, as its authors' Adan without its own clipping",
       .hyperparameters = {lr(0.001),
                           beta1(0.98),
                           beta2(0.92),
                           {"beta3", 0.99, kFraction, "beta3", "betas"},
                           eps(1e-8),
                           weight_decay(0),
                           flag("no_prox")},
       .slots = {slot("exp_avg"), slot("exp_avg_diff"), slot("exp_avg_sq"), slot("neg_pre_grad")}},
      {.name = "lamb",
       .op = "Lamb",
       .source = "You et al. 2020, as timm.optim.Lamb without its own clipping",
       .hyperparameters = {lr(0.001), beta1(), beta2(), eps(1e-6), weight_decay(0.01), flag("always_adapt")},
       .slots = {slot("exp_avg"), slot("exp_avg_sq")}},
      {.name = "lars",
       .op = "Lars",
       .source = "You et al. 2017, as timm.optim.Lars",
       .hyperparameters = {lr(1),
                           {"momentum", 0.9, kNonNegative, "momentum"},
                           {"dampening", 0, kNonNegative, "dampening"},
                           flag("nesterov"),
                           weight_decay(0),
                           {"trust_coeff", 0.001, kNonNegative, "trust_coeff"},
                           eps(1e-8),
                           flag("always_adapt")},
       .slots = {slot("momentum_buffer", has_momentum)},
       .conflict = nesterov_conflict},
      {.name = "schedule_free",
       .op = "ScheduleFreeAdamW",
       .source = "Defazio et al. 2024, as schedulefree.AdamWScheduleFree",
       .hyperparameters = {lr(0.0025),
                           beta1(),
                           beta2(),
                           eps(1e-8),
                           weight_decay(0),
                           {"r", 0, kNonNegative, "r"},
                           {"weight_lr_power", 2, kNonNegative, "weight_lr_power"}},
       .slots = {slot("exp_avg_sq"),
                 slot("z"),
                 {"weight_sum", SlotShape::kScalar},
                 {"lr_max", SlotShape::kScalar},
                 {"x", SlotShape::kAverage}}},
      {.name = "muon",
       .op = "Muon",
       .source = "Jordan et al. 2024, as torch.optim.Muon in the weight's type; adamw for all but layers' matrices",
       .hyperparameters = {lr(0.001),
                           weight_decay(0.1),
                           {"momentum", 0.95, kFraction, "momentum"},
                           flag("nesterov", true),
                           eps(1e-7),
                           {"ns_steps", 5, kSmallWhole, "ns_steps"},
                           {"adjust_lr_fn", 0, kChoice, nullptr, nullptr, {"original", "match_rms_adamw"}},
                           {"use_muon", 1, kFlag},
                           {"adamw_lr", 0},  // 0: lr
                           {"beta1", 0.9, kFraction, nullptr, "betas"},
                           {"beta2", 0.999, kFraction, nullptr, "betas"},
                           {"adamw_eps", 1e-8}},
       .slots = {slot("momentum_buffer")},
       .rest = "adamw",
       .takes = is_matrix_of_layer,
       .weight_attributes = rate_scale},
  };
  return rows;
}

const OptimizerRow* find_optimizer(const std::string& name) {
  for (const OptimizerRow& row : optimizer_rows()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

}  // namespace onnx_train
