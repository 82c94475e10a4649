#include "kernels/geometry/casts.h"
#include "onnx_passes/inference/inlining.h"

#include "kernels/geometry/indexing/places.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

std::vector<TensorCast> tensor_casts(const NodeSpec& spec) {
  const onnx::FunctionProto* body = function_of(spec.node());
  if (!body || spec.num_outputs() == 0 || spec.num_inputs() == 0 || !spec.has_input(0) || !spec.has_output(0))
    return {};
  const DType from = spec.in_type(0), to = spec.out_type(0);
  const bool rounds = from == DType::kFloat && is_16_bit_float(to),
             widens = is_16_bit_float(from) && to == DType::kFloat;
  if (!rounds && !widens) return {};
  const Places inputs = places_of(body->input()), outputs = places_of(body->output());
  std::vector<TensorCast> casts;
  for (const onnx::NodeProto& node : body->node()) {
    if (node.op_type() != "Cast" || !node.domain().empty()) return {};
    const int input = place_of(inputs, node.input(0)), output = place_of(outputs, node.output(0));
    const bool fits = input >= 0 && output >= 0 && input < spec.num_inputs() && output < spec.num_outputs() &&
                      spec.has_input(input) && spec.has_output(output) && spec.in_type(input) == from &&
                      spec.out_type(output) == to;
    if (!fits) return {};
    casts.push_back({input, output, spec.in_size(input)});
  }
  return casts;
}

}  // namespace onnx_train
