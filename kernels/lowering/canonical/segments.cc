// Shapes that depend on data. Where an operator's row says that the contents of an input decide a shape (sized_by), and
// these are computed, the plan is cut: the nodes between the first and the last shape that is not known become one
// node, CallSegment, which is planned for these contents when they are found. Nodes before it, and those after it whose
// shapes are known (the gradients of weights, updates), stay as they are, so that a plan without such shapes has none
// of this. A segment in whose plan a shape is not known yet is cut again.
//
// Operators whose outputs have as many elements as some condition holds become ones that have that number as an input.
#include <algorithm>
#include <functional>
#include <limits>

#include "kernels/functions/functions.h"
#include "kernels/lowering/canonical/segments.h"
#include "kernels/subgraph_calls.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

bool are_sized(const std::vector<Value*>& values) {
  return std::all_of(values.begin(), values.end(), [](const Value* v) { return !v || v->type().is_static(); });
}

// Each plan of a segment has its own copy of these constants.
bool is_copied(const Value& value) {
  constexpr int64_t kMostElements = 1024;
  return is_constant(value) && value.type().is_static() && num_elements(value.type().shape()) <= kMostElements;
}

// ---- Operators that select

Var numbers(Var count) {
  Builder& b = count.builder();
  return b.op("Range", {b.scalar(DType::kInt64, 0), squeeze(count, {0}), b.scalar(DType::kInt64, 1)});
}

// The first `count`[1] elements along the first axis.
Var first_of(Var x, Var count) {
  Builder& b = x.builder();
  return slice(x, b.ints({0}), count, b.ints({0}));
}

Var put(Var places, Var values) {
  Builder& b = places.builder();
  return b.op("ScatterElements", {full(shape_of(values), values.dtype(), 0), places, values}, {{"axis", 0}});
}

Var running_sum(Var x) {
  Builder& b = x.builder();
  return b.op("CumSum", {x, b.scalar(DType::kInt64, 0)});
}

// Where condition[n] holds, and how often. Each i goes to its place among those that hold, others after these.
struct Places {
  Var places, count;

  explicit Places(Var condition) {
    Builder& b = condition.builder();
    const int64_t n = condition.type().shape()[0];
    const Var flags = cast(condition, DType::kInt64), all = numbers(b.ints({n})), before = running_sum(flags);
    count = reduce_sum(flags, {0});
    places = first_of(put(where(condition, before - 1.0, count + all - before), all), count);
  }
};

Var flat(Var x) { return reshape(x, std::vector<int64_t>{-1}); }

// y[r, count] = the coordinates of the elements of x that are not zero, in order
std::vector<Var> select_non_zero(Builder* b, const Node& node) {
  const Shape sizes = node.input(0)->type().shape();
  if (sizes.empty()) return {};
  const Var places = Places(flat(cast(b->var(node.input(0)), DType::kBool))).places;
  std::vector<Var> lines;
  int64_t below = num_elements(sizes);
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    const int64_t size = std::max<int64_t>(sizes[axis], 1);
    below /= size;
    Var line = sizes.size() == 1 ? places : places / static_cast<double>(std::max<int64_t>(below, 1));
    if (axis > 0) line = b->op("Mod", {line, b->scalar(DType::kInt64, static_cast<double>(size))});
    lines.push_back(unsqueeze(line, {0}));
  }
  return {lines.size() == 1 ? lines[0] : concat(lines, 0)};
}

// y = the slices of x along an axis where the condition holds, which may have fewer elements than there are
std::vector<Var> select_compress(Builder* b, const Node& node) {
  const bool has_axis = node.has_attr("axis");
  const Var x = has_axis ? b->var(node.input(0)) : flat(b->var(node.input(0)));
  const int64_t axis = has_axis ? normalize_axis(node.attr("axis", 0), x.rank()) : 0;
  return {gather(x, Places(b->var(node.input(1))).places, axis)};
}

// x with `axis` as its first of two.
Var rows_along(Var x, int64_t axis) {
  const Shape sizes = x.type().shape();
  std::vector<int64_t> first = {axis};
  for (int64_t k = 0; k < x.rank(); ++k) {
    if (k != axis) first.push_back(k);
  }
  const int64_t n = sizes[static_cast<size_t>(axis)];
  return reshape(axis == 0 ? x : transpose(x, first), x.builder().ints({n, num_elements(sizes) / n}));
}

