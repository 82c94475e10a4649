#include "onnx_passes/functions/class_index.h"
#include "onnx_passes/functions/cross_entropy.h"

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

// The weight of the classes is input number `weight` of the call, which may leave it out.
std::string signature(const char* op, const char* inputs, size_t weight, const char* outputs,
                      const FunctionCall& call) {
  const bool weighted = call.inputs.size() > weight && call.inputs[weight];
  return concat(op, " <axis, ignore_index, label_smoothing, reduction> (", inputs, weighted ? ", weight" : "", ") => (",
                outputs, ")");
}

FunctionText softmax_cross_entropy(const FunctionCall& call) {
  Body f(signature("SoftmaxCrossEntropy", "logits, labels", 2, "loss, log_sum_exp", call), call);
  const CrossEntropyBody e(&f, f.input("logits"));
  return f.text({e.loss(), e.row(e.log_sum_exp())});
}

FunctionText softmax_cross_entropy_grad(const FunctionCall& call) {
  Body f(signature("SoftmaxCrossEntropyGrad", "dloss, logits, labels, log_sum_exp", 4, "dlogits", call), call);
  const CrossEntropyBody e(&f, f.input("logits"));
  return f.text({e.gradient(e.column(f.input("log_sum_exp")), f.input("dloss"))});
}

FunctionText label_scores_function(const FunctionCall& call) {
  Body f("LabelScores <axis, ignore_index> (logits, labels) => (log_p, rank)", call);
  const int64_t rank = f.given("labels").rank() + 1;
  const int64_t axis = normalize_axis(cross_entropy_attribute<int64_t>(call, "axis"), rank);
  f.depends_on(concat("axis", axis, "of", rank));
  const Term logits = f.input("logits"), labels = f.input("labels");
  const Term label = f.apply("ClassIndex", {labels, logits}, "axis: int = @axis, ignore_index: int = @ignore_index");
  const Term ignored = equal(cast(labels, DType::kInt64), f.attribute("ignore_index"));
  return f.text(label_scores(f, logits, unsqueeze(label, {axis}), ignored, axis, rank));
}

}  // namespace

std::vector<FunctionRow> loss_functions() {
  return {
      function("ClassIndex <axis: int = 1, ignore_index: int = -100> (labels, logits) => (index)", class_index),
      {"LabelScores", label_scores_function},
      {"SoftmaxCrossEntropy", softmax_cross_entropy},
      {"SoftmaxCrossEntropyGrad", softmax_cross_entropy_grad},
      function("StopGradient (x) => (y)", [](Term x) { return x; }),
  };
}

}  // namespace onnx_train
