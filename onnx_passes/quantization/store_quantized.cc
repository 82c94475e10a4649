#include "onnx_passes/quantization/store_quantized.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/fold_branch.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/quantization/clipped_integers.h"
#include "onnx_passes/quantization/qdq.h"
#include "onnx_passes/quantization/tensors.h"

namespace onnx_train {
namespace {

// Floats of a layer with as many steps or more may be added to int32: those of 8 bits, -127 to 127.
constexpr double kStepsOfEightBits = 254;

double steps_of(const QuantizedRange& range) { return range.high - range.low; }

bool is_layer(const Node& node) {
  return node.is("Conv") || node.is("ConvTranspose") || node.is("Gemm") || node.is("MatMul");
}

class IntegerStore {
 public:
  explicit IntegerStore(Model* model) : graph_(*model->graph) {}

  StoredIntegers run() {
    for (Node* node : nodes([](const Node& n) { return n.is("QuantizeLinear"); })) store(node);
    for (Node* node : nodes([](const Node& n) { return n.is("FakeQuantizeInteger", kDomain); })) store_wide(node);
    remove_unread(&graph_);
    for (Node* node : nodes([](const Node& n) { return n.is("BatchNormalization"); })) fold_batch_norm(node);
    for (Node* node : nodes(is_layer)) {
      read_quantized(node);
      store_bias(node->is("MatMul") ? with_bias(node) : node);
    }
    remove_unread(&graph_);
    find_floats();
    return made_;
  }

 private:
  // Some of the nodes; the steps above remove others.
  std::vector<Node*> nodes(const std::function<bool(const Node&)>& are) const {
    std::vector<Node*> found = graph_.nodes();
    std::erase_if(found, [&](const Node* node) { return !are(*node); });
    return found;
  }

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
    const auto of = granularity_of(*q);
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
    ++made_.weights;
  }

  // Of 32 bits, which QuantizeLinear does not have: a constant bias, which is stored as int32.
  void store_wide(Node* node) {
    const Tensor w = constant_operand(node->input(0)), scale = constant_of(node->input(1));
    const QuantizedRange range{static_cast<double>(node->attr("low", -128.0f)),
                               static_cast<double>(node->attr("high", 127.0f))};
    constexpr double kMost = 2147483648.0;  // the float next to that of int32
    const bool is_wide = type_of(range) == DType::kInt32 && range.low >= -kMost && range.high <= kMost;
    const std::string rounding = node->attr("rounding", "");
    const bool at_zero = constant_of(node->input(2)).holds_only(0) && (rounding.empty() || rounding == "half_even");
    if (w.empty() || scale.empty() || !is_wide || !at_zero || graph_.is_output(node->output())) return;
    const bool each = scale.size() > 1;  // for each index of the last axis
    if (each && (scale.size() != w.shape().back() || scale.shape().back() != scale.size())) return;
    const Granularity of{each ? std::ssize(w.shape()) - 1 : -1, 0};
    const Tensor flat = scale.reshaped(each ? Shape{scale.size()} : Shape{});
    Tensor integers = quantize(w, flat, {}, of, DType::kInt32);
    if (integers.empty()) return;
    for (int64_t i = 0; i < integers.size(); ++i)
      integers.set(i, std::clamp(integers.at(i), range.low, std::min(range.high, kMost - 1)));
    const std::string name = stored_name(*node->input(0));
    Builder b(&graph_, node);
    b.set_name(node->output()->name() + "/integers");
    Attrs attrs;
    if (each) attrs.emplace_back("axis", of.axis);
    const Var y = b.op("DequantizeLinear",
                       {b.var(constant(name + "_quantized", integers)), b.var(constant(name + "_scale", flat))}, attrs);
    graph_.replace(node->output(), y.value());
    graph_.remove(node);
    ++made_.weights;
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
    const bool transposed = conv && conv->is("ConvTranspose") && conv->attr("group", 1) == 1;
    if (!conv || (!conv->is("Conv") && !transposed)) return;
    if (norm->input(0)->uses().size() != 1 || graph_.is_output(norm->input(0))) return;
    Node* weight = stored(conv->input(1));
    const Tensor scale = weight ? constant_of(weight->input(1)) : Tensor();
    const Tensor gamma = constant_of(norm->input(1)), beta = constant_of(norm->input(2));
    const Tensor mean = constant_of(norm->input(3)), variance = constant_of(norm->input(4));
    const Tensor bias = constant_bias(conv->input(2), gamma.size());
    const int64_t axis = transposed ? 1 : 0;
    const bool by_channel = weight && weight->output()->uses().size() == 1 && weight->attr("axis", 1) == axis &&
                            scale.size() == gamma.size() && scale.shape().size() == 1;
    if (!by_channel || gamma.empty() || beta.empty() || mean.empty() || variance.empty()) return;
    if (conv->input(2) && bias.empty()) return;
    Tensor q = constant_of(weight->input(0)).clone(), scales = scale.clone(), biases(scale.dtype(), scale.shape());
    if (q.dtype() != DType::kInt8) return;
    const double epsilon = static_cast<double>(norm->attr("epsilon", 1e-5f));
    std::vector<double> factors;
    for (int64_t c = 0; c < scale.size(); ++c) {
      const double f = gamma.at(c) / std::sqrt(variance.at(c) + epsilon);
      biases.set(c, ((bias.empty() ? 0 : bias.at(c)) - mean.at(c)) * f + beta.at(c));
      scales.set(c, f == 0 ? 1 : scale.at(c) * std::fabs(f));
      factors.push_back(f);
    }
    const QuantizedRange range = *range_of_stored(*weight->input(0));
    int64_t inner = 1;  // elements of one channel that are neighbours
    for (size_t i = static_cast<size_t>(axis) + 1; i < q.shape().size(); ++i) inner *= q.shape()[i];
    for (int64_t i = 0; i < q.size(); ++i) {
      const double f = factors[static_cast<size_t>(i / inner % scale.size())];
      if (f < 0 && (-q.at(i) < range.low || -q.at(i) > range.high)) return;
      if (f <= 0) q.set(i, f == 0 ? 0 : -q.at(i));
    }
    const std::string name = weight->input(1)->name(), stored_as = weight->input(0)->name();
    Value* folded = constant(stored_as + "/folded", q);
    if (range != *range_of(q.dtype())) folded = clip_stored(folded, range);  // says so in the file
    weight->set_input(0, folded);
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
    if (!before || !granularity_of(*before) || granularity_of(*before)->axis >= 0) return;
    Builder b(&graph_, node);
    b.set_name(node->input(0)->name() + "/quantized");
    const Var scale = b.var(before->input(1)), zero = b.var(before->input(2));
    node->set_input(
        0,
        b.op("DequantizeLinear", {b.op("QuantizeLinear", {b.var(node->input(0)), scale, zero}), scale, zero}).value());
  }

