// The epilogue of a fused operator of our domain: what its node does after the operator itself. The attribute
// `epilogue` lists the steps in order; what a step reads or writes has a name in the operator's row (operators.h):
//
//   y, kept = onnx_train.MatMul <epilogue = "bias, keep, gelu"> (a, b, bias)
//
// Only lowering makes such nodes; no training file holds one. Pure functions; any thread. They throw Error that names
// the node if its attribute has a step that the table does not have.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/attrs.h"
#include "onnx_passes/ir/graph.h"

namespace onnx_train {

inline constexpr const char* kEpilogue = "epilogue";  // the attribute

// A step computes y from the y of the step before it; the first one's is the operator's result.
enum class EpilogueStep {
  kBias,              // y + bias, one number per column
  kResidual,          // y + residual, a tensor like y
  kKeep,              // y, which also becomes the output `kept`
  kRelu,              // f(y)
  kGelu,              // f(y)
  kGeluTanh,          // f(y), with tanh
  kReluGradient,      // f'(at) y, where `at` is Relu's result: it has the sign of Relu's operand
  kGeluGradient,      // f'(at) y
  kGeluTanhGradient,  // f'(at) y
  kSumsOfA,           // y; the sums of operand a over the product's inner axis become the output `sums`
  kSumsOfB,           // y; the same for operand b
};
using Epilogue = std::vector<EpilogueStep>;

struct EpilogueStepRow {
  EpilogueStep step;
  const char* name;
  const char* reads = nullptr;   // the name of an input
  const char* writes = nullptr;  // the name of an output
};
const EpilogueStepRow& row_of(EpilogueStep step);

Epilogue epilogue_of(const Node& node);
Epilogue epilogue_of(const Attrs& attrs);
std::string to_string(const Epilogue& epilogue);  // "bias, gelu"

bool has_step(const Epilogue& epilogue, EpilogueStep step);
bool has_step(const Node& node, EpilogueStep step);

// Whether the node's epilogue has no other steps than these. True without an epilogue.
bool has_only(const Node& node, const Epilogue& steps);

// Throws Error unless the epilogue consists of `possible` steps, and the node has of what these read and write what the
// epilogue needs and nothing else. check_shapes calls it with the steps of the operator's row.
void check_epilogue(const Node& node, const Epilogue& possible);

}  // namespace onnx_train
