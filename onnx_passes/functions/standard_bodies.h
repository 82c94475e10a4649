// Bodies of ONNX's operators for which ONNX has none, or one that is wrong: what inlining puts in the place of a node
// without a kernel, or without a gradient rule. The table is built once; any thread may read it, one thread writes.
#pragma once

#include <string_view>
#include <vector>

#include "onnx_passes/ir/builder.h"

namespace onnx_train {

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

// For bodies: whether the ranks of all inputs are known, and input i; Var() when it is left out.
bool has_ranks(const Node& node);
Var input(Builder& b, const Node& node, int i);

// The columns of a DeformConv, and what its gradient needs of them. N images, G groups of offsets, C channels, K taps,
// P places of the output.
struct DeformedColumns {
  Var x;        // [N G, C / G, S...]
  Var points;   // [N G, K, O..., axes]: SampleImage's, in pixels
  Var sampled;  // [N G, C / G, K, O...]
  Var mask;     // [N G, 1, K, O...], or none
  Var columns;  // [N, groups, C / groups K, P]: of the convolution
  Var weight;   // [groups, M / groups, C / groups K]
};
DeformedColumns deformed_columns(Builder& b, const Node& node);
// The attributes with which they are sampled.
Attrs deformed_sampling();

}  // namespace onnx_train
