// Rules (layout_rules.h) of operators that look along an axis of which each rank has one run: rows of a table by their
// numbers, the number of a class, the highest of all. Megatron-LM cuts the vocabulary of a language model so.
#include "onnx_passes/distribution/movement_rules.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train {
namespace {

using Found = std::optional<NodeLayouts>;

Found from_part(const LayoutRequest& r, const Layout& output) {
  NodeLayouts layouts = r.whole();
  layouts.inputs[0] = r.given[0];
  layouts.outputs[0] = output;
  return layouts;
}

// One rank has the element, and the others have 0. Along other axes all operands are cut.
Found gather_elements_rule(const LayoutRequest& r) {
  if (is_one_run_along_axis(r)) return from_part(r, Layout::term());
  if (!r.is_part(0) || r.given[0].cut.axis == normalize_axis(r.node.attr("axis", 0), r.node.input(0)->rank()))
    return std::nullopt;
  NodeLayouts layouts = r.whole();
  layouts.inputs[0] = layouts.inputs[1] = layouts.outputs[0] = r.given[0];
  return layouts;
}

// Each rank adds what its elements get.
Found scatter_elements_rule(const LayoutRequest& r) {
  if (r.node.attr("reduction", "none") != "add" || !is_one_run_along_axis(r)) return std::nullopt;
  return from_part(r, r.given[0]);
}

// All ranks know the highest element of each, and where it is.
Found arg_max_rule(const LayoutRequest& r) {
  if (r.node.attr("select_last_index", 0) == 0 && is_one_run_along_axis(r)) return from_part(r, Layout());
  return std::nullopt;
}

}  // namespace

bool is_one_run_along_axis(const LayoutRequest& r) {
  if (!r.is_part(0)) return false;
  const Value& x = *r.node.input(0);
  const Cut& cut = r.given[0].cut;
  const Dim& size = (*x.type().dims)[static_cast<size_t>(cut.axis)];
  return cut.axis == normalize_axis(r.node.attr("axis", 0), x.rank()) && size.known() && size.value() == cut.period;
}

std::vector<MovementRule> index_rules() {
  return {{"", "GatherElements", gather_elements_rule},
          {"", "ScatterElements", scatter_elements_rule},
          {"", "ArgMax", arg_max_rule}};
}

}  // namespace onnx_train
