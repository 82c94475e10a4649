// The outputs of a model for data. The caller owns the session, which one thread uses at a time, and the tensors.
#pragma once

#include "runtime/data/dataset.h"
#include "runtime/session.h"

namespace onnx_train {

// Runs `predict` on all samples in their order, `batch_size` at a time unless the model prescribes another size, and
// gives the outputs of all samples by name. An output whose first dimension is not the batch is that of the last batch.
// Throws Error where an output changes the shape of its rows from batch to batch.
TensorMap predict(Session* session, const Dataset& data, int64_t batch_size);

struct PredictedClass {
  int64_t label;
  double probability;
};

// The class of each row of scores, float[samples, classes], with the softmax of the row, or with its value where the
// row is probabilities already.
std::vector<PredictedClass> predicted_classes(const Tensor& scores);

}  // namespace onnx_train
