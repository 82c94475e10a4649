// Choices between ways to compute a node (kernels/choices/fastest.h) on this processor. Any thread outside a parallel
// region.
#pragma once

#include <string>
#include <vector>

#include "kernels/choices/fastest.h"

namespace onnx_train::cpu {

struct Way {
  const char* name;                           // Form::name
  bool is_supported;                          // on this machine, for this node
  bool is_preferred;                          // by a rule for where nothing is timed, which takes the first such way
  std::function<Prepared()> prepare, sample;  // Form::prepare, Form::sample
};

// What is timed in the place of a node.
struct Sample {
  std::string text;  // Computation::text
  size_t bytes;      // Computation::bytes
};

// Returns the fastest of the ways that are supported. The rule's is the one for a node outside of a session's plan, and
// for one of so few `flops` that a choice costs more than it gains. Throws Error if no way is preferred.
Prepared fastest(const NodeSpec& spec, const Sample& sample, double flops, std::vector<Way> ways);

}  // namespace onnx_train::cpu
