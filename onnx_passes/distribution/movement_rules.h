// The rules (layout_rules.h) of operators that move elements, and what they are given. Pure functions; any thread.
#pragma once

#include <optional>
#include <vector>

#include "onnx_passes/distribution/layout_rules.h"

namespace onnx_train {

// What a rule is asked.
struct LayoutRequest {
  LayoutRequest(const Node& of, const std::vector<Layout>& has, int64_t ranks);
  NodeLayouts whole() const;  // all inputs and outputs
  bool is_part(int i) const;  // whether ranks have parts of input `i`, whose rank is known

  const Node& node;
  const std::vector<Layout>& given;
  int64_t parts;
};

struct MovementRule {
  const char *domain, *op;
  std::optional<NodeLayouts> (*rule)(const LayoutRequest&);  // none: the node wants all inputs whole
};

std::vector<MovementRule> movement_rules();
std::vector<MovementRule> index_rules();  // index_rules.cc
// Whether input 0 is cut along the node's attribute `axis` into one run, whose size is known.
bool is_one_run_along_axis(const LayoutRequest& r);

// The rule of operators whose row names the axes that may be shared out; the others' has no such node.
bool shares_axes(const Node& node);
std::optional<NodeLayouts> axis_rule(const LayoutRequest& request);

}  // namespace onnx_train
