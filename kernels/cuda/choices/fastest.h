// Choices between forms of one computation, made by timing them on the device: what is faster for one shape is slower
// for the next. Any thread may call.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

struct Form {
  std::string name;  // unique among the forms of a node, the same in each run, and printed by `show --plan`
  // Prepares the node in this form, for which a library may compile a kernel. Returns nothing if the library refuses
  // the form, which it never does with the first one.
  std::function<std::optional<Prepared>()> prepare;
};

// False with ONNX_TRAIN_TIMED_CHOICES=off: fastest() takes the first form, and others need not be found.
bool has_choices();

// Returns the form that takes the least time for the node on the current device, and says its name in Prepared::form.
// All forms read the node's inputs and write its outputs, whatever the inputs hold. The first form is the rule: it
// stays unless another one is faster by more than kGain, and wherever nothing is timed. A form takes no part if it
// needs more than half of the free memory, or a workspace larger than the rule's, the node's operands and 32 MiB,
// or other results than the rule's.
// ONNX_TRAIN_TIMED_CHOICES is
//   - the seconds that this process spends on choices, kMostSeconds if it is not set: where they are over, a node has
//     the best of the forms that were timed, and says so;
//   - `off`: the rule everywhere;
//   - `form=2`: form 2 of each node, counted from 0, or its last one, so that tests reach all of them.
//
// The answer is kept for this process and in the cache folder (cache.h), by the node's operator, attributes, types and
// shapes, the device, the driver and `library`, the version of what the forms call. So equal nodes have one form, and
// later runs have the same bits; a larger number of seconds makes again what a smaller one cut short. Throws Error when
// the device fails.
//
// Forms are timed on random inputs in [-1, 1), integers on zeros. set_inputs(launch) enqueues the writes of those
// inputs that need other contents.
using SetInputs = std::function<void(const Launch&)>;
Prepared fastest(const NodeSpec& spec, const std::string& library, const std::vector<Form>& forms,
                 const SetInputs& set_inputs = nullptr);

inline constexpr double kGain = 0.02;
inline constexpr double kMostSeconds = 10;

}  // namespace onnx_train::cuda
