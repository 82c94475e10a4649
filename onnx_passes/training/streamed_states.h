// States of an optimizer that a step streams: each element is read once and written once, by the update of its weight,
// and nothing else reads it. They may be stored where reading is slow. A pure function on a model that the caller owns;
// throws Error for an entry point that cannot be flattened.
#pragma once

#include <set>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Their names. A state is one if it belongs to a weight, no output of any entry point depends on it but the new values
// of states, and it has an element for each of its weight's: all threads of an update read a smaller one, such as a
// factor of Adafactor or a count. Averages of weights are weights that "evaluate" reads; sums of gradients are read for
// their norm.
std::set<std::string> streamed_states(const Model& model);

}  // namespace onnx_train
