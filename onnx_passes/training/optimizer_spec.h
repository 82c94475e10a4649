// The grammar of --optimizer: a name, and options in parentheses that override PyTorch's defaults (but for lr of sgd,
// which has none there: 0.01).
//
//   sgd    lr=0.01, momentum=0, dampening=0, weight_decay=0, nesterov=false
//   adam   lr=0.001, betas=(0.9, 0.999) or beta1=, beta2=, eps=1e-8, weight_decay=0        decay in the gradient
//   adamw  the same, weight_decay=0.01                                                     decoupled decay
//
// lr is the default of the input learning_rate. Plain values; any thread.
#pragma once

#include <string>
#include <vector>

namespace onnx_train {

struct OptimizerSpec {
  std::string name;  // "sgd", "adam", "adamw"
  double learning_rate = 0.001;
  double weight_decay = 0;
  double momentum = 0, dampening = 0;  // sgd
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // adam, adamw

  bool is_sgd() const { return name == "sgd"; }
};

// Throws Error that names the column.
OptimizerSpec parse_optimizer(const std::string& text);
// With every option: "adamw(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01)".
std::string to_string(const OptimizerSpec& spec);

}  // namespace onnx_train
