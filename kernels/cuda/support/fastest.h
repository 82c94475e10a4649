// Choices between forms of one computation, made by timing them on the device: what is faster for one shape is slower
// for the next. Any thread may call.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

struct Form {
  std::string name;  // unique among the forms of a node, and printed by `show --plan`
  Prepared prepared;
};

// False with ONNX_TRAIN_TIMED_CHOICES=off. Then fastest() takes the first form, and others need not be prepared.
bool are_choices_timed();

// Returns the form that takes the least time for the node on the current device, and says its name in Prepared::form.
// All forms read the node's inputs and write its outputs, whatever the inputs hold. The first form is the rule: it
// stays unless another one is faster by more than kGain, and wherever nothing is timed: with
// ONNX_TRAIN_TIMED_CHOICES=off, or if the operands need more than half of the free memory.
//
// The answer is kept for this process and in the cache folder (cache.h), by the node's operator, attributes, types and
// shapes, the device, the driver and `library`, the version of what the forms call. So equal nodes have one form, and
// later runs have the same bits. Throws Error when the device fails.
Prepared fastest(const NodeSpec& spec, const std::string& library, std::vector<Form> forms);

inline constexpr double kGain = 0.02;

}  // namespace onnx_train::cuda
