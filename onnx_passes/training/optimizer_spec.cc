#include "onnx_passes/training/optimizer_spec.h"

#include <cmath>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/expression.h"

namespace onnx_train {
namespace {

struct Hyperparameter {
  const char* key;
  double OptimizerSpec::*member;
  bool sgd, adam;  // optimizers that have the option
  bool below_one;  // valid are [0, 1), otherwise [0, ∞)
};

constexpr Hyperparameter kHyperparameters[] = {
    {"lr", &OptimizerSpec::learning_rate, true, true, false},
    {"momentum", &OptimizerSpec::momentum, true, false, false},
    {"dampening", &OptimizerSpec::dampening, true, false, false},
    {"beta1", &OptimizerSpec::beta1, false, true, true},
    {"beta2", &OptimizerSpec::beta2, false, true, true},
    {"eps", &OptimizerSpec::epsilon, false, true, false},
    {"weight_decay", &OptimizerSpec::weight_decay, true, true, false},
};

class OptimizerParser {
 public:
  explicit OptimizerParser(const std::string& text) : reader_("--optimizer", text) {}

  OptimizerSpec run() {
    const Word name = reader_.word("sgd, adam or adamw");
    spec_.name = name.text;
    if (spec_.name != "sgd" && spec_.name != "adam" && spec_.name != "adamw") {
      reader_.fail_at(name.column, concat("there is no optimizer '", name.text, "'; there is sgd, adam, adamw",
                                          did_you_mean(name.text, {"sgd", "adam", "adamw"})));
    }
    if (spec_.is_sgd()) spec_.learning_rate = 0.01;
    if (spec_.name == "adamw") spec_.weight_decay = 0.01;
    const Arguments arguments = read_arguments(&reader_);
    if (!reader_.at_end()) reader_.fail_at(reader_.column(), "expected the end");
    if (!arguments.names.empty()) {
      reader_.fail_at(arguments.names[0].column,
                      concat("'", arguments.names[0].text, "' has no value; write ", arguments.names[0].text, "=..."));
    }
    for (const Option& option : arguments.options) set(option);
    if (spec_.nesterov && (spec_.momentum == 0 || spec_.dampening != 0)) {
      reader_.fail_at(name.column, "nesterov needs a momentum, and a dampening of 0");
    }
    return spec_;
  }

 private:
  void set(const Option& option) {
    const std::string& key = option.key.text;
    if (key == "nesterov" && spec_.is_sgd()) {
      spec_.nesterov = number(option) != 0;
    } else if (key == "betas" && !spec_.is_sgd()) {
      const auto* pair = std::get_if<std::pair<double, double>>(&option.value);
      if (!pair) reader_.fail_at(option.column, "betas are two numbers: betas=(0.9, 0.999)");
      spec_.beta1 = in_range(option, pair->first, true);
      spec_.beta2 = in_range(option, pair->second, true);
    } else {
      const Hyperparameter& parameter = find(option);
      spec_.*parameter.member = in_range(option, number(option), parameter.below_one);
    }
  }

  const Hyperparameter& find(const Option& option) {
    std::vector<std::string> names = {spec_.is_sgd() ? "nesterov" : "betas"};
    for (const Hyperparameter& parameter : kHyperparameters) {
      if (!(spec_.is_sgd() ? parameter.sgd : parameter.adam)) continue;
      if (option.key.text == parameter.key) return parameter;
      names.push_back(parameter.key);
    }
    std::string known;
    for (const std::string& name : names) known += concat(known.empty() ? "" : ", ", name);
    reader_.fail_at(option.key.column, concat(spec_.name, " has no option '", option.key.text, "'; it has ", known,
                                              did_you_mean(option.key.text, names)));
  }

  double number(const Option& option) {
    if (const double* value = std::get_if<double>(&option.value)) return *value;
    reader_.fail_at(option.column, concat("'", option.key.text, "' is a number"));
  }

  double in_range(const Option& option, double value, bool below_one) {
    if (std::isfinite(value) && value >= 0 && (!below_one || value < 1)) return value;
    reader_.fail_at(option.column, concat("'", option.key.text, "' is ", number_text(value), "; it must be ",
                                          below_one ? "in [0, 1)" : "0 or more"));
  }

  ExpressionReader reader_;
  OptimizerSpec spec_;
};

}  // namespace

OptimizerSpec parse_optimizer(const std::string& text) { return OptimizerParser(text).run(); }

std::string to_string(const OptimizerSpec& spec) {
  const std::string lr = "(lr=" + number_text(spec.learning_rate);
  const std::string decay = ", weight_decay=" + number_text(spec.weight_decay) + ")";
  if (!spec.is_sgd()) {
    return concat(spec.name, lr, ", betas=(", number_text(spec.beta1), ", ", number_text(spec.beta2),
                  "), eps=", number_text(spec.epsilon), decay);
  }
  return concat("sgd", lr, ", momentum=", number_text(spec.momentum), ", dampening=", number_text(spec.dampening),
                spec.nesterov ? ", nesterov=true" : "", decay);
}

}  // namespace onnx_train
