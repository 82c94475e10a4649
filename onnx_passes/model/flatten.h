// Plain models of a training model: one entry point, or inference alone. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// The metadata of a node that computes what an earlier one does, and more: the name of that node's first output.
// Flattened entry points have one of the two.
inline constexpr const char* kRepeats = "onnx_train.repeats";

// One entry point as a plain model: graph and algorithm concatenated, without dead nodes. Each state is an input of its
// own name, and its new value an output with the role "next", named next/<state> if that is free; inputs with defaults
// keep them. kPredict is the inference graph alone with its weights as initializers; kInitialize joins all
// initialization graphs (input: seed, with a default).
Model flatten(const Model& model, const EntryName& entry);
// The states that an entry point reads or writes, in the order of flatten's inputs.
std::vector<std::string> state_of(const Model& model, const EntryName& entry);
// Without functions that no node calls, and opsets that no node needs.
Model without_unused(Model model);

}  // namespace onnx_train
