// The parameters of softmax cross entropy, from its node (bodies: onnx_passes/functions/losses.cc). A plain value. The
// constructor throws Error that names the node if sizes do not fit.
#pragma once

#include <string>

#include "kernels/geometry/indexing/axis_view.h"
#include "kernels/kernel.h"

namespace onnx_train {

// A position is one row of logits along the class axis.
struct CrossEntropySpec {
  AxisView logits;
  int64_t classes;  // the attribute `classes` (padding follows them: pad_classes.cc) or the class axis' size
  int64_t ignore_index;
  double smoothing;
  bool mean;
  int labels_input, weight_input;  // numbers of inputs; weight_input is -1 without class weights
  bool int64_labels;               // labels are int64, otherwise int32

  // The logits of labels in input `labels_at` have the shape `logits_shape`; their classes are along the axis `axis`.
  CrossEntropySpec(const NodeSpec& spec, const Shape& logits_shape, int64_t axis, int labels_at, int weight_at);
  static CrossEntropySpec of_loss(const NodeSpec& spec) { return {spec, spec.in_shape(), axis_of(spec), 1, 2}; }
  static CrossEntropySpec of_gradient(const NodeSpec& spec);

  double smoothing_per_class() const { return smoothing / static_cast<double>(classes); }
  // Returns Prepared::explain for a label that is not a class.
  std::function<std::string(const Fault&)> explain() const;

 private:
  static int64_t axis_of(const NodeSpec& spec) { return spec.node().attr("axis", 1); }
  void check_size(const NodeSpec& spec, int input, int64_t wanted, const char* what) const;
};

bool is_label(DType dtype);

// sum / count; 0 if nothing counts.
inline double mean_over(double count, double sum) { return count == 0 ? 0 : sum / count; }

}  // namespace onnx_train
