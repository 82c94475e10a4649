// What each weight's update is told: the optimizer with the values of its groups, and its share of the learning rate.
// Pure functions; any thread. They throw Error, with the option's text and column, for groups that are not valid.
//
// A group is "PATTERN: lr=10x, weight_decay=0, betas=(0.8, 0.99)". The pattern is a name, a glob or @file (select.h);
// of several groups that match a weight the last one wins, for each option by itself. lr=10x is a factor of the input
// learning_rate; lr=1e-4 is the rate where learning_rate has the value that was built in, at the peak of a schedule. It
// takes the place of a factor by layers (BuildOptions::layer_decay), which a factor multiplies. weight_decay in a group
// counts for all its weights; elsewhere BuildOptions::decay says which decay.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "onnx_passes/model/build_options.h"
#include "onnx_passes/training/optimizer_spec.h"

namespace onnx_train {

struct WeightUpdate {
  OptimizerSpec spec;  // of this weight, with its weight_decay
  double rate = 1;     // factor of the input learning_rate
};

// A line of what `build` prints.
struct GroupLine {
  std::string group;  // as it was given, or "layer 3: blocks.2, lr=0.75x"
  size_t tensors = 0;
  double elements = 0;
};

struct ParameterGroups {
  std::unordered_map<const Value*, WeightUpdate> updates;
  std::vector<GroupLine> lines;  // of groups, then of layers, then of optimizers for the rest
};

// Of the weights that `options` train, in their order. Groups count the weights that their pattern matches.
ParameterGroups parameter_groups(const Model& model, const std::vector<Value*>& weights, const BuildOptions& options);

}  // namespace onnx_train
