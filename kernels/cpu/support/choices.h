// Choices between ways to compute a node (kernels/choices/fastest.h) on this processor. Any thread outside a parallel
// region.
#pragma once

#include <string>
#include <vector>

#include "kernels/choices/fastest.h"

namespace onnx_train::cpu {

struct Way {
  const char* name;   // Form::name
  bool is_supported;  // on this machine, for this node
  bool is_preferred;  // by a rule for where nothing is timed, which takes the first such way
  std::function<Prepared()> prepare, sample = nullptr;  // Form::prepare, Form::sample
};

// Returns the fastest of the ways that are supported. The rule's is the one for a node outside of a session's plan, and
// for one of so few `flops` that a choice costs more than it gains. `text`: Computation::text. Throws Error if no way
// is preferred.
Prepared fastest(const NodeSpec& spec, const std::string& text, double flops, std::vector<Way> ways);

}  // namespace onnx_train::cpu