// The distinct elements of x, flattened, or slices of it along an axis; where each comes first; which one each element
// is; how often it is there. The sort is stable, so that the first of equal elements comes first in x.
std::vector<Var> select_unique(Builder* b, const Node& node) {
  if (num_elements(node.input(0)->type().shape()) == 0) return {};
  const auto ascending = [&](Var x, Var count) { return b->ops("TopK", 2, {x, count}, {{"axis", 0}, {"largest", 0}}); };
  const bool has_axis = node.has_attr("axis");
  const Var x = has_axis ? b->var(node.input(0)) : flat(b->var(node.input(0)));
  const int64_t axis = has_axis ? normalize_axis(node.attr("axis", 0), x.rank()) : 0;
  const int64_t n = x.type().shape()[static_cast<size_t>(axis)];
  std::vector<Var> sorted;
  if (has_axis) {
    const Var rows = rows_along(x, axis), order = call_lowered(*b, "SortRows", {rows});
    sorted = {gather(rows, order, 0), order};
  } else {
    sorted = ascending(x, b->ints({n}));
  }
  Var differs = logical_not(equal(slice(sorted[0], 1, n, 0), slice(sorted[0], 0, n - 1, 0)));
  if (has_axis)
    differs = cast(b->op("ReduceMax", {cast(differs, DType::kInt32), b->ints({1})}, {{"keepdims", 0}}), DType::kBool);
  const Var starts = concat({b->constant(Tensor::full(DType::kBool, {1}, 1)), differs}, 0);
  const Places first(starts);
  const Var next = concat({slice(first.places, b->ints({1}), b->ints({n}), b->ints({0})), b->ints({n})}, 0);
  Var indices = gather(sorted[1], first.places, 0), counts = next - first.places;
  Var inverse = put(sorted[1], running_sum(cast(starts, DType::kInt64)) - 1.0);
  if (node.attr("sorted", 1) == 0) {  // in the order in which they come first
    const auto order = ascending(indices, first.count);
    indices = order[0];
    counts = gather(counts, order[1], 0);
    inverse = gather(put(order[1], numbers(first.count)), inverse, 0);
  }
  return {gather(x, indices, axis), indices, inverse, counts};
}

// selected[count, 3] = the image, the class and the number of each box that is taken, best first within a class
std::vector<Var> select_boxes(Builder* b, const Node& node) {
  const Shape scores = node.input(1)->type().shape();
  const DType dtype = node.input(0)->dtype();
  const auto setting = [&](int i, const Tensor& otherwise) {
    return node.input(i) ? reshape(b->var(node.input(i)), b->ints({})) : b->constant(otherwise);
  };
  const Var most = setting(2, Tensor::scalar<int64_t>(0)), overlap = setting(3, Tensor::full(dtype, {}, 0)),
            least = setting(4, Tensor::full(dtype, {}, std::numeric_limits<double>::quiet_NaN()));
  const Var order =
      call_lowered(*b, "SelectBoxes", {b->var(node.input(0)), b->var(node.input(1)), most, overlap, least},
                   {{"center", node.attr("center_point_box", 0)}});
  const Var numbers_taken = flat(order), places = Places(numbers_taken >= 0).places;
  const auto number = [&](int64_t n) { return static_cast<double>(std::max<int64_t>(n, 1)); };
  const Var line = places / number(scores[2]);
  const Var columns[] = {line / number(scores[1]), b->op("Mod", {line, b->scalar(DType::kInt64, number(scores[1]))}),
                         gather(numbers_taken, places, 0)};
  return {concat({unsqueeze(columns[0], {1}), unsqueeze(columns[1], {1}), unsqueeze(columns[2], {1})}, 1)};
}

using Select = std::vector<Var> (*)(Builder*, const Node&);

Select selection_of(const Node& node) {
  return node.is("NonZero")             ? select_non_zero
         : node.is("Compress")          ? select_compress
         : node.is("Unique")            ? select_unique
         : node.is("NonMaxSuppression") ? select_boxes
                                        : nullptr;
}

