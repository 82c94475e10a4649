// QuantizeLinear and DequantizeLinear as element-wise operators, which every device has and fuses.
#include "kernels/lowering/canonical/quantization.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/quantization/qdq.h"

namespace onnx_train {
namespace {

// What x and its parameters are where the parameters broadcast.
struct Operands {
  Var x, scale, zero_point;  // Var() for a zero point of 0
  Granularity granularity;
};

// One scale for each element of x, where the last block is not whole.
Var repeated(Var parameter, const Granularity& of, const Shape& shape) {
  const auto at = static_cast<size_t>(of.axis);
  const Shape blocks = parameter.type().shape();
  Shape wide = blocks, flat = blocks;
  wide.insert(wide.begin() + of.axis + 1, of.block);
  flat[at] *= of.block;
  const Var all = reshape(expand(unsqueeze(parameter, {of.axis + 1}), parameter.builder().ints(wide)), flat);
  return slice(all, 0, shape[at], of.axis);
}

Operands operands_of(Builder& b, const Node& node, DType dtype) {
  const auto granularity = granularity_of(node);
  if (!granularity) fail(node.label(), ": its scale ", to_string(node.input(1)->type()), " does not fit its input");
  Var x = cast(b.var(node.input(0)), dtype);
  const Shape shape = x.type().shape();
  const Var split = split_blocks(x, *granularity);
  const auto parameter = [&](Value* value) {
    if (!value) return Var();
    const Var p = cast(b.var(value), dtype);
    return split ? broadcast_parameter(p, *granularity, x.rank()) : repeated(p, *granularity, shape);
  };
  return {split ? split : x, parameter(node.input(1)), parameter(node.input(2)), split ? *granularity : Granularity{}};
}

// q = clip(round(x / scale) + zero_point, low, high)
Var quantized(Builder& b, const Node& node) {
  const DType dtype = node.input(1)->dtype(), to = node.output()->dtype();
  const auto range = range_of(to);
  if (!range) return {};
  const Operands in = operands_of(b, node, dtype);
  Var q = b.op("Round", {in.x / in.scale});
  if (in.zero_point) q = q + in.zero_point;
  q = b.op("Clip", {q, b.scalar(dtype, range->low), b.scalar(dtype, range->high)});
  return join_blocks(cast(q, to), in.granularity, b.var(node.input(0)));
}

// x = (q - zero_point) scale
Var dequantized(Builder& b, const Node& node) {
  if (!is_integer(node.input(0)->dtype())) return {};
  const Operands in = operands_of(b, node, node.input(1)->dtype());
  const Var steps = in.zero_point ? in.x - in.zero_point : in.x;
  const Var y = join_blocks(steps * in.scale, in.granularity, b.var(node.input(0)));
  return cast(y, node.output()->dtype());
}

}  // namespace

bool expand_quantization(Model& model) {
  bool changed = false;
  for (Node *node = model.graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    const bool quantizes = node->is("QuantizeLinear");
    if ((!quantizes && !node->is("DequantizeLinear")) || !node->input(0)->type().is_static()) continue;
    Builder b(model.graph.get(), node);
    b.set_name(node->output()->name());
    const Var y = quantizes ? quantized(b, *node) : dequantized(b, *node);
    if (!y) continue;
    model.graph->replace(node->output(), y.value());
    model.graph->remove(node);
    changed = true;
  }
  return changed;
}

}  // namespace onnx_train