  // The range of the integers that a DequantizeLinear reads.
  static std::optional<QuantizedRange> range_read_by(const Node& dequantize) {
    const Value& integers = *dequantize.input(0);
    if (!integers.producer()) return range_of_stored(integers);
    const auto whole = range_of(integers.dtype());
    return whole ? clipped_range({integers.producer(), 0}, *whole).value_or(*whole) : whole;
  }

  // The scales of a layer's products, one for all or one for each bias; empty, with the reason, if there are none.
  static Tensor scale_of_bias(const Node& node, int64_t biases, std::string* why) {
    const Node *x = dequantization(node.input(0)), *w = stored(node.input(1));
    const auto none = [&](const char* reason) {
      *why = reason;
      return Tensor();
    };
    if (!x || !w) return none(x ? "its weight is a float" : "its input is no quantized value");
    if (node.is("Gemm") && (node.attr("alpha", 1.0f) != 1 || node.attr("beta", 1.0f) != 1))
      return none("it has an alpha or a beta");
    for (const Node* operand : {x, w}) {
      const auto range = range_read_by(*operand);
      if (!range || steps_of(*range) < kStepsOfEightBits)
        return none("fewer than 8 bits are multiplied, so that a unit of the products is coarse");
    }
    const Tensor of_x = constant_of(x->input(1)), of_w = constant_of(w->input(1));
    const int64_t groups = node.is("ConvTranspose") ? node.attr("group", 1) : 1;
    if (of_x.size() != 1 || of_w.empty() || (of_w.size() != 1 && of_w.size() * groups != biases))
      return none("its scales are not one for each channel");
    Tensor scale(of_w.dtype(), of_w.size() == 1 ? Shape{} : Shape{biases});
    for (int64_t i = 0; i < scale.size(); ++i) {
      const auto step = static_cast<float>(of_w.at(i % of_w.size()));
      scale.set(i, static_cast<double>(static_cast<float>(of_x.at(0)) * step));
    }
    return scale;
  }

