#include "onnx_passes/quantization/write_qdq.h"
#include "onnx_passes/inference/fold_branch.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/quantization/clipped_integers.h"
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

  // The type of the integers: that of the file's zero point, or the smallest one of 8 or 16 bits that holds the range and
  // the zero points.
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

// ---- Integers in the place of floats

class IntegerStore {
 public:
  explicit IntegerStore(Model* model) : graph_(*model->graph) {}

  int run() {
    for (Node* node : graph_.nodes()) {
      if (node->is("QuantizeLinear")) store(node);
    }
    remove_unread(&graph_);
    for (Node* node : graph_.nodes()) {
      if (node->is("BatchNormalization")) fold_batch_norm(node);
    }
    for (Node* node : graph_.nodes()) {
      if (!node->is("Conv") && !node->is("Gemm") && !node->is("MatMul")) continue;
      read_quantized(node);
      if (!node->is("MatMul")) store_bias(node);
    }
    remove_unread(&graph_);
    return stored_;
  }

 private:
  static Node* dequantization(const Value* value) {
    Node* node = value ? value->producer() : nullptr;
    return node && node->is("DequantizeLinear") ? node : nullptr;
  }

  // The DequantizeLinear of stored integers.
  static Node* stored(const Value* value) {
    Node* node = dequantization(value);
    return node && node->input(0)->is_initializer() ? node : nullptr;
  }

  Value* constant(const std::string& name, const Tensor& contents) {
    return graph_.add_initializer(graph_.unique_name(name), contents);
  }

  void store(Node* q) {
    const Tensor w = constant_operand(q->input(0)), scale = constant_of(q->input(1)), zero = constant_of(q->input(2));
    const auto of = onnx_train::granularity_of(*q);
    if (w.empty() || scale.empty() || !of || graph_.is_output(q->output()) || q->output()->dtype() == DType::kUndefined)
      return;
    const Tensor integers = quantize(w, scale, zero, *of, q->output()->dtype());
    if (integers.empty()) return;
    Value* made = constant(stored_name(*q->input(0)) + "_quantized", integers);
    const std::vector<Use> uses = q->output()->uses();
    graph_.replace(q->output(), made);
    graph_.remove(q);
    for (const Use& use : uses) {
      if (use.node->is("DequantizeLinear")) continue;
      for (const Use& reader : std::vector<Use>(use.node->output()->uses())) {
        if (reader.node->is("DequantizeLinear")) fold_clips_of_stored(reader.node);
      }
    }
    ++stored_;
  }

  // A bias [channels]; PyTorch's exporter writes one of zeros as an Expand. Empty if it is not a constant.
  static Tensor constant_bias(const Value* bias, int64_t channels) {
    const Node* node = bias ? bias->producer() : nullptr;
    if (!node || !node->is("Expand")) return constant_of(bias);
    const Tensor number = constant_of(node->input(0));
    return number.size() == 1 ? Tensor::full(number.dtype(), {channels}, number.at(0)) : Tensor();
  }

