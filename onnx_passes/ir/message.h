// A model's message whose large tensors are stored beside it: each refers to an element of `contents`. So messages are
// small, whatever the model; parsing, inlining and serializing them copies no weights. A plain value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

struct ModelMessage {
  onnx::ModelProto proto;
  std::vector<Tensor> contents;
};

// Which element of `contents` the tensor refers to; nothing when its data are in the message.
std::optional<size_t> reference_of(const onnx::TensorProto& tensor);
// Makes the tensor refer to element `index`; its own data go.
void set_reference(size_t index, onnx::TensorProto* tensor);
// Gives a tensor its contents: large ones are added to those of `message`, small ones are copied into the tensor.
void put_beside(const Tensor& contents, ModelMessage* message, onnx::TensorProto* tensor);

// The model from a message, and back. Contents are shared, not copied.
Model from_message(ModelMessage message);
ModelMessage to_message(const Model& model, bool all_types = false);

// The whole model in one message: what refers to contents gets a copy of them.
onnx::ModelProto with_contents(ModelMessage message);

}  // namespace onnx_train
