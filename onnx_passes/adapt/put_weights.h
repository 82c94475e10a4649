// Trained weights for a model that holds the same weights as the one that was trained, under other names, in another
// layout (transposed, sliced, packed together) or in another type of floats. They are found by the values that they had
// before training, since no file tells the names of another exporter. All else of the model stays bit for bit.
//
// Values decide. Names do where values cannot: where two weights had the same bytes and differ now (biases of zeros),
// or where all elements of a weight were equal (ones of a norm), which constants may be, too. A function on a message
// that one caller owns; any thread. Throws Error (kWeightsMisfit) that names the tensor where neither decides.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/ir/message.h"
#include "onnx_passes/model/pass.h"

namespace onnx_train {

struct TrainedWeight {
  std::vector<std::string> names;  // its own, and those that it has in modules that read it
  Tensor before, after;            // of one type and shape; equal bytes for a weight that has not changed
};

struct PutWeights {
  size_t weights = 0, tensors = 0;  // weights that have changed and were found, tensors of the model that changed
  std::vector<std::string> how;     // "'onnx::MatMul_3' is 'fc.weight', transposed": what is not simply of another name
  std::vector<std::string> missing;  // weights that have changed and were not found, each with the reason
  std::vector<std::string> left;     // tensors that may be such a weight, and stay as they are, each with the reason
  std::multimap<std::string, std::string> tensors_of;  // tensors that hold a weight as a whole, changed or not
};

// Puts what has changed of `weights`, all weights of the trained model, into `message`. `source` is for messages: the
// file. The message is as it was if this throws; where some are missing it has the others.
PutWeights put_weights(const std::vector<TrainedWeight>& weights, const std::string& source, ModelMessage* message);

}  // namespace onnx_train