  // y = (conv(x) + b - mean) f + beta, f = gamma / √(var + epsilon), is a convolution whose scales are times f.
  void fold_batch_norm(Node* norm) {
    Node* conv = norm->input(0)->producer();
    if (!conv || !conv->is("Conv") || norm->input(0)->uses().size() != 1 || graph_.is_output(norm->input(0))) return;
    Node* weight = stored(conv->input(1));
    const Tensor scale = weight ? constant_of(weight->input(1)) : Tensor();
    const Tensor gamma = constant_of(norm->input(1)), beta = constant_of(norm->input(2));
    const Tensor mean = constant_of(norm->input(3)), variance = constant_of(norm->input(4));
    const Tensor bias = constant_bias(conv->input(2), gamma.size());
    const bool by_channel = weight && weight->output()->uses().size() == 1 && weight->attr("axis", 1) == 0 &&
                            scale.size() == gamma.size() && scale.shape().size() == 1;
    if (!by_channel || gamma.empty() || beta.empty() || mean.empty() || variance.empty()) return;
    if (conv->input(2) && bias.empty()) return;
    Tensor q = constant_of(weight->input(0)).clone(), scales = scale.clone(), biases(scale.dtype(), scale.shape());
    if (q.dtype() != DType::kInt8) return;
    const double epsilon = static_cast<double>(norm->attr("epsilon", 1e-5f));
    const int64_t row = q.size() / std::max<int64_t>(scale.size(), 1);
    for (int64_t c = 0; c < scale.size(); ++c) {
      const double f = gamma.at(c) / std::sqrt(variance.at(c) + epsilon);
      biases.set(c, ((bias.empty() ? 0 : bias.at(c)) - mean.at(c)) * f + beta.at(c));
      scales.set(c, f == 0 ? 1 : scale.at(c) * std::fabs(f));
      for (int64_t i = c * row; i < (c + 1) * row; ++i) {
        if (f < 0 && q.at(i) == -128) return;
        if (f <= 0) q.set(i, f == 0 ? 0 : -q.at(i));
      }
    }
    const std::string name = weight->input(1)->name(), stored_as = weight->input(0)->name();
    weight->set_input(0, constant(stored_as + "/folded", q));
    weight->set_input(1, constant(name + "/folded", scales));
    conv->set_input(2, constant(norm->input(2)->name() + "/folded", biases));
    Value* result = norm->output();
    const std::string result_name = result->name();
    graph_.replace(result, conv->output());
    graph_.remove(norm);
    if (conv->output()->name() != result_name) graph_.claim_name(conv->output(), result_name);
  }

  // What a layer reads through nodes that only move it is quantized again in front of it, to the same integers.
  void read_quantized(Node* node) {
    if (!stored(node->input(1)) || dequantization(node->input(0))) return;
    const Value* source = node->input(0);
    while (source->producer() &&
           (is_view(*source->producer()) || source->producer()->is("Transpose") || source->producer()->is("MaxPool")))
      source = source->producer()->input(0);
    const Node* before = dequantization(source);
    if (!before || !onnx_train::granularity_of(*before) || onnx_train::granularity_of(*before)->axis >= 0) return;
    Builder b(&graph_, node);
    b.set_name(node->input(0)->name() + "/quantized");
    const Var scale = b.var(before->input(1)), zero = b.var(before->input(2));
    node->set_input(
        0,
        b.op("DequantizeLinear", {b.op("QuantizeLinear", {b.var(node->input(0)), scale, zero}), scale, zero}).value());
  }

  // bias = q (scale of x) (scale of w), q an int32: what integer products add.
  void store_bias(Node* node) {
    const Node *x = dequantization(node->input(0)), *w = stored(node->input(1));
    const Tensor bias = constant_of(node->input(2));
    if (!x || !w || bias.empty() || bias.shape().size() != 1) return;
    if (node->is("Gemm") && (node->attr("alpha", 1.0f) != 1 || node->attr("beta", 1.0f) != 1)) return;
    const Tensor of_x = constant_of(x->input(1)), of_w = constant_of(w->input(1));
    if (of_x.size() != 1 || of_w.empty() || (of_w.size() != 1 && of_w.size() != bias.size())) return;
    Tensor scale(of_w.dtype(), of_w.size() == 1 ? Shape{} : of_w.shape()), q(DType::kInt32, bias.shape());
    for (int64_t i = 0; i < scale.size(); ++i)
      scale.set(i, static_cast<double>(static_cast<float>(of_x.at(0)) * static_cast<float>(of_w.at(i))));
    for (int64_t i = 0; i < bias.size(); ++i) {
      const double steps = std::nearbyint(bias.at(i) / scale.at(scale.size() == 1 ? 0 : i));
      if (!(std::fabs(steps) < 2147483648.0)) return;  // stays a float
      q.set(i, steps);
    }
    const std::string name = node->input(2)->name();
    Builder b(&graph_, node);
    b.set_name(name + "/dequantized");
    const Var made = b.var(constant(name + "_quantized", q)), of = b.var(constant(name + "_quantized_scale", scale));
    const Var zero = b.var(constant(name + "_quantized_zero_point", Tensor(DType::kInt32, scale.shape())));
    node->set_input(2, b.op("DequantizeLinear", {made, of, zero}, {{"axis", 0}}).value());
  }

  Graph& graph_;
  int stored_ = 0;
};

}  // namespace

void write_qdq(Model* model) { QdqWriter(model).run(); }

int store_quantized(Model* model) { return IntegerStore(model).run(); }

}  // namespace onnx_train