// Those that depend on a shape that is not known wait for the segment's plan, which may know more.
bool expand_selections(Graph* graph) {
  bool changed = false;
  Marks<Value> open;
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    bool depends = false;
    for_each_input(*node, [&](const Value* v) {
      depends = depends || open.contains(v) || (&v->graph() == graph && !v->type().is_static());
    });
    const Select select = selection_of(*node);
    if (depends || !select || are_sized(node->outputs())) {
      for (const Value* output : node->outputs()) {
        if (output && (depends || !output->type().is_static())) open.insert(output);
      }
      continue;
    }
    Builder b(graph, node);
    b.set_name(node->output() ? node->output()->name() + "/selected" : "selected");
    const std::vector<Var> results = select(&b, *node);
    if (results.empty()) continue;
    for (const Var& result : results) open.insert(result.value());
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (node->output(i)) graph->replace(node->output(i), results[static_cast<size_t>(i)].value());
    }
    graph->remove(node);
    changed = true;
  }
  return changed;
}

// ---- Segments

struct Segment {
  std::vector<Value*> found;   // decide the shapes
  std::vector<Node*> nodes;    // in order
  std::vector<Node*> after;    // depend on it, in order
  std::vector<Value*> inputs;  // beside `found`
  std::vector<Value*> outputs;
};

Segment find_segment(const Graph& graph) {
  Segment segment;
  Marks<Value> later, read_inside, seen;
  std::vector<Node*> dependent;
  for (Node* node = graph.first(); node; node = node->next()) {
    bool depends = false, sized = true;
    for_each_input(*node, [&](const Value* v) {
      depends = depends || later.contains(v);
      sized = sized && (&v->graph() != &graph || v->type().is_static());
    });
    if (!depends) {
      const std::vector<Value*> values = sized ? computed_sizes(*node) : std::vector<Value*>();
      for (Value* v : values) {
        if (seen.insert(v)) segment.found.push_back(v);
      }
      depends = !values.empty();
    }
    if (!depends) continue;
    dependent.push_back(node);
    for (const Value* output : node->outputs()) {
      if (output) later.insert(output);
    }
  }
  // A node belongs to it if one of its shapes is not known, or if it is read by one that belongs to it.
  for (auto it = dependent.rbegin(); it != dependent.rend(); ++it) {
    Node* node = *it;
    bool inside = !are_sized(node->outputs());
    for_each_input(*node,
                   [&](const Value* v) { inside = inside || (&v->graph() == &graph && !v->type().is_static()); });
    for (const Value* output : node->outputs()) inside = inside || (output && read_inside.contains(output));
    (inside ? segment.nodes : segment.after).push_back(node);
    if (inside) for_each_input(*node, [&](const Value* v) { read_inside.insert(v); });
  }
  std::reverse(segment.nodes.begin(), segment.nodes.end());
  std::reverse(segment.after.begin(), segment.after.end());
  Marks<Value> made, read_after;
  for (const Node* node : segment.nodes) {
    for (const Value* output : node->outputs()) {
      if (output) made.insert(output);
    }
  }
  for (const Node* node : segment.after) for_each_input(*node, [&](const Value* v) { read_after.insert(v); });
  for (const Node* node : segment.nodes) {
    for_each_input(*node, [&](const Value* v) {
      if (&v->graph() != &graph || made.contains(v) || is_copied(*v) || !seen.insert(v)) return;
      segment.inputs.push_back(const_cast<Value*>(v));
    });
    for (Value* output : node->outputs()) {
      if (output && (read_after.contains(output) || graph.is_output(output))) segment.outputs.push_back(output);
    }
  }
  return segment;
}

// Whether contents are neither constant nor `known`.
bool is_data(const Value& value, const Marks<Value>& known) { return !known.contains(&value) && !is_constant(value); }

bool reads_data(const Node& node, const Marks<Value>& known) {
  bool reads = false;
  for_each_input(node, [&](const Value* v) { reads = reads || is_data(*v, known); });
  return reads;
}

