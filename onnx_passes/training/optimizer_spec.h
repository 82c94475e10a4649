// The grammar of --optimizer: a name, and options in parentheses that override PyTorch's defaults (but for lr of sgd,
// which had none there: 0.01).
//
//   sgd    lr=0.01, momentum=0, dampening=0, nesterov=false, weight_decay=0
//   adamw  lr=0.001, betas=(0.9, 0.999) or beta1=, beta2=, eps=1e-8, weight_decay=0.01
//
// optimizer_table.h has all names and options. lr is the default of the input learning_rate. Plain values; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "onnx_passes/text/expression.h"
#include "onnx_passes/training/optimizer_table.h"

namespace onnx_train {

struct OptimizerSpec {
  const OptimizerRow* row = nullptr;
  std::vector<double> values;  // of row->hyperparameters

  // The value of a hyper-parameter that the row has.
  double operator[](std::string_view key) const;
  bool has(std::string_view key) const;

  // Sets what `option` says: a hyper-parameter or a pair. Throws Error that names the column.
  void set(const Option& option, const ExpressionReader& reader);
  // Why the values do not fit together; "" if they do.
  std::string conflict() const { return row->conflict ? row->conflict(*this) : ""; }
  // Whether the row's variant is asked for.
  bool is_variant() const { return row->variant.key && (*this)[row->variant.key] != 0; }
  // The function that updates a weight.
  const char* op() const { return is_variant() ? row->variant.op : row->op; }
  // The optimizer of this weight: this one, or the row's `rest` with the same values.
  OptimizerSpec of(const Value& weight) const;
};

// Throws Error that names the column.
OptimizerSpec parse_optimizer(const std::string& text);
// With every option: "adamw(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01)". Flags and choices are left
// out where they are the default.
std::string to_string(const OptimizerSpec& spec);
// Every optimizer with the names of its options, for help: "sgd(lr, momentum, ...), adam(...)".
std::string describe_optimizers();
std::vector<std::string> optimizer_names();

}  // namespace onnx_train
