// The outputs of a model for data. The caller owns the session, which one thread uses at a time, and the tensors.
#pragma once

#include <optional>
#include <string>

#include "runtime/data/dataset.h"
#include "runtime/session/session.h"

namespace onnx_train {

// Runs `predict` on all samples in their order, `batch_size` at a time unless the model prescribes another size, and
// gives the outputs of all samples by name. Those of an output are along the axis
// that the model gives the batch's size, else the first (sample_axes.h); one that has not this size there is that of
// the last batch. Throws Error where an output changes the shape of its rows from batch to batch.
TensorMap predict(Session* session, const Dataset& data, int64_t batch_size);

// Which output holds scores of classes, and what they are (kScoresOf).
struct ScoresOf {
  std::string output;
  bool yes_no = false;         // each class for itself, not one of them
  int64_t axis = 1;            // of the classes; an output of one axis has one class
  bool probabilities = false;  // already
};

// As the model says; nothing if it says that outputs are numbers, or does not say it. Throws Error for metadata that no
// output fits.
std::optional<ScoresOf> scores_of(const Model& model, const TensorMap& outputs);
// A guess for a model that does not say it: the first output of floats with an axis besides the batch, whose rows are
// probabilities where they sum to 1; an output of one number for each sample is yes or no, if it `may_be_yes_no`.
// `names` is the number of names of classes; if there are some, only an output of so many classes is taken. Nothing if
// there is none.
std::optional<ScoresOf> guessed_scores(const TensorMap& outputs, size_t names, bool may_be_yes_no);

// For each position the class with the largest score, int64, and its probability, double: the shape of the scores
// without the axis of the classes. Of yes or no: 1 or 0 for each element, and the probability of a yes, in the scores'
// shape; the axis of one class is dropped, and the probability is that of the answer.
struct PredictedClasses {
  Tensor classes, probabilities;
};
PredictedClasses predicted_classes(const Tensor& scores, const ScoresOf& what);

}  // namespace onnx_train