void call_segment(Graph* graph, const Segment& segment) {
  std::vector<Value*> inputs = segment.found;
  inputs.insert(inputs.end(), segment.inputs.begin(), segment.inputs.end());
  std::vector<std::string> names;
  for (const Value* output : segment.outputs) names.push_back(graph->unique_name(output->name() + "/segment"));
  Node* call = graph->add_node(kCallSegment, inputs, names, kDomain);
  for (Node* node : segment.after) graph->move(node, nullptr);
  call->set_attr("found", static_cast<int64_t>(segment.found.size()));
  Graph* made = graph->add_subgraph(call, "segment");
  GraphCopy copy(made);
  for (const Value* v : inputs) copy.map(v, made->add_input(made->unique_name(v->name()), v->type()));
  Marks<Value> constants;
  for (const Node* node : segment.nodes) {
    for_each_input(*node, [&](const Value* v) {
      if (&v->graph() == graph && is_copied(*v) && constants.insert(v))
        copy.map(v, made->add_initializer(made->unique_name(v->name()), v->shared_initializer()));
    });
    copy.node(*node);
  }
  for (const Value* output : segment.outputs) add_result(made, copy.of(output));
  for (size_t i = 0; i < segment.outputs.size(); ++i) {
    Value* result = call->output(static_cast<int>(i));
    result->set_type(segment.outputs[i]->type());
    graph->replace(segment.outputs[i], result);
  }
  for (auto node = segment.nodes.rbegin(); node != segment.nodes.rend(); ++node) graph->remove(*node);
}

// ---- Outputs whose shapes depend on data

void fix_sizes(Graph* graph, const std::vector<Value*>& values, OutputSizes* sizes) {
  for (Value* value : values) {
    const Tensor& contents = sizes->found[sizes->used++];
    if (contents.dtype() != value->dtype() || contents.shape() != value->type().shape())
      fail("the value '", value->name(), "', which decides the shape of an output, changes from run to run");
    graph->replace(value, graph->add_initializer(graph->unique_name(value->name() + "/found"), contents));
  }
}

void ask_for_sizes(Graph* graph, const std::vector<Value*>& values, OutputSizes* sizes) {
  std::vector<Value*> outputs;
  for (Value* output : graph->outputs()) {
    if (output->type().is_static()) outputs.push_back(output);
  }
  for (Value* value : values) {
    Node* const copy = graph->add_node("Identity", {value}, {graph->unique_name(value->name() + "/size")});
    copy->output()->set_type(value->type());
    outputs.push_back(copy->output());
  }
  graph->set_outputs(outputs);
  sizes->wanted = values.size();
}

}  // namespace

bool is_constant(const Value& value) { return value.is_initializer() && !value.graph().is_input(&value); }

std::vector<Value*> computed_sizes(const Node& node) {
  std::vector<Value*> values;
  if (are_sized(node.outputs())) return values;
  for (const int i : operator_of(node).sized_by) {
    if (node.input(i) && !is_constant(*node.input(i))) values.push_back(node.input(i));
  }
  return values;
}

bool has_open_shapes(const Graph& graph) {
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (!are_sized(node->outputs())) return true;
  }
  return false;
}

void add_what_follows(const Graph& subgraph, Marks<Value>* known) {
  for (const Node* node = subgraph.first(); node; node = node->next()) {
    if (reads_data(*node, *known) && !reads_shape_only(*node)) continue;
    for (const Value* output : node->outputs()) {
      if (output) known->insert(output);
    }
  }
}

bool has_shapes_of_data(const Graph& subgraph, Marks<Value> known) {
  add_what_follows(subgraph, &known);
  for (const Node* node = subgraph.first(); node; node = node->next()) {
    for (const auto& inner : node->subgraphs()) {
      if (has_shapes_of_data(*inner.graph, known)) return true;
    }
    const std::vector<Value*> sizes = computed_sizes(*node);
    if (std::any_of(sizes.begin(), sizes.end(), [&](const Value* v) { return is_data(*v, known); })) return true;
    if (selection_of(*node) && !are_sized(node->outputs()) && reads_data(*node, known)) return true;
  }
  return false;
}

bool cut_segments(Model& model, OutputSizes* sizes) {
  Graph* graph = model.graph.get();
  for (bool changed = false;; changed = true) {
    const bool expanded = expand_selections(graph);
    if (expanded) infer_types(graph);  // more shapes are known
    const Segment segment = find_segment(*graph);
    if (segment.nodes.empty()) return changed || expanded;
    if (are_sized(segment.outputs)) {
      call_segment(graph, segment);
      return true;
    }
    if (!sizes || sizes->wanted > 0) return changed || expanded;
    if (sizes->used + segment.found.size() <= sizes->found.size()) {
      fix_sizes(graph, segment.found, sizes);
      fold_constants(model);
    } else {
      ask_for_sizes(graph, segment.found, sizes);
      remove_dead_nodes(model);
    }
  }
}

}  // namespace onnx_train
