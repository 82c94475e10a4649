#include "onnx_passes/distribution/layout_rules.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "onnx_passes/distribution/movement_rules.h"
#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

LayoutRequest::LayoutRequest(const Node& of, const std::vector<Layout>& has, int64_t ranks)
    : node(of), given(has), parts(ranks) {}

NodeLayouts LayoutRequest::whole() const {
  return {std::vector<Layout>(given.size()), std::vector<Layout>(static_cast<size_t>(node.num_outputs())), false};
}

bool LayoutRequest::is_part(int i) const {
  return node.input(i) && node.input(i)->has_rank() && given[static_cast<size_t>(i)].is_part();
}

namespace {

// What each rank has of an operand that is broadcast to a result of `rank` axes, which is cut. An operand of size 1
// along the axis is whole. None where its size is not known.
std::optional<Layout> aligned(const Value& operand, const Layout& given, int64_t rank, const Cut& cut, const Dim& size,
                              int64_t parts) {
  if (!operand.has_rank()) return std::nullopt;
  const int64_t axis = cut.axis - (rank - operand.rank());
  if (axis < 0) return Layout();
  const Layout part = Layout::part(axis, cut.period);
  if (given == part) return given;
  const Dim& own = (*operand.type().dims)[static_cast<size_t>(axis)];
  if (own.known() && own.value() == 1) return Layout();
  if (own.known() ? !divides(part.cut, own.value(), parts) : !own.same(size)) return std::nullopt;
  return part;
}

using Rule = std::optional<NodeLayouts> (*)(const LayoutRequest&);

bool is_one_number(const Value* v) {
  if (!v || !v->has_rank()) return false;
  return std::ranges::all_of(*v->type().dims, [](const Dim& d) { return d.known() && d.value() == 1; });
}

// A linear function of what is added up over ranks, before it is.
std::optional<NodeLayouts> linear(const LayoutRequest& r) {
  NodeLayouts layouts = r.whole();
  const auto all_terms = [&] {
    for (size_t i = 0; i < layouts.inputs.size(); ++i) layouts.inputs[i] = Layout::term();
    layouts.outputs[0] = Layout::term();
    return layouts;
  };
  const std::string& op = r.node.op();
  if (!r.node.domain().empty()) return std::nullopt;
  if (op == "Add" || op == "Sub" || op == "Sum" || op == "Neg") return all_terms();
  if (op != "Mul" && op != "Div") return std::nullopt;
  const size_t term = r.given[0].is_term() ? 0 : 1;
  if (term == 1 && op == "Div") return std::nullopt;
  if (!r.given[1 - term].is_whole() || !is_one_number(r.node.input(static_cast<int>(1 - term)))) return std::nullopt;
  layouts.inputs[term] = layouts.outputs[0] = Layout::term();
  return layouts;
}

// Element by element, with broadcasting, of the first `count` inputs; the others say how to compute.
std::optional<NodeLayouts> elementwise(const LayoutRequest& r, int count) {
  int of = 0;
  while (of < count && !r.is_part(of)) ++of;
  NodeLayouts layouts = r.whole();
  for (size_t i = static_cast<size_t>(count); i < layouts.inputs.size(); ++i) layouts.inputs[i] = r.given[i];
  if (of == count) return std::ranges::any_of(r.given, &Layout::is_term) ? linear(r) : layouts;
  const Value* y = nullptr;
  for (const Value* output : r.node.outputs()) y = y ? y : output;
  if (!y || !y->has_rank()) return std::nullopt;
  const Value& x = *r.node.input(of);
  Cut cut = r.given[static_cast<size_t>(of)].cut;
  const Dim size = (*x.type().dims)[static_cast<size_t>(cut.axis)];
  cut.axis += y->rank() - x.rank();
  for (int i = 0; i < count; ++i) {
    if (!r.node.input(i)) continue;
    const auto layout = aligned(*r.node.input(i), r.given[static_cast<size_t>(i)], y->rank(), cut, size, r.parts);
    if (!layout) return std::nullopt;
    layouts.inputs[static_cast<size_t>(i)] = *layout;
  }
  for (size_t i = 0; i < layouts.outputs.size(); ++i) {
    const Value* output = r.node.output(static_cast<int>(i));
    if (!output) continue;
    if (!output->has_rank() || output->rank() != y->rank()) return std::nullopt;
    layouts.outputs[i] = Layout::part(cut.axis, cut.period);
  }
  return layouts;
}

std::optional<NodeLayouts> of_all(const LayoutRequest& r) { return elementwise(r, r.node.num_inputs()); }
std::optional<NodeLayouts> of_first(const LayoutRequest& r) { return elementwise(r, 1); }
std::optional<NodeLayouts> of_two(const LayoutRequest& r) { return elementwise(r, 2); }

// The axes of the operands of a product: those that the result has, too, and those that are summed over.
struct ProductAxes {
  int64_t free[2], summed[2];
};

std::optional<NodeLayouts> product(const LayoutRequest& r, const ProductAxes& axes) {
  const Value* const operands[] = {r.node.input(0), r.node.input(1)};
  const int i = r.is_part(0) ? 0 : 1, other = 1 - i;
  if (!r.is_part(i)) return std::nullopt;
  const Cut cut = r.given[static_cast<size_t>(i)].cut;
  const int64_t ranks[] = {operands[0]->rank(), operands[1]->rank()}, rank = std::max(ranks[0], ranks[1]);
  NodeLayouts layouts = r.whole();
  layouts.inputs[static_cast<size_t>(i)] = r.given[static_cast<size_t>(i)];
  Layout& of_other = layouts.inputs[static_cast<size_t>(other)];
  if (cut.axis == axes.summed[i]) {
    of_other = Layout::part(axes.summed[other], cut.period);
    layouts.outputs[0] = Layout::term();
  } else if (cut.axis == axes.free[i]) {
    layouts.outputs[0] = Layout::part(i == 0 ? rank - 2 : rank - 1, cut.period);
  } else {  // of the batch
    const Cut of_result{cut.axis + rank - ranks[i], cut.period};
    const auto layout = aligned(*operands[other], r.given[static_cast<size_t>(other)], rank, of_result,
                                (*operands[i]->type().dims)[static_cast<size_t>(cut.axis)], r.parts);
    if (!layout) return std::nullopt;
    of_other = *layout;
    layouts.outputs[0] = Layout::part(of_result.axis, of_result.period);
  }
  return layouts;
}

bool have_ranks(const Node& node) {
  const auto is_matrix = [](const Value* v) { return v && v->has_rank() && v->rank() >= 2; };
  return is_matrix(node.input(0)) && is_matrix(node.input(1));
}

std::optional<NodeLayouts> matmul_rule(const LayoutRequest& r) {
  if (!have_ranks(r.node)) return std::nullopt;
  const int64_t a = r.node.input(0)->rank(), b = r.node.input(1)->rank();
  return product(r, {{a - 2, b - 1}, {a - 1, b - 2}});
}

// C is added to what is a part, and once to what is added up.
std::optional<NodeLayouts> gemm_rule(const LayoutRequest& r) {
  if (!have_ranks(r.node)) return std::nullopt;
  const bool ta = r.node.attr("transA", 0) != 0, tb = r.node.attr("transB", 0) != 0;
  std::optional<NodeLayouts> layouts = product(r, {{ta ? 1 : 0, tb ? 0 : 1}, {ta ? 0 : 1, tb ? 1 : 0}});
  const Value* c = r.node.input(2);
  if (!layouts || !c) return layouts;
  const Layout& y = layouts->outputs[0];
  if (y.is_term()) {
    layouts->inputs[2] = y;
  } else if (y.is_part()) {
    const auto layout = aligned(*c, r.given[2], 2, y.cut, Dim(), r.parts);
    if (!layout) return std::nullopt;
    layouts->inputs[2] = *layout;
  }
  return layouts;
}

// The axes that a reduction removes, as marks; none if they are not known.
std::optional<std::vector<bool>> reduced_axes(const Node& node) {
  const Value* x = node.input(0);
  if (!x || !x->has_rank()) return std::nullopt;
  const auto rank = static_cast<size_t>(x->rank());
  std::optional<std::vector<int64_t>> axes =
      node.input(1) ? constant_ints(node, 1) : std::optional(node.attr("axes", std::vector<int64_t>()));
  if (!axes) return std::nullopt;
  if (axes->empty()) return std::vector<bool>(rank, node.attr("noop_with_empty_axes", 0) == 0);
  std::vector<bool> marks(rank);
  for (const int64_t axis : *axes) marks[static_cast<size_t>(normalize_axis(axis, x->rank()))] = true;
  return marks;
}

// Where there is no rule, the body of the function says it, if there is one.
std::optional<NodeLayouts> by_body(const LayoutRequest& r) {
  if (is_collective(r.node) || !has_function_body(r.node)) return std::nullopt;
  NodeLayouts layouts = r.whole();
  layouts.by_body = true;
  return layouts;
}

std::optional<NodeLayouts> reduction(const LayoutRequest& r) {
  NodeLayouts layouts = r.whole();
  const std::string& op = r.node.op();
  if (r.given[0].is_term()) {
    if (op == "ReduceMax" || op == "ReduceMin") return layouts;  // of all parts
    if (op != "ReduceSum" && op != "ReduceMean") return std::nullopt;
    layouts.inputs[0] = layouts.outputs[0] = Layout::term();
    return layouts;
  }
  if (!r.is_part(0)) return std::nullopt;
  const auto axes = reduced_axes(r.node);
  if (!axes) return std::nullopt;
  const Cut cut = r.given[0].cut;
  layouts.inputs[0] = r.given[0];
  if ((*axes)[static_cast<size_t>(cut.axis)]) {
    if (op == "ReduceMax" || op == "ReduceMin") return layouts;  // of all parts
    if (op != "ReduceSum" && op != "ReduceMean" && op != "ReduceSumSquare" && op != "ReduceL1") return by_body(r);
    layouts.outputs[0] = Layout::term();
    return layouts;
  }
  const bool keeps = r.node.attr("keepdims", 1) != 0;
  const int64_t gone = keeps ? 0 : std::count(axes->begin(), axes->begin() + cut.axis, true);
  layouts.outputs[0] = Layout::part(cut.axis - gone, cut.period);
  return layouts;
}

// Computed along one axis, which ranks have whole.
std::optional<NodeLayouts> along_axis(const LayoutRequest& r) {
  for (int i = 0; i < r.node.num_inputs(); ++i) {
    if (!r.is_part(i)) continue;
    const int64_t axis = normalize_axis(r.node.attr("axis", -1), r.node.input(i)->rank());
    if (r.given[static_cast<size_t>(i)].cut.axis == axis) return std::nullopt;
  }
  return of_all(r);
}

// Normalized over the axes from `axis` on, which ranks have whole, with the scale.
std::optional<NodeLayouts> normalization(const LayoutRequest& r, const std::vector<int>& like_x) {
  const auto of = std::ranges::find_if(like_x, [&](int i) { return r.is_part(i); });
  if (of == like_x.end()) return std::nullopt;
  const Value& x = *r.node.input(*of);
  const Layout& part = r.given[static_cast<size_t>(*of)];
  const int64_t axis = normalize_axis(r.node.attr("axis", -1), x.rank());
  const Value* scale = r.node.input(1);
  if (part.cut.axis >= axis || !scale || !scale->has_rank() || scale->rank() > x.rank() - axis) return std::nullopt;
  NodeLayouts layouts = r.whole();
  for (const int i : like_x) {
    if (r.node.input(i)) layouts.inputs[static_cast<size_t>(i)] = part;
  }
  for (Layout& output : layouts.outputs) output = part;
  return layouts;
}

std::optional<NodeLayouts> normalization_rule(const LayoutRequest& r) { return normalization(r, {0}); }

std::optional<NodeLayouts> normalization_gradient(const LayoutRequest& r) {
  std::optional<NodeLayouts> layouts = normalization(r, {0, 2, 3});
  if (!layouts) return layouts;
  for (size_t i = 1; i < layouts->outputs.size(); ++i) layouts->outputs[i] = Layout::term();  // of scale and bias
  return layouts;
}

const std::map<std::pair<std::string_view, std::string_view>, Rule>& rules() {
  static const std::map<std::pair<std::string_view, std::string_view>, Rule> table = [] {
    std::map<std::pair<std::string_view, std::string_view>, Rule> made = {
        {{"", "MatMul"}, matmul_rule},
        {{"", "Gemm"}, gemm_rule},
        {{"", "CastLike"}, of_first},
        {{"", "Softmax"}, along_axis},
        {{"", "LogSoftmax"}, along_axis},
        {{kDomain, "SoftmaxGrad"}, along_axis},
        {{kDomain, "LogSoftmaxGrad"}, along_axis},
        {{"", "LayerNormalization"}, normalization_rule},
        {{"", "RMSNormalization"}, normalization_rule},
        {{kDomain, "RMSNormalization"}, normalization_rule},
        {{kDomain, "LayerNormalizationGrad"}, normalization_gradient},
        {{kDomain, "RMSNormalizationGrad"}, normalization_gradient},
        {{kDomain, "StopGradient"}, of_first},
        {{kDomain, "RoundTo"}, of_first},
        {{kDomain, "RoundGradientTo"}, of_first},
        {{kDomain, "Dropout"}, of_first},
        {{kDomain, "Sgd"}, of_all},
        {{kDomain, "Adam"}, of_all},
        {{kDomain, "AdamW"}, of_all},
        // Over ranks that share out batches.
        {{kDomain, "AllReduce"}, of_two},
        {{kDomain, "Broadcast"}, of_first},
    };
    for (const auto& family : {movement_rules(), index_rules()}) {
      for (const MovementRule& row : family) made[{row.domain, row.op}] = row.rule;
    }
    return made;
  }();
  return table;
}

}  // namespace

NodeLayouts layouts_of(const Node& node, const std::vector<Layout>& given, int64_t parts) {
  const LayoutRequest request(node, given, parts);
  std::optional<NodeLayouts> layouts;
  const auto row = rules().find({node.domain(), node.op()});
  if (row != rules().end()) {
    layouts = row->second(request);
  } else if (shares_axes(node)) {
    layouts = axis_rule(request);
  } else if (is_elementwise(node)) {
    layouts = of_all(request);
  } else if (is_reduction(node)) {
    layouts = reduction(request);
  } else if (std::ranges::any_of(given, &Layout::is_part)) {
    layouts = by_body(request);
  }
  return layouts ? *layouts : request.whole();
}

bool keeps_places(const Node& node) {
  return (is_elementwise(node) && node.num_inputs() == 1) || node.is("Identity") || node.is("RoundTo", kDomain) ||
         node.is("RoundGradientTo", kDomain);
}

std::optional<std::vector<int64_t>> constant_ints(const Node& node, int input) {
  const Value* v = node.input(input);
  const Tensor constant = v ? constant_of(v) : Tensor();
  if (constant.empty() || !is_integer(constant.dtype())) return std::nullopt;
  return constant.to_ints();
}

}  // namespace onnx_train
