// Rules (layout_rules.h) of operators on images. Batch and channels are the first two axes; the others are whole.
#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "onnx_passes/distribution/movement_rules.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train {
namespace {

// A letter for each of the first two axes of the inputs and outputs: the same letter, the same index. The operator
// computes for each index along `each` by itself, and adds up along `summed`.
struct AxisNames {
  std::vector<std::string_view> inputs, outputs;
  std::string_view each, summed;
};

const std::map<std::string_view, AxisNames>& names_of_axes() {
  static const std::map<std::string_view, AxisNames> table = {
      {"Conv", {{"NC", "MC", "M"}, {"NM"}, "NM", "C"}},
      {"ConvTranspose", {{"NC", "CM", "M"}, {"NM"}, "NM", "C"}},
      {"ConvGradInput", {{"NM", "MC", ""}, {"NC"}, "NC", "M"}},
      {"ConvGradWeight", {{"NC", "NM", ""}, {"MC", "M"}, "MC", "N"}},
      {"MaxPool", {{"NC"}, {"NC"}, "NC", ""}},
      {"AveragePool", {{"NC"}, {"NC"}, "NC", ""}},
      {"LpPool", {{"NC"}, {"NC"}, "NC", ""}},
      {"MaxPoolGrad", {{"NC", "NC"}, {"NC"}, "NC", ""}},
      {"AveragePoolGrad", {{"NC", ""}, {"NC"}, "NC", ""}},
      {"GlobalAveragePool", {{"NC"}, {"NC"}, "NC", ""}},
      {"GlobalMaxPool", {{"NC"}, {"NC"}, "NC", ""}},
      {"BatchNormalization", {{"NC", "C", "C", "C", "C"}, {"NC", "C", "C"}, "C", ""}},
      {"BatchNormalizationTrain", {{"NC", "C", "C"}, {"NC", "C", "C"}, "C", ""}},
      {"BatchNormalizationGrad", {{"NC", "C", "C", "C", "NC"}, {"NC", "C", "C"}, "C", ""}},
      {"BatchNormalizationFrozenGrad", {{"NC", "C", "C", "C", "NC"}, {"NC", "C", "C"}, "C", ""}},
      {"InstanceNormalization", {{"NC", "C", "C"}, {"NC"}, "NC", ""}},
  };
  return table;
}

// With groups of channels that do not meet: ranks share out groups, which the channels in and out are one run of.
const std::map<std::string_view, AxisNames>& names_with_groups() {
  static const std::map<std::string_view, AxisNames> table = {
      {"Conv", {{"NG", "G", "G"}, {"NG"}, "G", ""}},
      {"ConvGradInput", {{"NG", "G", ""}, {"NG"}, "G", ""}},
      {"ConvGradWeight", {{"NG", "NG", ""}, {"G", "G"}, "G", ""}},
  };
  return table;
}

const AxisNames* names_of(const Node& node) {
  const auto& table = node.attr("group", 1) == 1 ? names_of_axes() : names_with_groups();
  const auto found = table.find(node.op());
  return found == table.end() ? nullptr : &found->second;
}

// How ranks have a value along the axis of this name: none where they cannot.
std::optional<Layout> layout_along(const Value* v, std::string_view names, char name, const Cut& cut, bool has_groups) {
  const size_t axis = names.find(name);
  if (axis == std::string_view::npos || !v) return Layout();
  int64_t period = cut.period;
  if (has_groups) {  // one run of as many channels as there are
    const Dim* size = v->has_rank() && std::cmp_less(axis, v->rank()) ? &(*v->type().dims)[axis] : nullptr;
    if (!size || !size->known()) return std::nullopt;
    period = size->value();
  }
  return Layout::part(static_cast<int64_t>(axis), period);
}

std::optional<NodeLayouts> axis_rule(const LayoutRequest& r) {
  const AxisNames* names = names_of(r.node);
  int of = 0;
  while (of < r.node.num_inputs() && !r.is_part(of)) ++of;
  if (!names || of == r.node.num_inputs()) return std::nullopt;
  // Indices of maxima are those of whole images.
  if (std::cmp_greater(r.node.num_inputs(), names->inputs.size()) ||
      std::cmp_greater(r.node.num_outputs(), names->outputs.size()))
    return std::nullopt;
  const Cut& cut = r.given[static_cast<size_t>(of)].cut;
  const std::string_view of_input = names->inputs[static_cast<size_t>(of)];
  if (cut.axis >= std::ssize(of_input)) return std::nullopt;
  const char name = of_input[static_cast<size_t>(cut.axis)];
  const bool is_summed = names->summed.find(name) != std::string_view::npos, has_groups = name == 'G';
  if (!is_summed && names->each.find(name) == std::string_view::npos) return std::nullopt;
  const Dim& size = (*r.node.input(of)->type().dims)[static_cast<size_t>(cut.axis)];
  if (has_groups && (r.node.attr("group", 1) % r.parts != 0 || !size.known() || size.value() != cut.period))
    return std::nullopt;
  NodeLayouts layouts = r.whole();
  for (int i = 0; i < r.node.num_inputs(); ++i) {
    const std::string_view own = names->inputs[static_cast<size_t>(i)];
    const auto layout = layout_along(r.node.input(i), own, name, cut, has_groups);
    if (!layout) return std::nullopt;
    // A bias is added once to what is added up.
    const bool is_addend = is_summed && layout->is_whole() && !own.empty() && r.node.input(i);
    layouts.inputs[static_cast<size_t>(i)] = is_addend ? Layout::term() : *layout;
  }
  for (int i = 0; i < r.node.num_outputs(); ++i) {
    const std::string_view own = names->outputs[static_cast<size_t>(i)];
    const auto layout = layout_along(r.node.output(i), own, name, cut, has_groups);
    if (!layout) return std::nullopt;
    layouts.outputs[static_cast<size_t>(i)] = is_summed ? Layout::term() : *layout;
  }
  return layouts;
}

}  // namespace

std::vector<MovementRule> axis_rules() {
  std::vector<MovementRule> rules;
  for (const auto& [op, names] : names_of_axes()) {
    for (const char* domain : {"", kDomain}) rules.push_back({domain, op.data(), axis_rule});
  }
  return rules;
}

}  // namespace onnx_train
