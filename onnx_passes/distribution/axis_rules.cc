// The rule (layout_rules.h) of operators whose contract names the axes that ranks may share out (operators.h): images
// by channels, in convolutions, pools and normalization. Axes without a name are whole.
#include <algorithm>

#include "onnx_passes/distribution/movement_rules.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/shape_contract.h"

namespace onnx_train {
namespace {

// Which axis of each value is shared out.
class SharedAxis {
 public:
  SharedAxis(const LayoutRequest& request, int of)
      : r_(request), row_(operator_of(request.node)), cut_(request.given[static_cast<size_t>(of)].cut) {
    const ShapeContract& contract = *find_contract(row_.domain, row_.op);
    inputs_ = contract.axes_of_inputs(r_.node), outputs_ = contract.axes_of_outputs(r_.node);
    if (std::cmp_less(of, inputs_.size()) && cut_.axis < std::ssize(inputs_[static_cast<size_t>(of)]))
      name_ = inputs_[static_cast<size_t>(of)][static_cast<size_t>(cut_.axis)];
    // Channels of groups that do not meet: ranks share out the groups, of which channels in and out are one run each.
    if (r_.node.attr("group", 1) != 1 && name_ != 'N') groups_ = r_.node.attr("group", 1);
  }

  std::optional<NodeLayouts> layouts() const {
    const std::string_view each = row_.each, summed = row_.summed;
    const bool is_known = is_named() && (each.find(name_) != each.npos || summed.find(name_) != summed.npos);
    if (!is_known || (groups_ > 1 && groups_ % r_.parts != 0)) return std::nullopt;
    const bool adds_up = groups_ == 1 && summed.find(name_) != summed.npos;
    NodeLayouts layouts = r_.whole();
    for (int i = 0; i < r_.node.num_inputs(); ++i) {
      const auto layout = layout_of(r_.node.input(i), inputs_, i);
      if (!layout) return std::nullopt;
      // What is added to the sums of products, such as a bias, is added once.
      const bool is_addend = adds_up && layout->is_whole() && r_.node.input(i) && is_float(r_.node.input(i)->dtype());
      layouts.inputs[static_cast<size_t>(i)] = is_addend ? Layout::term() : *layout;
    }
    bool has_parts = false;
    for (int i = 0; i < r_.node.num_outputs(); ++i) {
      const Value* output = r_.node.output(i);
      const auto layout = layout_of(output, outputs_, i);
      // Numbers of elements, as of maxima, count those of whole images.
      if (!layout || (output && !is_float(output->dtype()))) return std::nullopt;
      layouts.outputs[static_cast<size_t>(i)] = adds_up ? Layout::term() : *layout;
      has_parts = has_parts || layout->is_part();
    }
    return adds_up || has_parts ? std::optional(layouts) : std::nullopt;
  }

 private:
  bool is_named() const { return name_ != '.'; }
  bool is_shared(char name) const { return groups_ > 1 ? name == 'C' || name == 'M' : name == name_; }

  // None where ranks cannot have a value so.
  std::optional<Layout> layout_of(const Value* v, const std::vector<std::string>& names, int i) const {
    if (!v) return Layout();
    if (std::cmp_greater_equal(i, names.size())) return std::nullopt;
    const std::string& own = names[static_cast<size_t>(i)];
    const auto at = std::ranges::find_if(own, [&](char name) { return is_shared(name); });
    if (at == own.end()) return Layout();
    const int64_t axis = at - own.begin();
    if (groups_ == 1) return Layout::part(axis, cut_.period);
    if (!v->has_rank() || v->rank() <= axis) return std::nullopt;
    const Dim& size = (*v->type().dims)[static_cast<size_t>(axis)];
    const bool is_given = &names == &inputs_ && r_.is_part(i);
    if (!size.known() || (is_given && r_.given[static_cast<size_t>(i)] != Layout::part(axis, size.value())))
      return std::nullopt;
    return Layout::part(axis, size.value());
  }

  const LayoutRequest& r_;
  const Operator& row_;
  const Cut cut_;
  std::vector<std::string> inputs_, outputs_;
  char name_ = '.';
  int64_t groups_ = 1;
};

}  // namespace

bool shares_axes(const Node& node) { return *operator_of(node).each != 0; }

std::optional<NodeLayouts> axis_rule(const LayoutRequest& r) {
  int of = 0;
  while (of < r.node.num_inputs() && !r.is_part(of)) ++of;
  if (of == r.node.num_inputs() || r.node.attr("channels_last", 0) != 0) return std::nullopt;
  return SharedAxis(r, of).layouts();
}

}  // namespace onnx_train
