// The forward model in the files of ONNX Runtime's training: eval_model.onnx is it with the nodes of a loss, and its
// weights are inputs; training_model.onnx has the backward pass, too, and operators in forms of ONNX Runtime's own.
// Pure functions on messages; any thread. They throw Error that names the node or the value.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/message.h"
#include "runtime/onnxruntime/training_checkpoint.h"

namespace onnx_train {

struct ForwardModel {
  ModelMessage message;
  std::string loss;          // an expression of --loss
  bool is_recovered = true;  // otherwise the nodes of the loss are part of the model
};

// Of the model with a loss as its first output. Inputs with names of the checkpoint's parameters become initializers.
// Outputs: the loss's prediction, and the further outputs. `training`, which may be null, says which nodes run in
// training mode, of which `with_loss` says nothing.
ForwardModel recover_forward(ModelMessage with_loss, const ModelMessage* training, const OrtCheckpoint& checkpoint);

// A training model without the backward pass.
ModelMessage without_gradients(ModelMessage training);

// The parameters of which a training model adds up gradients.
std::vector<std::string> trained_names(const onnx::GraphProto& training);

}  // namespace onnx_train
