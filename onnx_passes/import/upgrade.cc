#include "onnx_passes/import/upgrade.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

// An operator definition that ended with opset `until` - 1, and the conversion of its nodes to the next definition. A
// node passes the rows of its operator in order, from the oldest that applies; the function returns the node that
// replaces it.
struct UpgradeRow {
  const char* op;
  int64_t until;
  Node* (*rewrite)(Node*);
};

[[noreturn]] void refuse_upgrade(const Node& node, const std::string& why) {
  fail_as(ErrorCode::kOpset, "[Import] ", node.label(), " cannot be converted to opset ", kBaseOpset, ": ", why,
          "; export the model with that opset or a later one");
}

bool is_needed(const Value* value) { return value && (!value->uses().empty() || value->graph().is_output(value)); }

// `to` takes over the name, the uses and the output position of `from`, which may then be removed.
void take_over(Value* from, Value* to) {
  Graph& graph = from->graph();
  const std::string name = from->name();
  const TensorType type = from->type();
  graph.replace(from, to);  // also passes on the names of outputs
  if (from->name() == name) {
    graph.rename(from, graph.unique_name(name + "/old"));
    graph.rename(to, name);
  }
  to->set_type(type);
}

// The same node with other inputs and only its first outputs.
Node* rebuild(Node* node, const std::vector<Value*>& inputs, int num_outputs) {
  Graph& graph = node->graph();
  std::vector<std::string> names;
  for (int i = 0; i < num_outputs; ++i) {
    names.push_back(node->output(i) ? graph.unique_name(node->output(i)->name()) : "");
  }
  Node* fresh = graph.add_node(*node, inputs, names, node);
  for (int i = 0; i < num_outputs; ++i) {
    if (node->output(i)) take_over(node->output(i), fresh->output(i));
  }
  graph.remove(node);
  return fresh;
}

// Replaces the node by `value`, which was created directly before it.
Node* give_way(Node* node, Var value) {
  Node* producer = value.value()->producer();
  take_over(node->output(), value.value());
  node->graph().remove(node);
  return producer;
}

// An int64 list attribute becomes input `index`.
void ints_to_input(Node* node, const std::string& attribute, int index) {
  if (!node->has_attr(attribute)) return;
  Builder b(&node->graph(), node);
  b.set_name(attribute);
  node->set_input(index, b.ints(node->attr(attribute, std::vector<int64_t>{})).value());
  node->remove_attr(attribute);
}

Node* axes_to_input(Node* node) {
  ints_to_input(node, "axes", 1);
  return node;
}

// min and max: attributes before, scalars of x's type now.
Node* clip(Node* node) {
  Builder b(&node->graph(), node);
  int index = 1;
  for (const char* bound : {"min", "max"}) {
    if (node->has_attr(bound)) {
      if (node->input(0)->dtype() == DType::kUndefined) refuse_upgrade(*node, "the type of its input is not known");
      node->set_input(index, b.scalar(node->input(0)->dtype(), node->attr(bound, 0.0f)).value());
      node->remove_attr(bound);
    }
    ++index;
  }
  return node;
}

Node* dropout(Node* node) {
  if (is_needed(node->output(1))) refuse_upgrade(*node, "its mask is used, whose type has changed");
  Builder b(&node->graph(), node);
  const Var ratio = b.scalar(DType::kFloat, node->attr("ratio", 0.5f));
  node->remove_attr("ratio");
  return rebuild(node, {node->input(0), ratio.value()}, 1);
}

Node* slice(Node* node) {
  ints_to_input(node, "starts", 1);
  ints_to_input(node, "ends", 2);
  ints_to_input(node, "axes", 3);
  return node;
}

Node* pad(Node* node) {
  ints_to_input(node, "pads", 1);
  const float value = node->attr("value", 0.0f);
  node->remove_attr("value");
  if (value != 0) {
    if (node->input(0)->dtype() == DType::kUndefined) refuse_upgrade(*node, "the type of its input is not known");
    Builder b(&node->graph(), node);
    node->set_input(2, b.scalar(node->input(0)->dtype(), value).value());
  }
  return node;
}

Node* top_k(Node* node) {
  Builder b(&node->graph(), node);
  node->set_input(1, b.ints({node->attr("k", 0)}).value());
  node->remove_attr("k");
  return node;
}

