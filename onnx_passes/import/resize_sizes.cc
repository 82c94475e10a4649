#include "onnx_passes/import/resize_sizes.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/operators/resampling.h"

namespace onnx_train {
namespace {

constexpr int kScales = 2, kSizes = 3;

bool is_from_pytorch(const Model& model) { return model.shell().producer_name() == "pytorch"; }

std::string coordinates_of(const Node& node) { return node.attr("coordinate_transformation_mode", "half_pixel"); }

// Whether the size of the output is a part of the coordinates.
bool divides_by_size(const Node& node) {
  const std::string mode = coordinates_of(node);
  return mode == "align_corners" || mode == "tf_crop_and_resize";
}

Dim size_along(const Value& value, int64_t axis) { return (*value.type().dims)[static_cast<size_t>(axis)]; }

// Whether each scale makes a whole number of elements, as far as is known: a whole scale does of every number.
bool are_whole(const Node& node, const std::vector<int64_t>& axes) {
  const Tensor scales = constant_of(node.input(kScales));
  if (scales.size() != static_cast<int64_t>(axes.size())) return false;
  for (size_t i = 0; i < axes.size(); ++i) {
    const Dim in = size_along(*node.input(0), axes[i]);
    const double scale = scales.at(static_cast<int64_t>(i)), out = in.known() ? scale * in.value() : scale;
    constexpr double kRounding = 0x1p-22;  // of a float such as 0.7
    if (!(std::abs(out - std::nearbyint(out)) <= std::abs(out) * kRounding)) return false;
  }
  return true;
}

// The scales of a node whose sizes are not known. Known ones are no weight, though a product reads them.
Var scales_of(Builder& b, const Node& node) {
  const Tensor known = constant_of(node.input(kScales));
  if (known.empty()) return b.var(node.input(kScales));
  const std::string name = b.graph().unique_name(node.output()->name() + "/scales");
  return b.var(b.graph().add_initializer(name, make_buffer(name, known)));
}

// Removes scales that no node reads any more, lest they are taken for a weight.
void remove_unread_scales(Value* scales) {
  Graph& graph = scales->graph();
  if (!scales->uses().empty() || graph.is_output(scales) || graph.is_input(scales)) return;
  if (scales->is_initializer()) {
    graph.remove_initializer(scales);
  } else if (scales->producer()->is("Constant")) {
    graph.remove(scales->producer());
  }
}

// The sizes that the scales make, as constants where they are known.
Var sizes_of(Builder& b, const Node& node, const std::vector<int64_t>& axes) {
  const Value& y = *node.output();
  const auto is_known = [&](int64_t axis) { return y.has_rank() && size_along(y, axis).known(); };
  if (std::ranges::all_of(axes, is_known)) {
    std::vector<int64_t> sizes;
    for (const int64_t axis : axes) sizes.push_back(size_along(y, axis).value());
    return b.ints(sizes);
  }
  const Var in = gather(shape(b.var(node.input(0))), b.ints(axes), 0), scales = scales_of(b, node);
  return cast(b.op("Floor", {cast_like(in, scales) * scales}), DType::kInt64);
}

void settle(Graph* graph, bool takes_sizes, std::vector<Finding>* findings) {
  for (Node* node : graph->nodes()) {
    for (const auto& subgraph : node->subgraphs()) settle(subgraph.graph.get(), takes_sizes, findings);
    const bool has_scales = node->is("Resize") && resize_has_input(*node, kScales) && node->input(0)->has_rank();
    if (!has_scales || !divides_by_size(*node)) continue;
    const std::vector<int64_t> axes = resize_axes(*node, node->input(0)->rank());
    if (are_whole(*node, axes)) continue;
    const std::string what = concat(coordinates_of(*node), " with a scale that makes no whole number of elements");
    if (!takes_sizes) {
      findings->push_back({node->label(), what,
                           "computed as ONNX defines it; ONNX Runtime and PyTorch take the whole number for the size: "
                           "give it sizes in the place of scales, and all compute the same"});
      continue;
    }
    Builder b(graph, node);
    b.set_name(node->output()->name() + "/sizes");
    const Var sizes = sizes_of(b, *node, axes);
    Value* const scales = node->input(kScales);
    node->set_input(kScales, nullptr);
    remove_unread_scales(scales);
    node->set_input(kSizes, sizes.value());
    infer_types(node);
    findings->push_back(
        {node->label(), what, "it has sizes in their place, so that it computes what PyTorch and ONNX Runtime do"});
  }
}

}  // namespace

std::vector<Finding> settle_resize_scales(Model* model) {
  std::vector<Finding> findings;
  settle(model->graph.get(), is_from_pytorch(*model), &findings);
  return findings;
}

}  // namespace onnx_train
