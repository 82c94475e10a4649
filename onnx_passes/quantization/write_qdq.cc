#include "onnx_passes/quantization/write_qdq.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/weight_origin.h"
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
    const bool reshapes = node->is("Reshape") || node->is("Unsqueeze");
    if (!node->is("Cast") && !(reshapes && node->input(0)->has_rank() && node->input(0)->rank() < 2)) break;
    parameter = node->input(0);
  }
  return parameter;
}

// Which elements of x [rank] share a scale that broadcasts to it. Nothing if the standard has no form for it.
std::optional<Granularity> granularity_of(const TensorType& scale, const TensorType& x) {
  if (!scale.is_static() || !x.has_rank()) return std::nullopt;
  const Shape shape = scale.shape();
  if (num_elements(shape) == 1) return Granularity{};
  const auto several = static_cast<int64_t>(shape.size()) - std::count(shape.begin(), shape.end(), 1);
  if (several == 1) {
    const auto at = std::find_if(shape.begin(), shape.end(), [](int64_t d) { return d != 1; });
    return Granularity{x.rank() - std::ssize(shape) + (at - shape.begin()), 0};
  }
  // One scale for each run along the only axis that repeats it.
  if (std::ssize(shape) != x.rank() || !x.is_static()) return std::nullopt;
  const Shape sizes = x.shape();
  int64_t axis = -1, repeated = 0;
  for (int64_t i = 0; i < x.rank(); ++i) {
    const auto at = static_cast<size_t>(i);
    if (shape[at] != sizes[at]) ++repeated;
    if (shape[at] == 1 && (repeated == 0 || shape[at] != sizes[at])) axis = i;
  }
  if (axis < 0 || repeated > 1) return std::nullopt;
  return Granularity{axis, sizes[static_cast<size_t>(axis)]};
}

// How the integers of a FakeQuantizeInteger are written.
struct PairForm {
  Granularity of;
  Value *scale, *zero;
  DType dtype;
};

// The type of the integers: that of the file's zero point, or the smallest one of 8 or 16 bits that holds the range and
// the zero points.
DType type_for(QuantizedRange range, const Value& zero) {
  const auto given = is_float(zero.dtype()) ? std::nullopt : range_of(zero.dtype());
  if (given && given->low <= range.low && range.high <= given->high) return zero.dtype();
  const Tensor known = constant_of(&zero);
  for (int64_t i = 0; i < known.size(); ++i) {
    range.low = std::min(range.low, known.at(i));
    range.high = std::max(range.high, known.at(i));
  }
  const DType dtype = type_of(range);
  return dtype == kInt4 ? DType::kInt8 : dtype == kUint4 ? DType::kUint8 : dtype;
}

// Nothing if QuantizeLinear cannot say it: another rounding, more than 16 bits, a zero point between integers.
std::optional<PairForm> pair_form(const Node& node, const QuantizedRange& range) {
  const auto of = granularity_of(node.input(1)->type(), node.input(0)->type());
  if (!of || !node.attr("rounding", "").empty()) return std::nullopt;
  PairForm form{*of, node.input(1), node.input(2), DType::kUndefined};
  if (of->block == 0) {
    form.scale = source_of(form.scale);
    form.zero = source_of(form.zero);
  }
  form.dtype = type_for(range, *form.zero);
  if (!is_integer(form.dtype) || size_of(form.dtype) > 2) return std::nullopt;
  const Tensor known = constant_of(form.zero);
  for (int64_t i = 0; i < known.size(); ++i) {
    if (known.at(i) != std::nearbyint(known.at(i))) return std::nullopt;
  }
  const bool one_each =
      known.size() <= 1 || (form.scale->type().is_static() && num_elements(form.scale->type().shape()) == known.size());
  return one_each ? std::optional(form) : std::nullopt;
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

  // A scale [1, C, 1] as [C], one number as it is.
  Value* flat(Builder* b, Value* parameter, const Granularity& of) {
    if (of.block > 0 || parameter->rank() < 2) return parameter;
    const Shape shape = of.axis < 0 ? Shape{} : Shape{-1};
    const Tensor known = constant_of(parameter);
    if (known.empty()) return reshape(b->var(parameter), shape).value();
    return constant(parameter->name() + "/flat", known.reshaped(of.axis < 0 ? Shape{} : Shape{known.size()}));
  }

  void integers(Node* node) {
    QuantizedRange range = range_of(*node, -128, 127);
    const auto form = pair_form(*node, range);
    if (!form) return;  // its call stays
    const DType dtype = form->dtype;
    const QuantizedRange whole = *onnx_train::range_of(dtype);
    Builder b(&graph_, node);
    if (range != whole && size_of(dtype) > 1) {  // no runtime clips 16-bit integers
      b.set_name(node->output()->name() + "/clipped");
      const Var steps = b.var(node->input(1)), from = b.var(node->input(2));
      const Var above = max(b.var(node->input(0)), (range.low - from) * steps);
      node->set_input(0, min(above, (range.high - from) * steps).value());
      range = whole;
    }
    b.set_name(node->output()->name() + "/scale");
    Value* scale = flat(&b, form->scale, form->of);
    Value* zero = form->zero;
    if (const Tensor known = constant_of(zero); !known.empty() && (zero->dtype() != dtype || zero->rank() > 1)) {
      Tensor numbers(dtype, scale->type().is_static() ? scale->type().shape() : Shape{});
      for (int64_t i = 0; i < numbers.size(); ++i) numbers.set(i, known.at(known.size() == 1 ? 0 : i));
      zero = constant(node->output()->name() + "/zero_point", numbers);
    } else if (zero->dtype() != dtype) {
      b.set_name(node->output()->name() + "/zero_point");
      zero = cast(b.var(flat(&b, zero, form->of)), dtype).value();
    }
    write(node, scale, zero, form->of, range);
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
    if (seen.size() != 2 && seen.size() != 3) fail("[Export] ", node->label(), ": its range is not a constant");
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
