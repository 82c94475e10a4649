#include "onnx_passes/quantization/write_qdq.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/quantization/qdq.h"
#include "onnx_passes/quantization/tensors.h"

namespace onnx_train {
namespace {

QuantizedRange range_of(const Node& node, float low, float high) {
  return {static_cast<double>(node.attr("low", low)), static_cast<double>(node.attr("high", high))};
}

// The parameter as the file had it: before the shape and the type that importing gave it.
Value* source_of(Value* parameter) {
  for (Node* node = parameter->producer(); node && node->num_outputs() == 1; node = parameter->producer()) {
    if (!node->is("Reshape") && !node->is("Unsqueeze") && !node->is("Cast")) break;
    parameter = node->input(0);
  }
  return parameter;
}

// Which elements of x [rank] share a scale that broadcasts to it.
Granularity granularity_of(const TensorType& scale, const TensorType& x) {
  if (!scale.is_static() || !x.has_rank()) return {};
  const Shape shape = scale.shape();
  if (num_elements(shape) == 1) return {};
  const auto last = static_cast<int64_t>(std::find_if(shape.rbegin(), shape.rend(), [](int64_t d) { return d == 1; }) -
                                         shape.rbegin());
  if (std::ssize(shape) == x.rank() && std::count(shape.begin(), shape.end(), 1) < x.rank() - 1 && x.is_static())
    return {x.rank() - 1 - last, x.shape()[static_cast<size_t>(x.rank() - 1 - last)]};
  const auto first = std::find_if(shape.begin(), shape.end(), [](int64_t d) { return d != 1; });
  return {x.rank() - std::ssize(shape) + (first - shape.begin()), 0};
}

class QdqWriter {
 public:
  explicit QdqWriter(Model* model) : graph_(*model->graph) {}

  void run() {
    const std::vector<Node*> nodes = graph_.nodes();
    const bool any = std::any_of(nodes.begin(), nodes.end(), [](const Node* node) {
      return node->domain() == kDomain && (node->op().starts_with("FakeQuantize") || node->op() == "UnpackInt4");
    });
    if (!any) return;
    infer_types(&graph_);  // a file does not hold all types
    for (Node* node : nodes) {
      if (node->is("FakeQuantizeInteger", kDomain)) integers(node);
      if (node->is("FakeQuantizeWeight", kDomain)) weight(node);
      if (node->is("FakeQuantizeActivation", kDomain)) activation(node);
      if (node->is("UnpackInt4", kDomain)) unpack(node);
    }
    graph_.remove_unused_initializers();
  }

 private:
  void replace(Node* node, Value* with) {
    const std::string name = node->output()->name();
    graph_.replace(node->output(), with);
    graph_.remove(node);
    if (with->producer() && with->name() != name) graph_.claim_name(with, name);
  }

  // The pair, in the place of `node`; a Clip of its integers is between where they have a narrower range than their
  // type.
  void write(Node* node, Value* scale, Value* zero_point, const Granularity& of, const QuantizedRange& range) {
    Builder b(&graph_, node);
    Attrs attrs;
    if (of.axis >= 0) attrs.emplace_back("axis", of.axis);
    if (of.block > 0) attrs.emplace_back("block_size", of.block);
    b.set_name(node->output()->name() + "/integers");
    Var q = b.op("QuantizeLinear", {b.var(node->input(0)), b.var(scale), b.var(zero_point)}, attrs);
    if (range != *onnx_train::range_of(zero_point->dtype())) {
      const auto bound = [&](double x) { return b.scalar(zero_point->dtype(), x); };
      q = b.op("Clip", {q, bound(range.low), bound(range.high)});
    }
    replace(node, b.op("DequantizeLinear", {q, b.var(scale), b.var(zero_point)}, attrs).value());
  }

  Value* constant(const std::string& name, const Tensor& contents) {
    return graph_.add_initializer(graph_.unique_name(name), contents);
  }

  // The type of the integers: that of the file's zero point, or the smallest one of 8 or 16 bits that holds the range
  // and the zero points.
  static DType type_for(QuantizedRange range, const Value& zero) {
    const auto given = is_float(zero.dtype()) ? std::nullopt : onnx_train::range_of(zero.dtype());
    if (given && given->low <= range.low && range.high <= given->high) return zero.dtype();
    const Tensor known = constant_of(&zero);
    for (int64_t i = 0; i < known.size(); ++i) {
      range.low = std::min(range.low, known.at(i));
      range.high = std::max(range.high, known.at(i));
    }
    const DType dtype = type_of(range);
    return dtype == kInt4 ? DType::kInt8 : dtype == kUint4 ? DType::kUint8 : dtype;
  }