  // The Gemm in the place of a MatMul and the Add of a bias; the MatMul itself if its bias cannot be an integer.
  Node* with_bias(Node* product) {
    Value* result = product->output();
    if (result->uses().size() != 1 || graph_.is_output(result)) return product;
    const Use& use = result->uses()[0];
    if (!use.node->is("Add") || &use.node->graph() != &graph_) return product;
    Value* bias = use.node->input(1 - use.index);
    const Tensor numbers = constant_of(bias);
    std::string why;
    const bool fits = !numbers.empty() && is_vector(numbers) && product->input(1)->type().is_static() &&
                      product->input(1)->rank() == 2 && product->input(1)->type().shape()[1] == numbers.size();
    if (!fits || scale_of_bias(*product, numbers.size(), &why).empty()) return product;
    if (!product->input(0)->has_rank() || product->input(0)->rank() != 2) {
      say_float("bias", bias, *use.node, "a MatMul of more than two axes has none of its own");
      return product;
    }
    Builder b(&graph_, use.node);
    b.set_name(result->name() + "/with_bias");
    const Var y = b.op("Gemm", {b.var(product->input(0)), b.var(product->input(1)), b.var(bias)});
    Node* gemm = y.value()->producer();
    gemm->mutable_shell().set_name(product->name());
    Value* sum = use.node->output();
    Node* const add = use.node;
    const std::string name = sum->name();
    graph_.replace(sum, y.value());
    graph_.remove(add);
    graph_.remove(product);
    if (y.value()->name() != name) graph_.claim_name(y.value(), name);
    return gemm;
  }

  // [N], or [1, .., N].
  static bool is_vector(const Tensor& numbers) {
    return !numbers.shape().empty() && numbers.shape().back() == numbers.size();
  }

  // bias = q (scale of x) (scale of w), q an int32: what integer products add.
  void store_bias(Node* node) {
    Value* old = node->is("MatMul") ? nullptr : node->input(2);
    const Tensor bias = constant_of(old);
    if (bias.empty() || !is_float(bias.dtype())) return;
    std::string why;
    if (!is_vector(bias)) return say_float("bias", old, *node, "it is not one row");
    const Tensor scale = scale_of_bias(*node, bias.size(), &why);
    if (scale.empty()) return say_float("bias", old, *node, why);
    Tensor q(DType::kInt32, {bias.size()});
    for (int64_t i = 0; i < bias.size(); ++i) {
      const double steps = std::nearbyint(bias.at(i) / scale.at(scale.size() == 1 ? 0 : i));
      if (!(std::fabs(steps) < 2147483648.0)) return say_float("bias", old, *node, "it is larger than int32 holds");
      q.set(i, steps);
    }
    const std::string name = old->name();
    Builder b(&graph_, node);
    b.set_name(name + "/dequantized");
    const Var made = b.var(constant(name + "_quantized", q)), of = b.var(constant(name + "_quantized_scale", scale));
    const Var zero = b.var(constant(name + "_quantized_zero_point", Tensor(DType::kInt32, scale.shape())));
    node->set_input(2, b.op("DequantizeLinear", {made, of, zero}, {{"axis", 0}}).value());
  }

  void say_float(const char* kind, const Value* value, const Node& node, const std::string& why) {
    made_.floats.push_back(concat(kind, " '", value->name(), "' of ", node.label(), ": ", why));
  }

  // Says which weights are floats in a model whose layers multiply integers; elsewhere a float is no surprise.
  void find_floats() {
    bool any = false;
    std::vector<const Node*> layers;
    for (const Node* node = graph_.first(); node; node = node->next()) {
      if (!is_layer(*node)) continue;
      any = any || (stored(node->input(1)) && dequantization(node->input(0)));
      if (!stored(node->input(1)) && !constant_operand(node->input(1)).empty()) layers.push_back(node);
    }
    for (const Node* node : layers) {
      const Value* weight = node->input(1);
      say_float("weight", weight->producer() ? weight->producer()->input(0) : weight, *node, "it was not quantized");
    }
    if (!any) made_.floats.clear();
  }

  Graph& graph_;
  StoredIntegers made_;
};

}  // namespace

StoredIntegers store_quantized(Model* model) { return IntegerStore(model).run(); }

}  // namespace onnx_train
