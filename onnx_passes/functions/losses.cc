#include "onnx_passes/functions/class_index.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// What the text of a cross entropy depends on.
struct Variant {
  int64_t axis;        // of the classes, from the start
  int64_t inner_axes;  // axes behind the classes
  bool mean, smooth, weighted;

  std::string overload() const {
    return concat("axis", axis, "of", axis + inner_axes + 1, mean ? "_mean" : "_sum", smooth ? "_smooth" : "",
                  weighted ? "_weighted" : "");
  }
};

template <typename T>
const T& attr(const Attrs& attrs, const std::string& name) {
  for (const Attr& a : attrs) {
    if (a.name == name && std::holds_alternative<T>(a.value)) return std::get<T>(a.value);
  }
  fail("a cross entropy needs the attribute '", name, "'");
}

Variant variant_of(const Var& labels, const Attrs& attrs, bool weighted) {
  const int64_t rank = labels.rank() + 1;  // the labels' shape is the logits' without the classes
  const int64_t axis = normalize_axis(attr<int64_t>(attrs, "axis"), rank);
  const std::string& reduction = attr<std::string>(attrs, "reduction");
  if (reduction != "mean" && reduction != "sum") fail("a cross entropy's reduction is mean or sum, not ", reduction);
  const bool smooth = attr<Tensor>(attrs, "label_smoothing").at(0) > 0;
  return {axis, rank - 1 - axis, reduction == "mean", smooth, weighted};
}

// For label smoothing s: keep = 1 - s, spread = s / C; `class_weight` broadcasts along the class axis.
std::string smoothing_lines(const Variant& v) {
  std::string text = concat("class_count = Shape <start = ", v.axis, ", end = ", v.axis + 1, "> (logits)\n") + R"(
    classes = CastLike (class_count, logits)
    smoothing_double = Constant <value: tensor = @label_smoothing> ()
    smoothing = CastLike (smoothing_double, logits)
    keep = Sub (one, smoothing)
    spread = Div (smoothing, classes)
)";
  if (!v.weighted) return text;
  std::string column = "-1";
  for (int64_t i = 0; i < v.inner_axes; ++i) column += ", 1";
  return text + concat("column = Constant <value_ints = [", column, "]> ()\nclass_weight = Reshape (weight, column)\n");
}

// The label as an index, 0 where it is ignored. What is no class is moved outside of every axis (class_index.h).
std::string class_index() {
  return concat(R"(
ClassIndex <axis: int = 1, ignore_index: int = -100> (labels, logits) => (index) {
    axis = Constant <value_int: int = @axis> ()
    ignore_index = Constant <value_int: int = @ignore_index> ()
    first_class = Constant <value_int = 0> ()
    sizes = Shape (logits)
    classes = Gather (sizes, axis)
    label = Cast <to = 7> (labels)
    ignored = Equal (label, ignore_index)
    is_below = Less (label, first_class)
    is_above = GreaterOrEqual (label, classes)
    is_none = Or (is_below, is_above)
    least = Constant <value_int = )",
                kNoClass / 2, R"(> ()
    most = Constant <value_int = )",
                -kNoClass / 2, R"(> ()
    distance = Constant <value_int = )",
                kNoClass, R"(> ()
    limited = Clip (label, least, most)
    moved = Add (limited, distance)
    refused = Where (is_none, moved, label)
    index = Where (ignored, first_class, refused)
}
)");
}

// What loss and gradient have in common. `counted` is the weight of each position: that of its class, 0 where it is
// ignored.
std::string common_lines(const Variant& v) {
  std::string text = concat("axes = Constant <value_ints = [", v.axis, "]> ()\n") + R"(
    ignore_index = Constant <value_int: int = @ignore_index> ()
    zero_float = Constant <value_float = 0.0> ()
    zero = CastLike (zero_float, logits)
    one_float = Constant <value_float = 1.0> ()
    one = CastLike (one_float, logits)
    index = Cast <to = 7> (labels)
    ignored = Equal (index, ignore_index)
    label = onnx_train.ClassIndex <axis: int = @axis, ignore_index: int = @ignore_index> (labels, logits)
    label_column = Unsqueeze (label, axes)
)";
  text += v.weighted
              ? "label_weight = Gather <axis = 0> (weight, label)\ncounted = Where (ignored, zero, label_weight)\n"
              : "counted = Where (ignored, zero, one)\n";
  if (v.mean) {
    text += R"(
    total_weight = ReduceSum <keepdims = 0> (counted)
    nothing = Equal (total_weight, zero)
    divisor = Where (nothing, one, total_weight)
)";
  }
  return v.smooth ? text + smoothing_lines(v) : text;
}

std::string signature(const char* op, const char* inputs, const Variant& v, const char* outputs) {
  return concat(op, " <axis, ignore_index, label_smoothing, reduction> (", inputs,
                v.weighted ? ", weight) => (" : ") => (", outputs, ") {\n");
}