  void integers(Node* node) {
    QuantizedRange range = range_of(*node, -128, 127);
    const Granularity of = granularity_of(node->input(1)->type(), node->input(0)->type());
    Value* scale = of.block > 0 ? node->input(1) : source_of(node->input(1));
    Value* zero = of.block > 0 ? node->input(2) : source_of(node->input(2));
    const DType dtype = type_for(range, *zero);
    const QuantizedRange whole = *onnx_train::range_of(dtype);
    if (dtype == DType::kInt32) range = whole;                                // a float says its bounds as 2³¹
    if (range != whole && dtype != DType::kInt8 && dtype != DType::kUint8) {  // no runtime clips 16-bit integers
      Builder b(&graph_, node);
      b.set_name(node->output()->name() + "/clipped");
      const Var steps = b.var(node->input(1)), from = b.var(node->input(2));
      const Var above = max(b.var(node->input(0)), (range.low - from) * steps);
      node->set_input(0, min(above, (range.high - from) * steps).value());
      range = whole;
    }
    if (zero->dtype() != dtype) {
      const Tensor known = constant_of(zero);
      Builder b(&graph_, node);
      b.set_name(node->output()->name() + "/zero_point");
      if (known.empty()) {
        zero = cast(b.var(zero), dtype).value();
      } else {
        Tensor whole_numbers(dtype, scale->type().is_static() ? scale->type().shape() : Shape{});
        for (int64_t i = 0; i < whole_numbers.size(); ++i) whole_numbers.set(i, known.at(known.size() == 1 ? 0 : i));
        zero = constant(node->output()->name() + "/zero_point", whole_numbers);
      }
    }
    write(node, scale, zero, of, range);
  }

  void weight(Node* node) {
    const QuantizedRange range = range_of(*node, -127, 127);
    const Tensor w = constant_operand(node->input(0));
    const std::string name = stored_name(*node->input(0));
    if (w.empty()) fail("[Export] ", node->label(), ": the weight before it is not a constant");
    const std::vector<int64_t> axes = node->attr("axes", std::vector<int64_t>());
    int64_t axis = -1;
    for (int64_t i = 0; i < std::ssize(w.shape()); ++i) {
      if (std::find(axes.begin(), axes.end(), i) == axes.end()) axis = i;
    }
    const Tensor scales = symmetric_scales(w, axis, range.high);
    Value* scale = constant(name + "_scale", scales);
    // No weight reaches -128: its scale is the largest one divided by 127.
    const QuantizedRange all = *onnx_train::range_of(DType::kInt8);
    write(node, scale, constant(name + "_zero_point", Tensor(DType::kInt8, scales.shape())), {axis, 0}, all);
  }

  void activation(Node* node) {
    const QuantizedRange range = range_of(*node, 0, 255);
    const Tensor seen = constant_of(node->input(1));
    if (seen.size() != 2) fail("[Export] ", node->label(), ": its range is not a constant");
    const float least = std::min(static_cast<float>(seen.at(0)), 0.0f);
    const float most = std::max(static_cast<float>(seen.at(1)), 0.0f);
    const float scale = (most - least) / static_cast<float>(range.high - range.low);
    if (!(scale > 0)) return replace(node, node->input(0));
    const std::string& name = node->input(0)->name();
    Tensor zero(range.low < 0 ? DType::kInt8 : DType::kUint8, {});
    zero.set(0, range.low - std::nearbyint(least / scale));
    write(node, constant(name + "_scale", Tensor::full(seen.dtype(), {}, scale)), constant(name + "_zero_point", zero),
          {}, range);
  }

  // Two in a byte become 8 bits that say that they are 4: what is packed for a file again.
  void unpack(Node* node) {
    const Tensor bytes = constant_of(node->input(0));
    if (bytes.empty() || bytes.shape().empty()) return;
    Shape shape = bytes.shape();
    shape.back() *= 2;
    Tensor q(DType::kInt8, shape);
    for (int64_t i = 0; i < q.size(); ++i) {
      const int code = bytes.data<uint8_t>()[i / 2] >> (i % 2 == 0 ? 0 : 4) & 15;
      q.set(i, (code ^ 8) - 8);
    }
    std::string name = node->input(0)->name();
    if (name.ends_with("_packed")) name = name.substr(0, name.size() - 7) + "_quantized";
    onnx::TensorProto tensor;
    to_proto(q, graph_.unique_name(name), &tensor);
    auto* entry = tensor.add_metadata_props();
    entry->set_key(kFourBits);
    entry->set_value("1");
    graph_.replace(node->output(), graph_.add_initializer(tensor));
    graph_.remove(node);
  }

  Graph& graph_;
};

}  // namespace

void write_qdq(Model* model) { QdqWriter(model).run(); }

}  // namespace onnx_train
