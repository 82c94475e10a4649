#include "onnx_passes/functions/body.h"
#include "onnx_passes/functions/class_index.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// The label as an index, 0 where it is ignored. What is no class is moved outside of every axis (class_index.h).
Term class_index(Body& f, const Term& labels, const Term& logits) {
  const Term label = cast(labels, DType::kInt64), classes = gather(shape(logits), f.attribute("axis"));
  const Term is_none = logical_or(label < 0, label >= classes);
  const Term limited = f.op("Clip", {label, kNoClass / 2, -kNoClass / 2});
  const Term index = where(is_none, limited + kNoClass, label);
  return where(equal(label, f.attribute("ignore_index")), 0, index);
}

template <typename T>
const T& attribute(const FunctionCall& call, const char* name) {
  const Attr* attr = call.find(name);
  if (!attr || !std::holds_alternative<T>(attr->value)) fail("a cross entropy needs the attribute '", name, "'");
  return std::get<T>(attr->value);
}

// The weight of the classes is input number `weight` of the call, which may leave it out.
std::string signature(const char* op, const char* inputs, size_t weight, const char* outputs,
                      const FunctionCall& call) {
  const bool weighted = call.inputs.size() > weight && call.inputs[weight];
  return concat(op, " <axis, ignore_index, label_smoothing, reduction> (", inputs, weighted ? ", weight" : "", ") => (",
                outputs, ")");
}

// What loss and gradient of a cross entropy have in common. The body depends on the axis of the classes, the reduction,
// and whether there are smoothing and weights of the classes.
struct CrossEntropy {
  Body& f;
  int64_t rank, axis;  // of the logits
  bool mean, smooth, weighted;
  Term logits, zero, one;
  Term ignored, label_column;
  Term counted;                // the weight of each position: that of its class, 0 where it is ignored
  Term nothing, divisor;       // Σ counted, or 1 where that is 0
  Term classes, keep, spread;  // for label smoothing s: C, 1 - s, s / C

  explicit CrossEntropy(Body* body) : f(*body) {
    rank = f.given("labels").rank() + 1;  // the labels' shape is the logits' without the classes
    axis = normalize_axis(attribute<int64_t>(f.call(), "axis"), rank);
    const std::string& reduction = attribute<std::string>(f.call(), "reduction");
    if (reduction != "mean" && reduction != "sum") fail("a cross entropy's reduction is mean or sum, not ", reduction);
    mean = reduction == "mean", weighted = f.has("weight");
    smooth = attribute<Tensor>(f.call(), "label_smoothing").at(0) > 0;
    f.depends_on(concat("axis", axis, "of", rank, mean ? "_mean" : "_sum", smooth ? "_smooth" : "",
                        weighted ? "_weighted" : ""));

    const Term labels = f.input("labels");
    logits = f.input("logits"), zero = f.as(0, logits), one = f.as(1, logits);
    const Term label = f.apply("ClassIndex", {labels, logits}, "axis: int = @axis, ignore_index: int = @ignore_index");
    ignored = equal(cast(labels, DType::kInt64), f.attribute("ignore_index"));
    label_column = column(label);
    counted = where(ignored, zero, weighted ? gather(f.input("weight"), label) : one);
    const Term total = sum_all(counted);
    nothing = equal(total, zero), divisor = where(nothing, one, total);
    classes = cast_like(shape(logits, axis, axis + 1), logits);
    const Term smoothing = f.as(f.attribute("label_smoothing"), logits);
    keep = 1 - smoothing, spread = smoothing / classes;
  }

  Term column(const Term& x) const { return unsqueeze(x, {axis}); }
  Term row(const Term& x) const { return squeeze(x, {axis}); }
  Term sum_all(const Term& x) const { return reduce_sum(x, {}, /*keepdims=*/false); }
  // Divided by Σ counted with the reduction "mean", 0 where that is 0.
  Term averaged(const Term& x) const { return mean ? where(nothing, zero, x / divisor) : x; }
  // The weights of the classes along their axis.
  Term class_weight() const {
    if (!weighted) return one;
    std::vector<int64_t> shape(static_cast<size_t>(rank - axis), 1);
    shape[0] = -1;
    return reshape(f.input("weight"), shape);
  }
};

// log p = x - log Σ exp x
// loss = (1 - s) Σᵢ w[yᵢ] (-log p[i, yᵢ]) + s / C Σᵢ Σ_c w[c] (-log p[i, c])          s: label smoothing
// over the positions i that are not ignored; reduction "mean" divides by Σᵢ w[yᵢ] (torch.nn.functional.cross_entropy);
// where that is 0, nothing counts, and loss and gradient are 0 (PyTorch: NaN).
FunctionText softmax_cross_entropy(const FunctionCall& call) {
  Body f(signature("SoftmaxCrossEntropy", "logits, labels", 2, "loss, log_sum_exp", call), call);
  const CrossEntropy e(&f);
  const Term highest = reduce_max(e.logits, {e.axis}), shifted = e.logits - highest;
  const Term log_sum = log(reduce_sum(exp(shifted), {e.axis})), log_p = shifted - log_sum;
  Term likelihood = where(e.ignored, 0, e.counted * e.row(gather_elements(log_p, e.label_column, e.axis)));
  if (e.smooth) {
    const Term of_all = reduce_sum(e.weighted ? e.class_weight() * log_p : log_p, {e.axis}, /*keepdims=*/false);
    likelihood = e.keep * likelihood + where(e.ignored, 0, e.spread * of_all);
  }
  return f.text({e.averaged(-e.sum_all(likelihood)), e.row(highest + log_sum)});
}

// dx[i, c] = dloss ((1 - s) w[yᵢ] (p[i, c] - [c = yᵢ]) + s / C (p[i, c] Σ_k w[k] - w[c]))
// and 0 where i is ignored; reduction "mean" divides by Σᵢ w[yᵢ].
FunctionText softmax_cross_entropy_grad(const FunctionCall& call) {
  Body f(signature("SoftmaxCrossEntropyGrad", "dloss, logits, labels, log_sum_exp", 4, "dlogits", call), call);
  const CrossEntropy e(&f);
  const Term p = exp(e.logits - e.column(f.input("log_sum_exp"))), counted = e.column(e.counted);
  Term change = scatter_add(p * counted, e.label_column, -counted, e.axis);
  if (e.smooth) {
    const Term of_all = p * (e.weighted ? e.sum_all(f.input("weight")) : e.classes) - e.class_weight();
    change = e.keep * change + e.spread * of_all;
  }
  return f.text({where(e.column(e.ignored), e.zero, change * e.averaged(f.input("dloss")))});
}

}  // namespace

std::vector<FunctionRow> loss_functions() {
  return {
      function("ClassIndex <axis: int = 1, ignore_index: int = -100> (labels, logits) => (index)", class_index),
      {"SoftmaxCrossEntropy", softmax_cross_entropy},
      {"SoftmaxCrossEntropyGrad", softmax_cross_entropy_grad},
      function("StopGradient (x) => (y)", [](Term x) { return x; }),
  };
}

}  // namespace onnx_train
