// Bodies of ONNX's operators for which ONNX has none, or one that is wrong: what inlining puts in the place of a node
// without a kernel, or without a gradient rule. The table is built once; any thread may read it, one thread writes.
#pragma once

#include <string_view>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

class Builder;
class Var;

struct StandardBody {
  const char* op;
  // Whether what is known of the node's shapes suffices.
  bool (*is_ready)(const Node& node);
  // Adds the body; returns the values of the node's outputs.
  std::vector<Var> (*write)(Builder& b, const Node& node);
};

bool has_standard_body(std::string_view op);
// Null if there is none, or if it is not ready.
const StandardBody* find_standard_body(const Node& node);

}  // namespace onnx_train