Node* split_sizes(Node* node) {
  ints_to_input(node, "split", 1);
  return node;
}

Node* split_count(Node* node) {
  if (!node->input(1)) node->set_attr("num_outputs", node->num_outputs());
  return node;
}

// Before opset 13, all axes from `axis` on were treated as one.
Node* softmax(Node* node) {
  const int64_t axis = node->attr("axis", 1);
  const Value* x = node->input(0);
  if (!x || !x->has_rank()) refuse_upgrade(*node, "the rank of its input is not known");
  const int64_t last = x->rank() - 1;
  const int64_t first = x->rank() == 0 ? 0 : (axis < 0 ? axis + x->rank() : axis);
  if (first < 0 || first > last + 1) refuse_upgrade(*node, concat("axis ", axis, " is out of range"));
  bool trailing_ones = true;
  for (int64_t i = first + 1; i <= last; ++i) {
    trailing_ones = trailing_ones && (*x->type().dims)[static_cast<size_t>(i)] == Dim(1);
  }
  if (trailing_ones && first <= last) {
    node->set_attr("axis", first);
    return node;
  }
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name() + "/rows");
  const Var input = b.var(node->input(0));
  const Var rows = b.op(node->op(), {flatten_to_2d(input, first)}, {{"axis", -1}});
  return give_way(node, reshape(rows, shape(input)));
}

// With spatial=0 each element of a sample has numbers of its own. Those of a vector are its channels; where an image
// has one for each channel, as MXNet writes it, no other reading fits.
bool is_by_channel(const Node& node) {
  const Value *x = node.input(0), *scale = node.input(1);
  if (!x || !scale || !x->has_rank() || !scale->has_rank() || x->rank() < 2 || scale->rank() != 1) return false;
  const Dim channels = x->type().dims->at(1), size = scale->type().dims->at(0);
  return x->rank() == 2 || (size.known() && channels == size);
}

// The number of outputs selected training mode, and the last two outputs no longer exist.
Node* batch_normalization(Node* node) {
  if (node->attr("spatial", 1) != 1 && !is_by_channel(*node)) refuse_upgrade(*node, "spatial=0 has no successor");
  node->remove_attr("spatial");
  bool training = false;
  for (int i = 1; i < node->num_outputs(); ++i) training = training || node->output(i);
  if (is_needed(node->output(3)) || is_needed(node->output(4))) refuse_upgrade(*node, "its saved statistics are used");
  if (training) node->set_attr("training_mode", 1);
  return node->num_outputs() > 3 ? rebuild(node, node->inputs(), 3) : node;
}

// Scale and bias were per group and are now per channel.
Node* group_normalization(Node* node) {
  if (node->num_inputs() != 3 || !node->input(0) || !node->input(1) || !node->input(2)) {
    refuse_upgrade(*node, "it needs three inputs");
  }
  const Value* x = node->input(0);
  const int64_t groups = node->attr("num_groups", 0);
  if (!x->has_rank() || x->rank() < 2 || !(*x->type().dims)[1].known()) {
    refuse_upgrade(*node, "the number of channels is not known");
  }
  const int64_t channels = (*x->type().dims)[1].value();
  if (groups <= 0 || channels % groups != 0) refuse_upgrade(*node, "num_groups does not divide the number of channels");
  Builder b(&node->graph(), node);
  for (int i = 1; i < 3; ++i) {
    b.set_name(node->input(i)->name() + "/channels");
    const Var column = reshape(b.var(node->input(i)), {groups, 1});
    const Var spread = expand(column, b.ints({groups, channels / groups}));
    node->set_input(i, reshape(spread, std::vector<int64_t>{channels}).value());
  }
  return node;
}

// ---- Resize

// A Resize of x with asymmetric coordinates, as all were before opset 11. Takes over the name of `node`.
Var resize_from_corners(Builder& b, const Node& node, Var x, Var scales, const char* nearest_mode) {
  std::string mode = node.attr("mode", "nearest");
  if (mode == "bilinear" || mode == "trilinear") mode = "linear";
  Attrs attrs = {{"mode", mode}, {"coordinate_transformation_mode", "asymmetric"}};
  if (mode == "nearest") attrs.emplace_back("nearest_mode", nearest_mode);
  const Var y = b.op("Resize", {x, Var(), scales}, attrs);
  y.value()->producer()->mutable_shell().set_name(node.name());
  return y;
}

