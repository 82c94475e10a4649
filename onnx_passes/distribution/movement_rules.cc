#include "onnx_passes/distribution/movement_rules.h"

#include <algorithm>
#include <numeric>

#include "onnx_passes/functions/functions.h"

namespace onnx_train {

std::optional<Cut> cut_of_view(const Dims& from, const Cut& cut, const Dims& to, int64_t parts) {
  auto i = static_cast<int64_t>(from.size()) - 1, k = static_cast<int64_t>(to.size()) - 1;
  const auto size = [](const Dims& dims, int64_t axis) -> const Dim& { return dims[static_cast<size_t>(axis)]; };
  // Equal sizes after the axis change nothing, and may be unknown.
  while (i > cut.axis && k >= 0 && size(from, i).same(size(to, k))) --i, --k;
  if (i == cut.axis && k >= 0 && size(from, i).same(size(to, k))) return Cut{k, cut.period};
  int64_t run = cut.period;  // elements
  for (; i > cut.axis; --i) {
    if (!size(from, i).known()) return std::nullopt;
    run *= size(from, i).value();
  }
  for (int64_t inner = 1; k >= 0; --k) {
    const Dim& own = size(to, k);
    // All elements before are whole runs, so that a first axis of unknown size has whole runs, too.
    const int64_t period = run / inner;
    const bool fits = run % inner == 0 && period % parts == 0;
    if (fits && (own.known() ? own.value() > 0 && own.value() % period == 0 : k == 0)) return Cut{k, period};
    if (!own.known() || own.value() == 0) return std::nullopt;
    inner *= own.value();
  }
  return std::nullopt;
}

namespace {

using Found = std::optional<NodeLayouts>;

// Of a node that moves the elements of input 0: as terms, or as parts of which each output has `cut`.
Found moved(const LayoutRequest& r, const std::optional<Cut>& cut) {
  if (!cut) return std::nullopt;
  NodeLayouts layouts = r.whole();
  layouts.inputs[0] = r.given[0];
  for (Layout& output : layouts.outputs) output = Layout::part(cut->axis, cut->period);
  return layouts;
}
Found moved_terms(const LayoutRequest& r) {
  NodeLayouts layouts = r.whole();
  layouts.inputs[0] = r.given[0];
  for (Layout& output : layouts.outputs) output = Layout::term();
  return layouts;
}

const Cut& cut_of_first(const LayoutRequest& r) { return r.given[0].cut; }
const Dims& sizes(const Value* v) { return *v->type().dims; }

Found view_rule(const LayoutRequest& r) {
  if (r.given[0].is_term()) return moved_terms(r);
  if (!r.is_part(0) || !r.node.output()->has_rank()) return std::nullopt;
  return moved(r, cut_of_view(sizes(r.node.input(0)), cut_of_first(r), sizes(r.node.output()), r.parts));
}

Found transpose_rule(const LayoutRequest& r) {
  if (r.given[0].is_term()) return moved_terms(r);
  if (!r.is_part(0)) return std::nullopt;
  Shape perm(static_cast<size_t>(r.node.input(0)->rank()));
  std::iota(perm.rbegin(), perm.rend(), 0);
  perm = r.node.attr("perm", perm);
  const auto at = std::ranges::find(perm, cut_of_first(r).axis);
  return moved(r, Cut{at - perm.begin(), cut_of_first(r).period});
}

Found expand_rule(const LayoutRequest& r) {
  if (!r.is_part(0) || !r.node.output()->has_rank()) return std::nullopt;
  const int64_t more = r.node.output()->rank() - r.node.input(0)->rank();
  return moved(r, Cut{cut_of_first(r).axis + more, cut_of_first(r).period});
}

// All pieces are cut alike, also along the axis, where each has whole runs.
Found concat_rule(const LayoutRequest& r) {
  int of = 0;
  while (of < r.node.num_inputs() && !r.is_part(of)) ++of;
  if (of == r.node.num_inputs()) return std::nullopt;
  const Layout part = r.given[static_cast<size_t>(of)];
  NodeLayouts layouts = r.whole();
  for (int i = 0; i < r.node.num_inputs(); ++i) {
    const Value* x = r.node.input(i);
    if (!x || !x->has_rank()) return std::nullopt;
    const Dim& size = sizes(x)[static_cast<size_t>(part.cut.axis)];
    if (r.given[static_cast<size_t>(i)] != part && (!size.known() || !divides(part.cut, size.value(), r.parts)))
      return std::nullopt;
    layouts.inputs[static_cast<size_t>(i)] = part;
  }
  layouts.outputs[0] = part;
  return layouts;
}

Found split_rule(const LayoutRequest& r) {
  if (!r.is_part(0)) return std::nullopt;
  const Value& x = *r.node.input(0);
  const Cut& cut = cut_of_first(r);
  if (normalize_axis(r.node.attr("axis", 0), x.rank()) == cut.axis) {
    const Dim& size = sizes(&x)[static_cast<size_t>(cut.axis)];
    const int64_t outputs = r.node.num_outputs();
    std::vector<int64_t> of_pieces;
    if (r.node.input(1)) {
      if (auto given = constant_ints(r.node, 1)) of_pieces = std::move(*given);
    } else if (size.known() && size.value() % outputs == 0) {
      of_pieces.assign(static_cast<size_t>(outputs), size.value() / outputs);
    }
    const auto has_runs = [&](int64_t piece) { return piece % cut.period == 0; };
    if (of_pieces.empty() || !std::ranges::all_of(of_pieces, has_runs)) return std::nullopt;
  }
  return moved(r, cut);
}

// The axes of a slice, counted from the start, as the node lists them; none if they are not known.
std::optional<std::vector<int64_t>> sliced_axes(const Node& node, int axes_at, int64_t rank) {
  std::vector<int64_t> axes;
  if (node.input(axes_at)) {
    auto given = constant_ints(node, axes_at);
    if (!given) return std::nullopt;
    for (const int64_t axis : *given) axes.push_back(normalize_axis(axis, rank));
    return axes;
  }
  const Value* starts = node.input(axes_at - 2);
  if (!starts || !starts->type().is_static()) return std::nullopt;
  axes.resize(static_cast<size_t>(num_elements(starts->type().shape())));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

// Of a slice of some runs the ranks have their shares; other axes are whole.
Found slice_rule(const LayoutRequest& r) {
  if (!r.is_part(0)) return std::nullopt;
  const Value& x = *r.node.input(0);
  const Cut& cut = cut_of_first(r);
  const auto axes = sliced_axes(r.node, 3, x.rank());
  if (!axes) return std::nullopt;
  const auto at = std::ranges::find(*axes, cut.axis);
  if (at == axes->end()) return moved(r, cut);
  const auto i = static_cast<size_t>(at - axes->begin());
  const auto starts = constant_ints(r.node, 1), ends = constant_ints(r.node, 2), steps = constant_ints(r.node, 4);
  const Dim& size = sizes(&x)[static_cast<size_t>(cut.axis)];
  if (!starts || !ends || !size.known() || (r.node.input(4) && (!steps || (*steps)[i] != 1))) return std::nullopt;
  const auto has_runs = [&](int64_t place) {
    return (place < 0 ? place + size.value() : std::min(place, size.value())) % cut.period == 0;
  };
  if (!has_runs((*starts)[i]) || !has_runs((*ends)[i])) return std::nullopt;
  return moved(r, cut);
}

Found slice_gradient(const LayoutRequest& r) {
  if (!r.is_part(0)) return std::nullopt;
  const auto axes = sliced_axes(r.node, 4, r.node.input(0)->rank());
  if (!axes || std::ranges::count(*axes, cut_of_first(r).axis)) return std::nullopt;
  return moved(r, cut_of_first(r));
}

Found gather_rule(const LayoutRequest& r) {
  const Value *x = r.node.input(0), *indices = r.node.input(1);
  if (!x->has_rank() || !indices->has_rank()) return std::nullopt;
  const int64_t axis = normalize_axis(r.node.attr("axis", 0), x->rank());
  if (r.is_part(1)) {
    NodeLayouts layouts = r.whole();
    layouts.inputs[1] = r.given[1];
    layouts.outputs[0] = Layout::part(axis + r.given[1].cut.axis, r.given[1].cut.period);
    return layouts;
  }
  if (!r.is_part(0)) return std::nullopt;
  Cut cut = cut_of_first(r);
  // Each rank has one run of rows, and 0 in the place of the others.
  if (cut.axis == axis) return is_one_run_along_axis(r) ? moved_terms(r) : std::nullopt;
  if (cut.axis > axis) cut.axis += indices->rank() - 1;
  return moved(r, cut);
}

Found gather_gradient(const LayoutRequest& r) {
  const Value* indices = r.node.input(1);
  if (!r.is_part(0) || !indices->has_rank()) return std::nullopt;
  const int64_t axis = r.node.attr("axis", 0), last = axis + indices->rank();
  Cut cut = cut_of_first(r);
  if (cut.axis < axis) return moved(r, cut);
  if (cut.axis < last) {  // each rank has the rows of some indices
    NodeLayouts layouts = r.whole();
    layouts.inputs[0] = r.given[0];
    layouts.inputs[1] = Layout::part(cut.axis - axis, cut.period);
    layouts.outputs[0] = Layout::term();
    return layouts;
  }
  cut.axis -= indices->rank() - 1;
  return moved(r, cut);
}

Found trilu_rule(const LayoutRequest& r) {
  if (!r.is_part(0) || cut_of_first(r).axis >= r.node.input(0)->rank() - 2) return std::nullopt;
  return moved(r, cut_of_first(r));
}

// What ranks of other groups have, with a first axis of groups.
Found all_gather_rule(const LayoutRequest& r) {
  if (!r.is_part(0)) return std::nullopt;
  return moved(r, Cut{cut_of_first(r).axis + 1, cut_of_first(r).period});
}

// The shape of what all ranks have together.
Found shape_rule(const LayoutRequest& r) {
  NodeLayouts layouts = r.whole();
  layouts.inputs[0] = r.given[0];
  return layouts;
}

// In inference; in training it is one of our functions.
Found dropout_rule(const LayoutRequest& r) {
  if (!r.is_part(0) || r.node.input(2)) return std::nullopt;
  return moved(r, cut_of_first(r));
}

}  // namespace

std::vector<MovementRule> movement_rules() {
  return {{"", "Identity", view_rule},
          {"", "Reshape", view_rule},
          {"", "Flatten", view_rule},
          {"", "Squeeze", view_rule},
          {"", "Unsqueeze", view_rule},
          {"", "Transpose", transpose_rule},
          {"", "Expand", expand_rule},
          {"", "Concat", concat_rule},
          {"", "Split", split_rule},
          {"", "Slice", slice_rule},
          {kDomain, "SliceGrad", slice_gradient},
          {"", "Gather", gather_rule},
          {kDomain, "GatherGrad", gather_gradient},
          {kDomain, "AllGather", all_gather_rule},
          {"", "Trilu", trilu_rule},
          {"", "Shape", shape_rule},
          {"", "Size", shape_rule},
          {"", "Dropout", dropout_rule}};
}

}  // namespace onnx_train
