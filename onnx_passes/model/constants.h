// The one decision which float initializers of a forward model are weights. A constant is an initializer that training
// leaves as it is unless the user trains it by name: a buffer, a mask, a table, what normalizes an input. Importing
// decides, once, and records it in the model's metadata, "onnx_train.constant.<name>": why; passes, initialization and
// the optimizer ask that record (select_trainable), and training models keep it. Functions on a model that one caller
// owns.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "onnx_passes/model/analysis.h"

namespace onnx_train {

// What the keys of the records begin with; the constant's name follows.
inline constexpr std::string_view kConstantRecord = "onnx_train.constant.";

// Records the constants among the float initializers of the model's graph. In this order:
//
//   1. a record that the model has
//   2. what the file says (weight_origin.h): parameters are weights, buffers and constants of the code are not; a
//   single
//      number that is named as an attribute of a PyTorch module is a weight unless it standardizes an input
//   3. contents that no training produces (constant_values.h), and inputs of operators that hold settings
//   4. guesses: what shifts and scales an input of the model, single numbers, filters of fixed form
//
// If nothing but guesses is left, these are weights, except for numbers. Types must be inferred.
void mark_constants(Model* model);

// The recorded constants by name, with the reason.
std::unordered_map<std::string, std::string> constants_of(const Model& model);
// Removes the records of values that are trained nevertheless.
void forget_constants(Model* model, const std::vector<Value*>& trained);

// Running mean and variance of batch normalization: state that training updates by its own rule.
bool is_running_statistic(const Value* value);

// What a user should know of the decision, a line for each reason: constants, guesses, and weights that may be none.
// `trained`: the weights that are trained.
std::vector<Finding> describe_constants(const Model& model, const std::vector<Value*>& trained);

}  // namespace onnx_train