// This operator only enlarged.
Node* upsample(Node* node) {
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name());
  Var scales = b.var(node->input(1));
  if (!scales) {
    const auto given = node->attr("scales", std::vector<float>{});
    scales = b.constant(Tensor::of<float>({static_cast<int64_t>(given.size())}, given));
  }
  return give_way(node, resize_from_corners(b, *node, b.var(node->input(0)), scales, "floor"));
}

// ONNX Runtime, and therefore exporters, rounded up along shrinking axes and down along growing ones.
Node* resize_10(Node* node) {
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name());
  const Var x = b.var(node->input(0)), scales = b.var(node->input(1));
  if (node->attr("mode", "nearest") != "nearest") return give_way(node, resize_from_corners(b, *node, x, scales, ""));
  const Tensor factors = constant_of(scales.value());
  if (factors.empty()) {
    const Var one = b.constant(Tensor::of<float>({}, {1.0F}));
    const Var smaller = resize_from_corners(b, *node, x, b.op("Min", {scales, one}), "ceil");
    return give_way(node, resize_from_corners(b, *node, smaller, b.op("Max", {scales, one}), "floor"));
  }
  Tensor growing(DType::kFloat, factors.shape()), shrinking(DType::kFloat, factors.shape());
  bool grows = false, shrinks = false;
  for (int64_t i = 0; i < factors.size(); ++i) {
    growing.set(i, std::max(factors.at(i), 1.0));
    shrinking.set(i, std::min(factors.at(i), 1.0));
    grows = grows || factors.at(i) > 1;
    shrinks = shrinks || factors.at(i) < 1;
  }
  if (!grows || !shrinks) return give_way(node, resize_from_corners(b, *node, x, scales, shrinks ? "ceil" : "floor"));
  const Var smaller = resize_from_corners(b, *node, x, b.constant(shrinking), "ceil");
  return give_way(node, resize_from_corners(b, *node, smaller, b.constant(growing), "floor"));
}

// tf_half_pixel_for_nn: position y of a resized axis shows (y + 0.5) / scale, half an element after half_pixel. Either
// rounding absorbs the difference, or the axis is resized to twice its length with asymmetric coordinates and every
// second position is taken.
Node* resize_for_nn(Node* node) {
  if (node->attr("coordinate_transformation_mode", "") != "tf_half_pixel_for_nn") return node;
  const std::string rounding = node->attr("nearest_mode", "round_prefer_floor");
  const bool nearest = node->attr("mode", "nearest") == "nearest";
  if (nearest && (rounding == "floor" || rounding == "round_prefer_floor")) {
    node->set_attr("coordinate_transformation_mode", std::string("half_pixel"));
    node->set_attr("nearest_mode", std::string(rounding == "floor" ? "round_prefer_ceil" : "ceil"));
    return node;
  }
  const int list = node->input(3) ? 3 : 2;
  Tensor numbers = constant_of(node->input(list));
  const Value* x = node->input(0);
  if (numbers.empty() || !x->has_rank() || numbers.size() != x->rank())
    refuse_upgrade(*node, "its sizes are not constant");
  numbers = numbers.clone();
  std::vector<int64_t> axes, sizes;
  for (int64_t i = 0; i < numbers.size(); ++i) {
    const Dim size = (*x->type().dims)[static_cast<size_t>(i)];
    if (list == 2 ? numbers.at(i) == 1 : size == Dim(static_cast<int64_t>(numbers.at(i)))) continue;
    if (!size.known()) refuse_upgrade(*node, "the size of its input is not known");
    const double out = list == 3 ? numbers.at(i) : std::floor(numbers.at(i) * static_cast<double>(size.value()));
    axes.push_back(i);
    sizes.push_back(static_cast<int64_t>(out));
    numbers.set(i, 2 * numbers.at(i));
  }
  Builder b(&node->graph(), node);
  b.set_name(node->output()->name());
  node->set_attr("coordinate_transformation_mode", std::string("asymmetric"));
  std::vector<Var> inputs(static_cast<size_t>(list) + 1);
  inputs[0] = b.var(node->input(0));
  inputs.back() = b.constant(numbers);
  std::vector<int64_t> ends;
  for (const int64_t size : sizes) ends.push_back(2 * size);
  const std::vector<int64_t> ones(axes.size(), 1), twos(axes.size(), 2);
  const Var denser = b.like(*node, inputs)[0];
  return give_way(node, slice(denser, b.ints(ones), b.ints(ends), b.ints(axes), b.ints(twos)));
}

