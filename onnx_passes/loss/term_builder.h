// Builds the nodes of one term of a loss expression: what the rows of loss_table.h use. A row reads its arguments and
// options, writes the loss of each position, and leaves weights and means to `reduced`. Used by LossBuilder
// (loss_terms.h), on its thread; throws Error.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/loss/loss_table.h"
#include "onnx_passes/loss/loss_terms.h"

namespace onnx_train {

// The loss of each position, before sample weights and means. A position is an element, a label, a sample: whatever the
// mean is over.
struct PositionLosses {
  Var losses;               // with class weights; the samples are the first axis, if there are axes
  const char* what;         // "elements"
  std::vector<int64_t> of;  // the prediction's axes that the positions have; their number is the product of the sizes
  Var ignored = {};         // bool, of the losses' shape: what does not count
  Var counts = {};          // of the losses' shape: for how much each counts in the mean; 1 if absent
  std::string key = "";     // of `ignored` and `counts`: equal only if they are the same
};

// The class indices of a term.
struct Labels {
  Var given;    // the target
  Var ignored;  // bool: those that are ignore_index
  Var index;    // int64: the target, 0 where it is ignored
};

class TermBuilder {
 public:
  // All outlive the TermBuilder. The term is resolved (loss_resolution.h).
  TermBuilder(LossBuilder* losses, const LossTerm& term, const LossRow& row)
      : losses_(*losses), term_(term), row_(row) {}

  Builder& b() { return losses_.b_; }
  // The first prediction.
  Var x() { return losses_.read(name(0)); }
  // Argument `i` in the shape that its row says; floats in the type of `like`, indices as they are.
  Var argument(size_t i, Var like);
  // Whether argument `i` holds floats in the place of indices.
  bool floats(size_t i) { return holds_floats(term_, i, b().graph().find(name(i))); }
  Labels labels(Var x);  // argument 1

  double number(const char* option) const { return number_of(term_, option); }
  int64_t integer(const char* option) const { return integer_of(term_, option); }
  bool flag(const char* option) const { return flag_of(term_, option); }
  std::string choice(const char* option) const { return choice_of(term_, option); }
  bool is_sum() const { return reduction_of(term_) == "sum"; }
  // A number that may be a value of the model or an input; a scalar in the type of `like`.
  Var scalar(const char* option, Var like);
  // The weight of each class; the weights of elements, which broadcast to x. Absent if the term has none.
  Var class_weight(Var x);
  Var element_weight(const char* option, Var x);
  // The weight of each sample, along the axes of `losses` and in its type; absent if the term has none.
  Var weight_of_samples(Var losses, Var x);
  bool has_sample_weight() const { return find_option(term_, "sample_weight") != nullptr; }

  // Sums or averages the positions of prediction x, with sample weights.
  LossResult reduced(Var x, PositionLosses positions);
  // The same for labels, with the accuracy; `counts` as in PositionLosses.
  LossResult of_labels(Var x, const Labels& labels, Var losses, Var counts);
  // Adds the accuracy to a loss over labels, and what counts if it is not known yet; `weight` is that of the classes.
  LossResult of_labels(LossResult result, Var x, Var labels, Var weight);

  // Labels of the same key count the same.
  std::string labels_key(Var labels) const;

 private:
  const std::string& name(size_t i) const { return term_.arguments.names[i].text; }

  LossBuilder& losses_;
  const LossTerm& term_;
  const LossRow& row_;
};

// Of several rows.
Var above_zero(Var x);          // max(x, 0), whose derivative at 0 is 1; NaN stays NaN
Var softplus(Var x, Var size);  // log(1 + eˣ), size = |x|
Var sign_of_target(Var t);      // t, where 0 stands for -1
Var log_softmax(Var x, int64_t axis);
Var normalized(Var x, double eps);           // x / max(‖x‖, eps) over the last axis; at 0 with a gradient
Var power_of_missing(Var q, double gamma);   // q^gamma for q = 1 - p; the slope at 0 is finite
Var picked(Var x, Var index, int64_t axis);  // x[.., index, ..], without the axis
std::vector<int64_t> all_axes(Var x);        // 0, 1, ...
std::vector<int64_t> axes_without(Var x, int64_t axis);
Var along(Var vector, int64_t axis, int64_t rank);  // broadcasts along `axis` of a tensor of this rank

}  // namespace onnx_train
