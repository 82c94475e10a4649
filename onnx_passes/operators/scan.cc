#include "onnx_passes/operators/scan.h"

#include "onnx_passes/operators/operators.h"

namespace onnx_train {

// Only the branch that is taken says the shape, where the two give different ones.
std::vector<Operator> control_flow_operators() { return {Operator{"If", "c:bool[] -> y*"}.sized_by_inputs({0})}; }

Scan::Scan(const Node& node) : body(node.subgraph("body")), inputs(static_cast<int>(node.attr("num_scan_inputs", 0))) {
  states = node.num_inputs() - inputs;
  outputs = node.num_outputs() - states;
  // An empty list means the same as an absent one.
  const auto list = [&](const char* name, int count) {
    const Shape given = node.attr(name, Shape{});
    return given.empty() ? Shape(static_cast<size_t>(count), 0) : given;
  };
  input_axes = list("scan_input_axes", inputs);
  output_axes = list("scan_output_axes", outputs);
  input_backwards = list("scan_input_directions", inputs);
  output_backwards = list("scan_output_directions", outputs);
}

int64_t Scan::steps(const Node& node) const {
  const TensorType& type = node.input(states)->type();
  if (!type.has_rank()) return -1;
  const Dim& along = (*type.dims)[static_cast<size_t>(normalize_axis(input_axes[0], type.rank()))];
  return along.known() ? along.value() : -1;
}

}  // namespace onnx_train
