#include "kernels/geometry/losses.h"

#include "kernels/geometry/indexing/indexing.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

CrossEntropySpec::CrossEntropySpec(const NodeSpec& spec, const Shape& logits_shape, int64_t axis, int labels_at,
                                   int weight_at)
    : logits(logits_shape, axis),
      classes(spec.node().attr("classes", logits.size)),
      ignore_index(spec.node().attr("ignore_index", -100)),
      smoothing(spec.node().has_attr("label_smoothing") ? spec.node().attr_tensor("label_smoothing").at(0) : 0),
      mean(std::string(spec.node().attr("reduction", "mean")) == "mean"),
      labels_input(labels_at),
      weight_input(spec.has_input(weight_at) ? weight_at : -1),
      int64_labels(spec.in_type(labels_at) == DType::kInt64) {
  check_size(spec, labels_at, logits.lines(), "labels");
  if (weight_input >= 0) check_size(spec, weight_input, classes, "class weights");
}

CrossEntropySpec CrossEntropySpec::of_gradient(const NodeSpec& spec) {
  const CrossEntropySpec result(spec, spec.in_shape(1), axis_of(spec), 2, 4);
  result.check_size(spec, 3, result.logits.lines(), "log-sums");
  return result;
}

void CrossEntropySpec::check_size(const NodeSpec& spec, int input, int64_t wanted, const char* what) const {
  if (spec.in_size(input) == wanted) return;
  fail(spec.node().label(), ": the ", what, " have the shape ", to_string(spec.in_shape(input)), "; with ", classes,
       " classes there must be ", wanted);
}

std::function<std::string(const Fault&)> CrossEntropySpec::explain() const {
  return [classes = classes](const Fault& fault) { return not_a_class(fault.value, fault.position, classes); };
}

bool is_label(DType dtype) { return dtype == DType::kInt64 || dtype == DType::kInt32; }

}  // namespace onnx_train