// Inputs that were empty tensors become absent.
Node* without_empty_inputs(Node* node) {
  std::vector<Value*> inputs = node->inputs();
  for (size_t i = 1; i < inputs.size(); ++i) {
    const Tensor constant = constant_of(inputs[i]);
    const bool no_elements = inputs[i] && inputs[i]->type().is_static() && num_elements(inputs[i]->type().shape()) == 0;
    if (no_elements || (!constant.empty() && constant.size() == 0)) inputs[i] = nullptr;
  }
  while (!inputs.back()) inputs.pop_back();
  return inputs == node->inputs() ? node : rebuild(node, inputs, 1);
}

Node* roi_align(Node* node) {
  if (!node->has_attr("coordinate_transformation_mode")) {
    node->set_attr("coordinate_transformation_mode", std::string("output_half_pixel"));
  }
  return node;
}

Node* grid_sample(Node* node) {
  const std::string mode = node->attr("mode", "bilinear");
  if (mode == "bilinear") node->set_attr("mode", std::string("linear"));
  if (mode == "bicubic") node->set_attr("mode", std::string("cubic"));
  return node;
}

Node* dft(Node* node) {
  Builder b(&node->graph(), node);
  node->set_input(2, b.constant(Tensor::scalar<int64_t>(node->attr("axis", 1))).value());
  node->remove_attr("axis");
  return node;
}

Node* scatter(Node* node) {
  node->set_op("ScatterElements");
  return node;
}

Node* scan_8(Node* node) { refuse_upgrade(*node, "its sequence lengths and batch axis have no successor"); }

constexpr UpgradeRow kRows[] = {
    {"BatchNormalization", 14, batch_normalization},
    {"Clip", 11, clip},
    {"DFT", 20, dft},
    {"Dropout", 12, dropout},
    {"GridSample", 20, grid_sample},
    {"GroupNormalization", 21, group_normalization},
    {"Hardmax", 13, softmax},
    {"LogSoftmax", 13, softmax},
    {"Pad", 11, pad},
    {"ReduceL1", 18, axes_to_input},
    {"ReduceL2", 18, axes_to_input},
    {"ReduceLogSum", 18, axes_to_input},
    {"ReduceLogSumExp", 18, axes_to_input},
    {"ReduceMax", 18, axes_to_input},
    {"ReduceMean", 18, axes_to_input},
    {"ReduceMin", 18, axes_to_input},
    {"ReduceProd", 18, axes_to_input},
    {"ReduceSum", 13, axes_to_input},
    {"ReduceSumSquare", 18, axes_to_input},
    {"Resize", 11, resize_10},
    {"Resize", 13, without_empty_inputs},
    {"Resize", 13, resize_for_nn},
    {"Resize", 21, without_empty_inputs},
    {"RoiAlign", 16, roi_align},
    {"Scan", 9, scan_8},
    {"Scatter", 11, scatter},
    {"Slice", 10, slice},
    {"Softmax", 13, softmax},
    {"Split", 13, split_sizes},
    {"Split", 18, split_count},
    {"Squeeze", 13, axes_to_input},
    {"TopK", 10, top_k},
    {"Unsqueeze", 13, axes_to_input},
    {"Upsample", 10, upsample},
};

}  // namespace

int64_t raise_opset(Model* model) {
  const int64_t from = model->context->opset();
  if (from < kOldestOpset) {
    fail_as(ErrorCode::kOpset, "[Import] the model uses opset ", from, "; opsets before ", kOldestOpset,
            " (2017) broadcast by other rules: export it with opset ", kBaseOpset, " or later");
  }
  model->context->opsets[""] = std::max(from, kBaseOpset);
  return from;
}

Node* upgrade(Node* node, int64_t from) {
  if (from >= kBaseOpset) return node;
  for (const UpgradeRow& row : kRows) {
    if (from < row.until && node->is(row.op)) node = row.rewrite(node);
  }
  return node;
}

}  // namespace onnx_train