// log p = x - log Σ exp x
// loss = (1 - s) Σᵢ w[yᵢ] (-log p[i, yᵢ]) + s / C Σᵢ Σ_c w[c] (-log p[i, c])          s: label smoothing
// over the positions i that are not ignored; reduction "mean" divides by Σᵢ w[yᵢ] (torch.nn.functional.cross_entropy);
// where that is 0, nothing counts, and loss and gradient are 0 (PyTorch: NaN).
FunctionText softmax_cross_entropy(const FunctionCall& call) {
  const Variant v = variant_of(call.inputs.at(1), call.attrs, call.inputs.size() > 2 && call.inputs[2]);
  std::string text = signature("SoftmaxCrossEntropy", "logits, labels", v, "loss, log_sum_exp") + common_lines(v) + R"(
    highest = ReduceMax <keepdims = 1> (logits, axes)
    shifted = Sub (logits, highest)
    exponentials = Exp (shifted)
    sum = ReduceSum <keepdims = 1> (exponentials, axes)
    log_sum = Log (sum)
    log_sum_exp_column = Add (highest, log_sum)
    log_sum_exp = Squeeze (log_sum_exp_column, axes)
    log_p = Sub (shifted, log_sum)
)";
  text += concat("label_log_p_column = GatherElements <axis = ", v.axis, "> (log_p, label_column)\n") + R"(
    label_log_p = Squeeze (label_log_p_column, axes)
    weighted_log_p = Mul (counted, label_log_p)
    label_part = Where (ignored, zero, weighted_log_p)
)";
  if (v.smooth) {
    const char* log_ps = v.weighted ? "weighted_log_ps" : "log_p";
    if (v.weighted) text += "weighted_log_ps = Mul (class_weight, log_p)\n";
    text += concat("log_p_sum = ReduceSum <keepdims = 0> (", log_ps, ", axes)\n") + R"(
    label_part_kept = Mul (keep, label_part)
    log_p_spread = Mul (spread, log_p_sum)
    spread_part = Where (ignored, zero, log_p_spread)
    log_likelihood = Add (label_part_kept, spread_part)
)";
  }
  text += concat("log_likelihood_sum = ReduceSum <keepdims = 0> (", v.smooth ? "log_likelihood" : "label_part", ")\n");
  text += v.mean ? "loss_sum = Neg (log_likelihood_sum)\nmean = Div (loss_sum, divisor)\n"
                   "loss = Where (nothing, zero, mean)\n}"
                 : "loss = Neg (log_likelihood_sum)\n}";
  return {text, v.overload(), "ClassIndex"};
}

// dx[i, c] = dloss ((1 - s) w[yᵢ] (p[i, c] - [c = yᵢ]) + s / C (p[i, c] Σ_k w[k] - w[c]))
// and 0 where i is ignored; reduction "mean" divides by Σᵢ w[yᵢ].
FunctionText softmax_cross_entropy_grad(const FunctionCall& call) {
  const Variant v = variant_of(call.inputs.at(2), call.attrs, call.inputs.size() > 4 && call.inputs[4]);
  std::string text =
      signature("SoftmaxCrossEntropyGrad", "dloss, logits, labels, log_sum_exp", v, "dlogits") + common_lines(v) + R"(
    log_sum_exp_column = Unsqueeze (log_sum_exp, axes)
    log_p = Sub (logits, log_sum_exp_column)
    p = Exp (log_p)
    counted_column = Unsqueeze (counted, axes)
    p_counted = Mul (p, counted_column)
    label_share = Neg (counted_column)
)";
  text += concat("label_part = ScatterElements <axis = ", v.axis,
                 ", reduction = \"add\"> (p_counted, label_column, label_share)\n");
  if (v.smooth) {
    if (v.weighted) text += "class_weight_sum = ReduceSum <keepdims = 0> (weight)\n";
    text += concat("p_weighted = Mul (p, ", v.weighted ? "class_weight_sum" : "classes", ")\n");
    text += concat("p_minus_weight = Sub (p_weighted, ", v.weighted ? "class_weight" : "one", ")\n") + R"(
    label_part_kept = Mul (keep, label_part)
    spread_part = Mul (spread, p_minus_weight)
    change = Add (label_part_kept, spread_part)
)";
  }
  if (v.mean) text += "share = Div (dloss, divisor)\nscale = Where (nothing, zero, share)\n";
  text += concat("scaled = Mul (", v.smooth ? "change" : "label_part", v.mean ? ", scale)\n" : ", dloss)\n") + R"(
    ignored_column = Unsqueeze (ignored, axes)
    dlogits = Where (ignored_column, zero, scaled)
})";
  return {text, v.overload(), "ClassIndex"};
}

}  // namespace

std::vector<FunctionRow> loss_functions() {
  static const std::string kClassIndex = class_index();
  return {
      function("ClassIndex", kClassIndex.c_str()),
      {"SoftmaxCrossEntropy", softmax_cross_entropy},
      {"SoftmaxCrossEntropyGrad", softmax_cross_entropy_grad},
      function("StopGradient", "StopGradient (x) => (y) { y = Identity (x) }"),
  };
}

}  // namespace onnx_train
